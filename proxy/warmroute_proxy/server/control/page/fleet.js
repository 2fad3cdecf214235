// For operators: engines with their load, and where turns were placed and why. For all: keys and budgets.

import { ask, metric } from "./api.js";
import { trend } from "./charts.js";
import { count, el, legend, meter, part, percent, seconds, table, time, usd, used, words } from "./dom.js";
import { explain } from "./sessions.js";

const TERMS = ["network_s", "queue_s", "compute_s", "load_s", "decode_s", "transfer_s", "others_s", "reuse_s", "churn_s"];
const GOOD = new Set(["up", "open", "good"]);

const state_of = (name) => el("span", { class: `state ${GOOD.has(name) ? "good" : "bad"}` }, name);

export async function engines(state, place) {
  const [listed, { workers, peers, policy }, { queue }, conditions, tiers, minutes] = await Promise.all([
    ...["engines", "workers", "admission", "conditions"].map((name) => ask(`/admin/${name}`, {}, state.signal)),
    metric("warmroute_worker_kv_usage_ratio", state.signal), ask("/admin/view/minutes", {}, state.signal)]);
  const columns = [{ name: "Engine" }, { name: "State" }, { name: "Hit ratio", number: true }, ...["Its last hour", "Requests", "Prefill tokens", "KV in use", "KV of sessions", "Tiers"].map((name) => ({ name })), { name: "Wait", number: true }];
  const rows = listed.engines.flatMap((engine) => Object.entries(workers).filter(([, worker]) => worker.engine === engine.id)
    .map(([id, worker]) => row(engine, id, worker, tiers.filter(({ labels }) => labels.worker === id), minutes.workers[id])));
  const waiting = `${count(queue.requests)} of at most ${count(queue.requests_limit)} requests wait in the queue, the oldest for ${seconds(queue.oldest_s)}`;
  place.replaceChildren(
    el("h2", {}, `Engines of region ${state.region}`),
    el("p", { class: "quiet" }, `${waiting}. Placement: ${words(policy)}. Wait: of a new request, for prefill.`),
    ...conditions.raised.map((one) => el("p", { role: "status" }, `${words(one.condition)} (${one.subject}): ${one.detail}`)),
    ...listed.engines.filter((engine) => engine.warning).map((engine) => el("p", {}, `${engine.id}: ${engine.warning}`)),
    table("Engines", columns, rows, true),
    ...(Object.keys(peers).length ? [el("h2", {}, "Other regions"), others(peers)] : []));
}

function row(engine, id, worker, tiers, minutes) {
  const of = (amount, limit) => (limit ? `${count(amount)} / ${count(limit)}` : count(amount));
  const decodes = worker.role === "decode", sum = (name) => (minutes ?? []).reduce((all, each) => all + each[name], 0);
  return [
    el("span", {}, el("strong", { class: "now" }, id), el("br"), el("span", { class: "quiet", title: engine.url }, engine.role)),
    state_of(engine.state === "up" ? worker.health : engine.state),
    sum("prompt_tokens") ? percent(sum("cached_tokens") / sum("prompt_tokens")) : "–", minutes ? trend(id, minutes) : "",
    used("Requests", worker.running, worker.running_limit, of(worker.running, worker.running_limit)),
    decodes ? "" : used("Prefill tokens", worker.prefill_tokens, worker.prefill_limit, of(worker.prefill_tokens, worker.prefill_limit)),
    used("KV in use", worker.resident_tokens, worker.token_limit, of(worker.resident_tokens, worker.token_limit)),
    used("KV of sessions", worker.kv_protected_tokens, worker.token_limit, `${count(worker.kv_protected_tokens)} in ${count(worker.kv_sessions)}`),
    el("div", {}, tiers.map(({ labels, value }) => used(`${words(labels.tier)} tier`, value, 1, `${words(labels.tier)} ${percent(value)}`))),
    decodes ? "" : seconds(worker.queue_s)];
}

function others(peers) {
  const columns = [{ name: "Region" }, { name: "State" }, ...["Round trip", "Requests", "Prefill ahead"].map((name) => ({ name, number: true }))];
  return table("Other regions", columns, Object.entries(peers).map(([name, peer]) => [name, state_of(peer.health), seconds(peer.rtt_s), count(peer.running), seconds(peer.queue_s)]));
}

export async function decisions(state, place) {
  const found = (await ask("/admin/decisions", { limit: 30 }, state.signal)).decisions;
  const used = TERMS.filter((term) => found.some(({ reasons }) => reasons.some((one) => one[term] > 0.0005)));
  place.replaceChildren(
    el("h2", {}, "Newest decisions"),
    el("p", { class: "quiet" }, "A turn goes where it costs the fleet least, in seconds. Open one to see the terms of each candidate; the first one was chosen."),
    legend(used), ...found.map((one) => decision(one, state)),
    ...(found.length ? [] : [el("p", {}, "This proxy has placed no turn yet.")]));
}

