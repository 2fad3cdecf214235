// The ladder: where cached tokens were lost, step by step, and what would win them back.

import { ask } from "./api.js";
import { count, el, part, percent, table, turns, usd, words } from "./dom.js";

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
  const told = `${turns(all.turns)} of region ${all.source.region}, ${usd(all.price_nanousd)} USD billed. No step is above the one before it, apart from errors of predictions.`;
  if (all.complete || !all.counted_since) return told;
  return `${told} Only turns since ${new Date(all.counted_since * 1000).toLocaleString("en-GB")} are read here; warmroute ladder reads all.`;
}

/** A waterfall: each bar ends at what was left, and what was lost at this step hangs behind it. */
function steps(all) {
  const most = Math.max(1, all.prompt_tokens);
  const step = (one, at) => {
    const before = at ? all.steps[at - 1].tokens : one.tokens, lost = before - one.tokens;
    const spoken = `${words(one.step)}: ${percent(one.tokens / most)} of the prompt${lost > 0 ? `, ${percent(lost / most)} lost here` : ""}`;
    const bar = el("span", { class: "bar", role: "img", "aria-label": spoken },
      part("cached", Math.min(before, one.tokens) / most), part(lost > 0 ? "lost" : "gained", Math.abs(lost) / most));
    const why = (one.causes ?? []).map((cause) => el("li", { title: cause.meaning }, `${words(cause.cause)} ${count(cause.tokens)} (${usd(cause.nanousd)} USD)`));
    return el("li", {}, el("strong", {}, words(one.step)), bar, el("span", { class: "number" }, percent(one.tokens / most)),
      el("span", { class: "number lost" }, lost ? `${signed(-lost, count)} tokens, ${signed(-(one.lost_nanousd ?? 0), usd)} USD` : `${count(one.tokens)} tokens`),
      why.length ? el("ul", { class: "why" }, why) : null);
  };
  return el("ol", { class: "waterfall card", "aria-label": "Steps" }, all.steps.map(step));
}

function remedies(all) {
  const columns = [{ name: "Remedy" }, { name: "Tokens at most", number: true }, { name: "USD at most", number: true }, { name: "How", text: true }];
  return table("Remedies", columns, all.would_win_back.map((win) => [win.remedy, count(win.tokens), usd(win.nanousd), win.how]), true);
}

function grouped(found) {
  const named = ["reachable", "kept", "chosen", "billed"];
  const columns = [{ name: titled(words(found.by)) }, ...["Turns", "Prompt", ...named.map((name) => titled(words(name))), "USD", "Lost, USD"].map((name) => ({ name, number: true }))];
  const rows = found.groups.map((group) => {
    const step = Object.fromEntries(group.steps.map((each) => [each.step, each]));
    const shares = named.map((name) => percent(group.prompt_tokens ? step[name].tokens / group.prompt_tokens : null));
    return [group.key || "(none)", count(group.turns), count(group.prompt_tokens), ...shares, usd(group.price_nanousd),
      usd(group.price_nanousd - step.reachable.price_nanousd)];
  });
  return table(`By ${found.by}`, columns, rows);
}

const titled = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const signed = (value, format) => (value < 0 ? "\u2212" : "+") + format(Math.abs(value));
