// The ladder: where cached tokens were lost, step by step, and what would win them back.

import { ask } from "./api.js";
import { count, el, part, percent, table, usd, words } from "./dom.js";

const GROUPS = ["model", "harness", "session", "day"];

export async function show(state, place) {
  const parameters = { since: state.since, tenant: state.tenant };
  const by = state.role === "operator" && !state.tenant ? "tenant" : "model";
  const all = await ask("/admin/view/ladder", { ...parameters, by }, state.signal);
  const groups = [];
  for (const name of GROUPS.filter((each) => each !== by)) { // one after the other: each reads the ledger
    groups.push(await ask("/admin/view/ladder", { ...parameters, by: name }, state.signal));
  }
  place.replaceChildren(
    el("h2", {}, "Where cached tokens went"), el("p", { class: "quiet" }, note(all)), steps(all),
    el("h2", {}, "What would win them back"), remedies(all),
    ...[all, ...groups].flatMap((found) => [el("h2", {}, `By ${found.by}`), grouped(found)]));
}

function note(all) {
  const told = `${count(all.turns)} turns of region ${all.source.region}, ${usd(all.price_nanousd)} USD billed. A step is at most the one above it, but for errors of predictions.`;
  if (all.complete || !all.counted_since) return told;
  return `${told} Only turns since ${new Date(all.counted_since * 1000).toLocaleString("en-GB")} are read here; warmroute ladder reads all.`;
}

function steps(all) {
  const most = all.prompt_tokens;
  const columns = [{ name: "Step" }, { name: "Share" }, ...["Cached", "Of prompt", "Lost", "Price, USD", "Lost, USD"].map((name) => ({ name, number: true })), { name: "Why" }];
  const rows = all.steps.map((step) => {
    const share = most ? step.tokens / most : null;
    const bar = el("span", { class: "bar", role: "img", "aria-label": `${step.step}: ${percent(share)} of the prompt` }, part("device", share ?? 0));
    const why = (step.causes ?? []).map((cause) => el("span", { title: cause.meaning }, `${words(cause.cause)} ${count(cause.tokens)} (${usd(cause.nanousd)} USD) `));
    return [words(step.step), bar, count(step.tokens), percent(share), count(step.lost_tokens ?? 0), usd(step.price_nanousd), usd(step.lost_nanousd ?? 0), el("span", {}, why)];
  });
  return table("Steps", columns, rows);
}

function remedies(all) {
  const columns = [{ name: "Remedy" }, { name: "Tokens at most", number: true }, { name: "USD at most", number: true }, { name: "How" }];
  return table("Remedies", columns, all.would_win_back.map((win) => [win.remedy, count(win.tokens), usd(win.nanousd), win.how]));
}

function grouped(found) {
  const named = ["reachable", "kept", "chosen", "billed"];
  const columns = [{ name: words(found.by) }, ...["Turns", "Prompt", ...named.map(words), "USD", "Lost, USD"].map((name) => ({ name, number: true }))];
  const rows = found.groups.map((group) => {
    const step = Object.fromEntries(group.steps.map((each) => [each.step, each]));
    const shares = named.map((name) => percent(group.prompt_tokens ? step[name].tokens / group.prompt_tokens : null));
    return [group.key || "(none)", count(group.turns), count(group.prompt_tokens), ...shares, usd(group.price_nanousd),
      usd(group.price_nanousd - step.reachable.price_nanousd)];
  });
  return table(`By ${found.by}`, columns, rows);
}
