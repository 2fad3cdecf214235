// Sessions, the turns of one on a timeline, and a receipt in words.

import { ask } from "./api.js";
import { count, el, legend, part, percent, table, time, turns as number_of, usd, words } from "./dom.js";

let inView = ""; // the session that was scrolled to: a refresh leaves the page where it is
const LISTED = 200, SHOWN = 100, WORST = 4, FEW = 14;
// Losses of every session, in which nothing broke.
const EXPECTED = new Set(["new", "cold", "page_rounding", "not_kept"]);

export async function show(state, place) {
  const parameters = { since: state.since, tenant: state.tenant };
  const [sums, newest] = await Promise.all([
    ask("/admin/view/usage", { ...parameters, by: "session" }, state.signal),
    ask("/admin/view/receipts", { ...parameters, limit: LISTED }, state.signal),
  ]);
  const groups = sums.groups.slice(0, SHOWN), chosen = sums.groups.find((group) => group.key === state.detail);
  // A database that proxies share knows no names: those of the newest turns, of which the oldest comes last.
  const rows = new Map(newest.data.filter((row) => row.session).map((row) => [row.session, row]));
  const about = (group) => ({ began_at: rows.get(group.key)?.settled_at, harness: rows.get(group.key)?.harness, name: rows.get(group.key)?.name, ...group });
  const tenant = state.tenant || chosen?.tenant;
  place.replaceChildren(
    ...(state.detail ? await opened({ ...state, tenant }, chosen && about(chosen)) : []),
    el("h2", {}, "Sessions, the most expensive first"), sessions(groups.map(about), state),
    el("p", { class: "quiet" }, sums.groups.length > SHOWN ? `${count(sums.groups.length - SHOWN + sums.groups_left_out)} more are not shown.` : ""));
  if (state.detail && state.detail !== inView) place.addEventListener("shown", () => place.querySelector("#session").scrollIntoView({ block: "start" }));
  inView = state.detail;
}

/** The chosen session: its timeline, its sums and its turns. */
async function opened(state, group) {
  const heading = el("h2", { id: "session" }, `Session ${group?.name || state.detail}`);
  if (!state.tenant) return [heading, el("p", {}, "It has no turn in this time, or its tenant is not known here: choose a longer time, or its tenant.")];
  const turns = await ask("/admin/view/receipts", { tenant: state.tenant, session_hash: state.detail, limit: LISTED }, state.signal);
  const said = [state.role === "operator" ? `tenant ${state.tenant}` : "", group?.harness, group?.began_at ? `since ${time(group.began_at)}` : ""];
  return [heading, el("p", { class: "quiet" }, said.filter(Boolean).join(", ")), ...timeline(turns.data.reverse(), group, state)];
}

function sessions(groups, state) {
  const of_all = state.role === "operator" && !state.tenant;
  const columns = [{ name: "Session" }, ...(of_all ? [{ name: "Tenant" }] : []), { name: "Program" }, { name: "Started" },
    ...["Turns", "Prompt", "Hit ratio", "Paid, USD", "Saved, USD"].map((name) => ({ name, number: true })), { name: "Largest loss" }];
  const link = ({ key, name }) => (/^[0-9a-f]{16}$/.test(key)
    ? el("a", { href: `#/sessions/${key}`, class: "session", title: name || null, "aria-current": key === state.detail ? "true" : null }, name ? el("span", { class: "short" }, name) : "", el("span", { class: "id" }, key.slice(0, 6)))
    : "(none)");
  return table("Sessions", columns, groups.map((group) => [link(group), ...(of_all ? [group.tenant ?? ""] : []), el("span", { class: "now" }, group.harness ?? ""), group.began_at ? el("span", { class: "now" }, time(group.began_at)) : "",
    count(group.turns), count(group.prompt_tokens), percent(group.hit_ratio), usd(group.price_nanousd), usd(group.saved_nanousd), el("span", { class: "now" }, largest(group.losses))]), true);
}

/** The largest loss but for what each turn adds. */
function largest(losses) {
  const [name, tokens] = Object.entries(losses ?? {}).filter(([each]) => each !== "new").sort((a, b) => b[1] - a[1])[0] ?? [];
  return name ? `${words(name)} ${count(tokens)}` : "";
}

