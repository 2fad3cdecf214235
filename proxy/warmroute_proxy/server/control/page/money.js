// Hit ratio and money over time, and what was not cached.

import { ask } from "./api.js";
import { buckets, hitRatio, label, money, start } from "./charts.js";
import { count, el, legend, part, percent, table, usd, words } from "./dom.js";

const BY_HOUR = new Set(["24h", "7d"]);

export async function show(state, place) {
  const by = BY_HOUR.has(state.since) ? "hour" : "day";
  const parameters = { since: state.since, tenant: state.tenant };
  const [sums, models, tenants] = await Promise.all([
    ask("/admin/view/usage", { ...parameters, by }, state.signal),
    ask("/admin/view/usage", { ...parameters, by: "model" }, state.signal),
    state.role === "operator" && !state.tenant ? ask("/admin/view/usage", { since: state.since, by: "tenant" }, state.signal) : null,
  ]);
  place.replaceChildren(
    el("h2", {}, "Money and hit ratio"), tiles(sums), notes(sums), ...charts(sums, by), ...losses(sums),
    el("h2", {}, "By model"), sumsTable("Models", "Model", models.groups),
    ...(tenants ? [el("h2", {}, "By tenant"), sumsTable("Tenants", "Tenant", tenants.groups)] : []));
  place.addEventListener("shown", () => draw(place, sums, by));
}

function tiles(sums) {
  const tile = (name, value) => el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value));
  return el("dl", { class: "tiles" },
    tile("Turns", count(sums.turns)), tile("Hit ratio", percent(sums.hit_ratio)),
    tile("Paid, USD", usd(sums.price_nanousd)), tile("Saved, USD", usd(sums.saved_nanousd)));
}

/** What is missing from the sums, in a sentence each. */
function notes(sums) {
  const found = Object.entries(sums.regions).filter(([, state]) => state !== "counted")
    .map(([region, state]) => `Region ${region}: ${state}; its turns may be missing.`);
  if (sums.counted_since) found.push(`Only turns since ${new Date(sums.counted_since * 1000).toLocaleString("en-GB")} are counted.`);
  return el("p", { class: "quiet" }, found.join(" "));
}

function charts(sums, by) {
  if (!sums.groups.length) return [el("p", { class: "quiet" }, "No turn has ended in this time.")];
  const rows = sums.groups.map((group) => [label(start(group.key, by), by), count(group.turns), percent(group.hit_ratio),
    usd(group.price_nanousd), usd(group.saved_nanousd)]);
  const columns = [{ name: by === "hour" ? "Hour" : "Day" }, ...["Turns", "Hit ratio", "Paid, USD", "Saved, USD"].map((name) => ({ name, number: true }))];
  return [
    el("div", { class: "two" },
      el("div", { class: "card" }, el("h3", {}, "Hit ratio"), el("div", { id: "chart-ratio" })),
      el("div", { class: "card" }, el("h3", {}, "USD"), el("div", { id: "chart-money" }), legend(["paid", "saved"]))),
    el("details", {}, el("summary", {}, "The same as a table"), table("Over time", columns, rows)),
  ];
}

/** Draw the charts as wide as their places are. */
function draw(place, sums, by) {
  const all = buckets(sums.groups, by);
  for (const [id, chart] of [["chart-ratio", hitRatio], ["chart-money", money]]) {
    const box = place.querySelector(`#${id}`);
    if (box) box.replaceChildren(chart(all, by, Math.max(240, box.clientWidth), sums));
  }
}

function losses(sums) {
  const found = Object.entries(sums.losses ?? {}).sort((a, b) => b[1] - a[1]);
  if (!found.length) return [];
  const all = found.reduce((sum, [, tokens]) => sum + tokens, 0);
  const bar = el("span", { class: "bar", role: "img", "aria-label": "Shares of what was not cached; the table has them" },
    found.map(([name, tokens]) => part(name, tokens / all)));
  const rows = found.map(([name, tokens]) => [words(name), count(tokens), percent(tokens / all)]);
  return [el("h2", {}, "Prompt tokens that were not cached"), bar, legend(found.map(([name]) => name)),
    table("Losses by class", [{ name: "Class" }, { name: "Tokens", number: true }, { name: "Share", number: true }], rows)];
}

function sumsTable(caption, first, groups) {
  const columns = [{ name: first }, ...["Turns", "Prompt", "Hit ratio", "Paid, USD", "Saved, USD"].map((name) => ({ name, number: true }))];
  return table(caption, columns, groups.map((group) => [group.key || "(none)", count(group.turns), count(group.prompt_tokens),
    percent(group.hit_ratio), usd(group.price_nanousd), usd(group.saved_nanousd)]));
}
