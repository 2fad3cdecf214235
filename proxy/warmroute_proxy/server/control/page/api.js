// Questions to the proxy that serves this page. The key lives in this tab alone and goes into a header, never a URL.

const STORED = "warmroute-key";

export const key = {
  get: () => sessionStorage.getItem(STORED) ?? "",
  set: (value) => sessionStorage.setItem(STORED, value),
  forget: () => sessionStorage.removeItem(STORED),
};

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/** `signal` ends a question whose answer nobody waits for any more. */
async function get(path, parameters, signal) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  let answer;
  try {
    answer = await fetch(`${path}${query.size ? `?${query}` : ""}`, {
      headers: { authorization: `Bearer ${key.get()}` }, cache: "no-store", credentials: "omit", redirect: "error", signal,
    });
  } catch {
    throw new Refused("The proxy does not answer.", 0);
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw new Refused(body?.error?.message ?? `The proxy answers ${answer.status}.`, answer.status);
}

export const ask = async (path, parameters = {}, signal = undefined) => (await get(path, parameters, signal)).json();

/** One metric of the metrics page: [{labels, value}]. */
export async function metric(name, signal = undefined) {
  const rows = [];
  for (const line of (await (await get("/metrics", {}, signal)).text()).split("\n")) {
    if (!line.startsWith(`${name}{`)) continue;
    const end = line.lastIndexOf("} ");
    const labels = Object.fromEntries([...line.slice(name.length + 1, end).matchAll(/(\w+)="([^"]*)"/g)].map((m) => [m[1], m[2]]));
    rows.push({ labels, value: Number(line.slice(end + 2)) });
  }
  return rows;
}