/** One column for each turn, as high as its prompt: what was cached below, what was lost above; under it its number and its cost. */
function timeline(rows, group, state) {
  const most = Math.max(1, ...rows.map((row) => row.prompt_tokens));
  const seen = new Set(["cached"]);
  const column = (row) => {
    const losses = Object.entries(row.loss).sort((a, b) => a[1] - b[1]);
    losses.forEach(([name]) => seen.add(name));
    const spoken = `Turn ${row.turn}: ${count(row.cached_tokens)} of ${count(row.prompt_tokens)} prompt tokens cached, ` +
      `${usd(row.price_nanousd)} USD${row.outcome === "completed" ? "" : `, ${words(row.outcome)}`}`;
    const bar = el("button", { type: "button", class: "turn", title: spoken, "aria-label": spoken, onclick: () => explain(row.id, state) },
      [...losses, ["cached", row.cached_tokens]].map(([name, tokens]) => {
        const made = part(name, 0, "height");
        made.style.height = `${(tokens / most) * 10}rem`;
        return made;
      }), el("span", { class: "under" }, row.turn), el("span", { class: "under cost" }, usd(row.price_nanousd)));
    return bar;
  };
  const columns = rows.map(column);
  return [
    el("div", { class: "card" },
      el("div", { class: rows.length <= FEW ? "turns few" : "turns", role: "group", "aria-label": "Turns of the session in their order; each opens its receipt" }, columns),
      legend([...seen])),
    summary(rows, group),
    el("details", { open: rows.length <= 12 }, el("summary", {}, "Turns as a table"), turns(rows, state)),
  ];
}

/** What the session cost, by its sums since the chosen time, and the turns of the timeline whose prefix was lost. */
function summary(rows, group) {
  const lost = rows.flatMap((row) => Object.entries(row.loss).filter(([name]) => !EXPECTED.has(name)).map(([name, tokens]) => ({ turn: row.turn, name, tokens })));
  const worst = lost.sort((a, b) => b.tokens - a.tokens).slice(0, WORST).map(({ turn, name, tokens }) => `turn ${turn} ${words(name)} ${count(tokens)}`);
  const sums = group ? `${number_of(group.turns)}, ${usd(group.price_nanousd)} USD, ${percent(group.hit_ratio)} cached. ` : "";
  const newest = rows.length < LISTED ? "" : `The timeline has its newest ${count(rows.length)} rows. `;
  return el("p", { class: "summary" }, sums, newest,
    worst.length ? `What broke: ${worst.join("; ")}.` : "Nothing broke its prefix.");
}

function turns(rows, state) {
  const columns = [...["Turn", "Prompt", "Cached", "Paid, USD"].map((name) => ({ name, number: true })), { name: "Not cached", text: true }, ...["Ended", "Receipt", "Model", "Sent by"].map((name) => ({ name }))];
  const link = (row) => el("button", { type: "button", class: "link id", onclick: () => explain(row.id, state) }, row.id);
  const lost = (row) => Object.entries(row.loss).sort((a, b) => b[1] - a[1]).map(([name, tokens]) => `${words(name)} ${count(tokens)}`).join(", ");
  return table("Turns", columns, rows.map((row) => [row.turn, count(row.prompt_tokens), count(row.cached_tokens),
    usd(row.price_nanousd), row.outcome === "completed" ? lost(row) : words(row.outcome), el("span", { class: "now" }, time(row.settled_at)), link(row), row.model, [row.kind, row.agent].filter(Boolean).join(" ")]));
}

/** A receipt in words, in a dialog that Escape closes. */
export async function explain(id, state) {
  const dialog = document.getElementById("receipt");
  const close = el("button", { type: "button", onclick: () => dialog.close() }, "Close");
  dialog.replaceChildren(el("h2", { id: "receipt-title" }, "Receipt"), el("p", { class: "quiet" }, "Asking …"), close);
  if (!dialog.open) dialog.showModal();
  let lines, more = [];
  try {
    const { words: said, ...receipt } = await ask(`/admin/view/receipts/${encodeURIComponent(id)}`, { tenant: state.tenant });
    lines = said.filter(Boolean);
    more = [el("details", {}, el("summary", {}, "The receipt itself"), el("pre", { tabindex: 0 }, JSON.stringify(receipt, null, 2)))];
  } catch (error) {
    lines = [error.message];
  }
  dialog.replaceChildren(el("h2", { id: "receipt-title" }, `Receipt ${id}`), ...lines.map((line) => el("p", {}, line)), ...more, close);
  close.focus();
}