function decision(one, state) {
  const most = Math.max(1e-9, ...one.reasons.map((reason) => TERMS.reduce((sum, term) => sum + Math.max(0, reason[term]), 0)));
  const candidate = (reason) => [
    reason.note ? `${reason.id} with ${reason.note}` : reason.id, seconds(reason.cost_s), count(reason.uncached_tokens),
    el("span", { class: "bar", role: "img", "aria-label": terms(reason) }, TERMS.map((term) => part(term, reason[term] / most, "width", `${words(term)} ${seconds(reason[term])}`))),
    terms(reason)];
  const where = one.reasons[0]?.id ?? one.region;
  const columns = [{ name: "Candidate" }, { name: "Cost", number: true }, { name: "To compute", number: true }, { name: "Terms" }, { name: "Largest terms", text: true }];
  return el("details", { class: "card" },
    el("summary", {}, el("strong", {}, where), el("span", {}, `${count(one.predicted_cached_tokens)} of about ${count(one.prompt_tokens_est)} tokens expected to be cached`), el("span", { class: "quiet id" }, one.id)),
    table(`Candidates of ${one.id}`, columns, one.reasons.map(candidate)),
    state.tenant ? el("button", { type: "button", onclick: () => explain(one.id, state) }, "Explain its receipt") : null);
}

function terms(reason) {
  const found = TERMS.filter((term) => Math.abs(reason[term]) >= 0.0005).sort((a, b) => Math.abs(reason[b]) - Math.abs(reason[a]));
  return found.slice(0, 4).map((term) => `${words(term)} ${seconds(reason[term])}`).join(", ") || "nothing above 0.5 ms";
}

export async function keys(state, place) {
  const parameters = { tenant: state.tenant };
  const [listed, limits] = await Promise.all([ask("/admin/view/keys", parameters, state.signal), ask("/admin/view/budgets", parameters, state.signal)]);
  const columns = ["Key", "Tenant", "Note", "State", "Made", "Expires", "From"].map((name) => ({ name }));
  const day = (text) => (text ? time(Date.parse(text) / 1000) : "");
  place.replaceChildren(
    el("h2", {}, "Keys"),
    table("API keys", columns, listed.data.map((key) => [el("code", {}, key.id), key.tenant, key.note, state_of(key.state), day(key.made_at), day(key.expires_at), key.source])),
    el("p", { class: "quiet" }, listed.has_more ? "Only the newest keys are shown: choose a tenant, or use `warmroute keys list`." : ""),
    el("h2", {}, "Budgets"), ...budgets(limits.budgets),
    el("h2", {}, "Limits by the minute and at once"), ...quotas({ ...limits.tenants, ...limits.limits }, new Set(limits.at_once.map((one) => one.name))),
    el("p", { class: "quiet" }, limits.left_out ? `${count(limits.left_out)} more are not shown: choose a tenant.` : ""),
    ...limits.at_once.map((one) => meter(`${one.name}, at once`, one.running, one.limit, `${count(one.running)} / ${count(one.limit)}`)));
}

function budgets(rows) {
  if (!rows.length) return [el("p", { class: "quiet" }, "There are no budgets here.")];
  return rows.map((row) => {
    const amount = (value) => (row.unit === "usd" || row.unit === "nanousd" ? `${usd(value)} USD` : `${count(value)} ${words(row.unit)}`);
    const spent = row.left === null ? 0 : Math.max(0, row.limit - row.left);
    const left = row.left === null ? "not known yet" : `${amount(row.left)} left`;
    return el("section", { class: "card" }, el("h3", {}, row.name, el("span", { class: "quiet" }, `by the ${row.period}`)),
      meter("Used", spent, row.limit, `${left} of ${amount(row.limit)}`),
      el("p", { class: "quiet" }, `${[...row.tenants, ...row.keys].join(", ") || "all tenants"}; renews ${time(row.renews_at)}${row.away ? "; the store does not answer" : ""}`));
  });
}

function quotas(named, shared) {
  const limits = ["requests_per_minute", "tokens_per_minute", "requests_at_once", "tokens_at_once"];
  const rows = Object.entries(named).filter(([, quota]) => limits.some((limit) => quota[limit] !== undefined));
  if (!rows.length) return [el("p", { class: "quiet" }, "There are no limits here.")];
  const bar = (label, limit, used, text) => (limit === undefined ? null : meter(label, used, limit, text));
  const minute = (label, limit, left) => bar(label, limit, limit - left, `${count(left)} left of ${count(limit)}`);
  const at_once = (label, limit, running) => bar(label, limit, running, `${count(running)} / ${count(limit)}`);
  return rows.map(([name, quota]) => el("section", { class: "card" }, el("h3", {}, name),
    minute("Requests", quota.requests_per_minute, quota.requests_remaining), minute("Tokens", quota.tokens_per_minute, quota.tokens_remaining),
    shared.has(name) ? null : at_once("Requests at once", quota.requests_at_once, quota.running), at_once("Tokens at once", quota.tokens_at_once, quota.tokens_running),
    el("p", { class: "quiet" }, `${count(quota.running)} requests with ${count(quota.tokens_running)} tokens run now.`)));
}
