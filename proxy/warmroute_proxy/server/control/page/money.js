// What a fleet does: errors, times, hit ratio and money, over time; and what was not cached. The last hour comes from the
// memory of this proxy, minute by minute, all else from the ledgers of all regions.

import { ask } from "./api.js";
import { buckets, hitRatio, label, money, start } from "./charts.js";
import { count, el, legend, part, percent, seconds, table, time, turns, usd, words } from "./dom.js";

const BY = { "1h": "minute", "24h": "hour", "7d": "hour", "4w": "day", "52w": "day" };
const NAMES = { minute: "Minute", hour: "Hour", day: "Day" };

export async function show(state, place) {
  const by = BY[state.since], of_all = state.role === "operator" && !state.tenant;
  const usage = (parameters) => ask("/admin/view/usage", { since: state.since, tenant: state.tenant, ...parameters }, state.signal);
  const [sums, models, tenants] = await Promise.all([
    by === "minute" ? minutes(state) : usage({ by }), usage({ by: "model" }),
    of_all && by !== "minute" ? usage({ by: "tenant" }).then((found) => found.groups) : null,
  ]);
  place.replaceChildren(
    el("h2", {}, by === "minute" ? "The last hour" : "Hit ratio and money"), tiles(sums), notes(sums), ...charts(sums, by), ...losses(sums),
    el("h2", {}, "By model"), sumsTable("Models", "Model", models.groups),
    ...(of_all ? [el("h2", {}, "By tenant"), sumsTable("Tenants", "Tenant", tenants ?? sums.tenants)] : []));
  place.addEventListener("shown", () => draw(place, sums, by));
}

async function minutes(state) {
  const found = await ask("/admin/view/minutes", { tenant: state.tenant }, state.signal);
  return { ...found, groups: found.minutes.filter((minute) => minute.turns || minute.errors || minute.rate_limited) };
}

function tiles(sums) {
  const tile = (name, value, about = "", bad = false) =>
    el("div", { class: "tile" }, el("dt", {}, name), el("dd", { class: bad ? "bad" : null }, value), el("dd", { class: "about" }, about));
  const cached = `${count(sums.cached_tokens)} tokens cached`;
  const money = [tile("Hit ratio", percent(sums.hit_ratio), cached), tile("Paid, USD", usd(sums.price_nanousd), `${usd(sums.saved_nanousd)} saved`)];
  if (sums.errors === undefined) return el("dl", { class: "tiles" }, tile("Turns", count(sums.turns)), ...money);
  const after = (name, value) => tile(name, value === null ? "–" : seconds(value), value === null ? "no stream yet" : "of streams");
  return el("dl", { class: "tiles" },
    tile("Errors", count(sums.errors), turns(sums.turns), sums.errors > 0), tile("429s", count(sums.rate_limited), "refused", sums.rate_limited > 0),
    after("TTFT p50", sums.ttft_p50_s), after("TTFT p90", sums.ttft_p90_s), ...money);
}

/** What is missing from the sums, in a sentence each. */
function notes(sums) {
  const found = Object.entries(sums.regions ?? {}).filter(([, state]) => state !== "counted")
    .map(([region, state]) => `Region ${region}: ${state}; its turns may be missing.`);
  if (sums.region) found.push(`The turns that this proxy of region ${sums.region} has served${hourAgo(sums.counted_since) ? "" : ` since its start at ${time(sums.counted_since)}`}.`);
  if (sums.region && !sums.complete) found.push("Some turns are missing: more than 100 tenants sent requests in one minute.");
  if (!sums.region && sums.counted_since) found.push(`Only turns since ${new Date(sums.counted_since * 1000).toLocaleString("en-GB")} are counted.`);
  return el("p", { class: "quiet" }, found.join(" "));
}

const hourAgo = (unix) => unix * 1000 < Date.now() - 3600e3;

function charts(sums, by) {
  if (!sums.groups.length) return [el("p", { class: "quiet" }, "No turn has ended in this time.")];
  const rows = sums.groups.map((group) => [label(start(group.key, by), by), count(group.turns), ...errors(group), percent(group.hit_ratio),
    usd(group.price_nanousd), usd(group.saved_nanousd)]);
  const columns = [{ name: NAMES[by] }, ...["Turns", ...(by === "minute" ? ["Errors", "429s"] : []), "Hit ratio", "Paid, USD", "Saved, USD"].map((name) => ({ name, number: true }))];
  return [
    el("div", { class: "two" },
      el("div", { class: "card" }, el("h3", {}, "Hit ratio"), el("div", { id: "chart-ratio" })),
      el("div", { class: "card" }, el("h3", {}, "USD"), el("div", { id: "chart-money" }), legend(["paid", "saved"]))),
    el("details", {}, el("summary", {}, "The same as a table"), table("Over time", columns, rows)),
  ];
}

const errors = (group) => (group.errors === undefined ? [] : [count(group.errors), count(group.rate_limited)]);

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
  const more = groups[0]?.errors === undefined ? [] : ["Errors", "429s"];
  const columns = [{ name: first }, ...["Turns", ...more, "Prompt", "Hit ratio", "Paid, USD", "Saved, USD"].map((name) => ({ name, number: true }))];
  return table(caption, columns, groups.map((group) => [group.key || "(none)", count(group.turns), ...errors(group), count(group.prompt_tokens),
    percent(group.hit_ratio), usd(group.price_nanousd), usd(group.saved_nanousd)]));
}
