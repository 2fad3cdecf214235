// Asks a proxy for the turns of a session, and says how soon the session returns, with the key that the provider has.
// Whatever goes wrong, there is no error.

import type { Turn } from "./turn.js"
import { turnOfRow } from "./turn.js"

const ASK_TIMEOUT_MS = 3_000

/** The proxy lists no more at once. */
export const MAX_TURNS = 200

export interface Address {
  readonly baseURL: string
  readonly apiKey: string | undefined
}

/** The newest turns of a session, newest first: of those that ended since a time, if that is given. Undefined where
 * the proxy does not answer. */
export async function turnsOf(proxy: Address, session: string, limit: number, sinceMs?: number): Promise<Turn[] | undefined> {
  try {
    // As a duration, since the proxy has a clock of its own.
    const since = sinceMs === undefined ? "" : `&since=${Math.floor((Date.now() - sinceMs) / 1_000) + 1}s`
    const path = `usage/receipts?limit=${limit}${since}`
    const answer = await asked(proxy, path, "GET", { "x-session-affinity": session })
    if (!answer.ok) return undefined
    const { data } = (await answer.json()) as { data?: unknown }
    return Array.isArray(data) ? data.map(turnOfRow).filter((turn) => turn !== undefined) : undefined
  } catch {
    return undefined
  }
}

/** What follows for a session: it is over, or waits for a person. */
export type Expected = "end" | "human"

/** Says how soon a session returns, so that the proxy keeps the KV of those that do. */
export async function expect(proxy: Address, session: string, expected: Expected): Promise<void> {
  try {
    const headers = { "x-session-affinity": session, "x-warmroute-expect": expected }
    await (await asked(proxy, "sessions/expect", "POST", headers)).body?.cancel()
  } catch {
    return // a hint
  }
}

function asked(proxy: Address, path: string, method: string, headers: Record<string, string>): Promise<Response> {
  const key: Record<string, string> = proxy.apiKey ? { authorization: `Bearer ${proxy.apiKey}` } : {}
  const url = `${proxy.baseURL.replace(/\/+$/, "")}/${path}`
  const signal = AbortSignal.timeout(ASK_TIMEOUT_MS)
  return fetch(url, { method, headers: { ...headers, ...key }, redirect: "error", signal })
}
