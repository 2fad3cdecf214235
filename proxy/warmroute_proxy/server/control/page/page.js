// The page: sign in, choose a view, show it. The address holds the view and the hash of a session, never a key.

import { ask, key, Refused } from "./api.js";
import { el } from "./dom.js";
import { decisions, engines, keys } from "./fleet.js";
import { show as ladder } from "./ladder.js";
import { show as money } from "./money.js";
import { show as sessions } from "./sessions.js";

const VIEWS = {
  money: { title: "Overview", show: money }, sessions: { title: "Sessions", show: sessions },
  ladder: { title: "Ladder", show: ladder },
  engines: { title: "Engines", show: engines, operator: true },
  decisions: { title: "Decisions", show: decisions, operator: true },
  keys: { title: "Keys and budgets", show: keys },
};
const LIVE_MS = 5000, LONGEST_MS = 60000;

const $ = (id) => document.getElementById(id);
const state = { role: null, tenant: "", region: "", since: "1h", detail: "" };
let shown = 0, asking = new AbortController(), next;

function name() {
  const [view, detail] = location.hash.slice(2).split("/");
  const allowed = Object.hasOwn(VIEWS, view) && (state.role === "operator" || !VIEWS[view].operator);
  state.detail = allowed && /^[0-9a-f]{16}$/.test(detail ?? "") ? detail : "";
  return allowed ? view : "money";
}

async function show() {
  if (state.role === null) return;
  const view = name(), place = $("view"), number = ++shown, began = performance.now();
  clearTimeout(next);
  asking.abort(); // nobody waits for the view before
  asking = new AbortController();
  for (const link of $("views").children) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  place.setAttribute("aria-busy", "true");
  try {
    const fresh = el("div");
    await VIEWS[view].show({ ...state, signal: asking.signal }, fresh);
    if (number !== shown) return; // another one was asked for since
    place.replaceChildren(fresh);
    fresh.dispatchEvent(new Event("shown"));
    $("problem").textContent = "";
    place.dataset.view = view;
  } catch (error) {
    if (number !== shown) return;
    if (error instanceof Refused && error.status === 401) return signOut(error.message);
    $("problem").textContent = error instanceof Refused ? error.message : `This view failed: ${error.message}`;
  } finally {
    if (number === shown) {
      place.setAttribute("aria-busy", "false");
      later(performance.now() - began);
    }
  }
}

async function signIn() {
  try {
    const about = await ask("/admin/view");
    Object.assign(state, { role: about.role, tenant: about.tenant ?? "", region: about.region });
    $("who").textContent = about.role === "operator" ? `Operator, region ${about.region}` : `Tenant ${about.tenant}, region ${about.region}`;
    const names = about.tenants.map((tenant) => el("option", { value: tenant }, tenant));
    if (about.tenants_left_out) names.push(el("option", { disabled: true }, `${about.tenants_left_out} more are not listed`));
    $("tenant").replaceChildren(...(about.role === "operator" ? [el("option", { value: "" }, "All tenants")] : []), ...names);
    $("tenant").disabled = about.role !== "operator";
    if (about.tenants.length === 1) $("tenant").value = state.tenant = about.tenants[0];
    const open = Object.entries(VIEWS).filter(([, view]) => about.role === "operator" || !view.operator);
    $("views").replaceChildren(...open.map(([view, { title }]) => el("a", { href: `#/${view}`, "data-view": view }, title)));
    toggle(true);
    $("problem").textContent = "";
    await show();
  } catch (error) {
    signOut(error.message);
  }
}

function signOut(problem = "") {
  key.forget();
  state.role = null;
  shown++;
  asking.abort();
  clearTimeout(next);
  $("who").textContent = "";
  $("view").replaceChildren();
  if ($("receipt").open) $("receipt").close();
  toggle(false);
  $("problem").textContent = problem;
  $("key").focus();
}

function toggle(signedIn) {
  $("sign-in").hidden = signedIn;
  for (const id of ["controls", "views", "view"]) $(id).hidden = !signedIn;
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set($("key").value.trim());
  $("key").value = "";
  signIn();
});
$("forget").addEventListener("click", () => signOut());
$("refresh").addEventListener("click", show);
$("tenant").addEventListener("change", (event) => { state.tenant = event.target.value; show(); });
$("since").addEventListener("change", (event) => { state.since = event.target.value; show(); });
addEventListener("hashchange", show);

let resized;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { if (name() === "money") show(); }, 250);
});

/** Ask anew after a view is shown, not while it is asked for; a proxy that has taken long is left alone for twice as long. */
function later(took_ms) {
  next = setTimeout(() => {
    const reading = $("view").contains(document.activeElement) || $("view").querySelector("details.card[open]") || $("receipt").open;
    if ($("live").checked && !document.hidden && !reading) show();
    else later(0);
  }, Math.min(Math.max(LIVE_MS, 2 * took_ms), LONGEST_MS));
}

if (key.get()) signIn();
else toggle(false);
