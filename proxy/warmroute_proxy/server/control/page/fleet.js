// For operators: engines with their load, and where turns were placed and why. For all: keys and budgets.

import { ask, metric } from "./api.js";
import { count, el, legend, meter, part, percent, seconds, table, time, usd, words } from "./dom.js";
import { explain } from "./sessions.js";

const TERMS = ["network_s", "queue_s", "compute_s", "load_s", "decode_s", "transfer_s", "others_s", "reuse_s", "churn_s"];
const GOOD = new Set(["up", "open", "good"]);

const state_of = (name) => el("span", { class: `state ${GOOD.has(name) ? "good" : "bad"}` }, name);

export async function engines(state, place) {
  const [listed, { workers, peers, policy }, { queue }, conditions, tiers] = await Promise.all([
    ...["engines", "workers", "admission", "conditions"].map((name) => ask(`/admin/${name}`, {}, state.signal)),
    metric("warmroute_worker_kv_usage_ratio", state.signal)]);
  const of = (engine) => Object.entries(workers).filter(([, worker]) => worker.engine === engine.id);
  const card = (engine) => el("section", { class: "card" },
    el("h3", {}, engine.id, state_of(engine.state)),
    el("p", { class: "quiet" }, `${engine.role}, ${engine.url}`),
    of(engine).map(([id, worker]) => load(id, worker, engine.id !== id, tiers.filter(({ labels }) => labels.worker === id))),
    engine.warning ? el("p", {}, engine.warning) : null);
  place.replaceChildren(
    el("h2", {}, `Engines of region ${state.region}`),
    el("p", { class: "quiet" }, `${count(queue.requests)} of at most ${count(queue.requests_limit)} requests wait in the queue, the oldest for ${seconds(queue.oldest_s)}. Placement: ${words(policy)}.`),
    ...conditions.raised.map((one) => el("p", { role: "status" }, `${words(one.condition)} (${one.subject}): ${one.detail}`)),
    el("div", { class: "cards" }, listed.engines.map(card)),
    ...(Object.keys(peers).length ? [el("h2", {}, "Other regions"), others(peers)] : []));
}

function load(id, worker, named, tiers) {
  const limited = (used, limit) => (limit ? `${count(used)} / ${count(limit)}` : count(used));
  return el("div", {}, named ? el("p", {}, `${id} `, state_of(worker.health)) : null,
    meter("Requests", worker.running, worker.running_limit, limited(worker.running, worker.running_limit)),
    worker.role === "decode" ? null : meter("Prefill tokens", worker.prefill_tokens, worker.prefill_limit, limited(worker.prefill_tokens, worker.prefill_limit)),
    meter("KV in use", worker.resident_tokens, worker.token_limit, limited(worker.resident_tokens, worker.token_limit)),
    meter("KV of sessions", worker.kv_protected_tokens, worker.token_limit, `${count(worker.kv_protected_tokens)} in ${count(worker.kv_sessions)}`),
    tiers.map(({ labels, value }) => meter(`${words(labels.tier)} tier`, value, 1, percent(value))),
    worker.role === "decode" ? null : el("p", { class: "quiet" }, `A new request waits ${seconds(worker.queue_s)} for prefill.`));
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
  const columns = [{ name: "Candidate" }, { name: "Cost", number: true }, { name: "To compute", number: true }, { name: "Terms" }, { name: "Largest terms" }];
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
    el("h2", {}, "Limits by the minute and at once"), ...quotas({ ...limits.tenants, ...limits.limits }),
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

function quotas(named) {
  const rows = Object.entries(named).filter(([, quota]) => quota.requests_per_minute !== undefined || quota.tokens_per_minute !== undefined);
  if (!rows.length) return [el("p", { class: "quiet" }, "There are no limits here.")];
  const left = (limit, remaining) => (limit === undefined ? null : meter("", limit - remaining, limit, `${count(remaining)} left of ${count(limit)}`));
  return rows.map(([name, quota]) => {
    const minute = (label, limit, remaining) => {
      const made = left(limit, remaining);
      if (made) made.firstChild.textContent = label;
      return made;
    };
    return el("section", { class: "card" }, el("h3", {}, name),
      minute("Requests", quota.requests_per_minute, quota.requests_remaining), minute("Tokens", quota.tokens_per_minute, quota.tokens_remaining),
      el("p", { class: "quiet" }, `${count(quota.running)} requests with ${count(quota.tokens_running)} tokens run now.`));
  });
}
