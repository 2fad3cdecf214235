// Asks a proxy for the turns of a session, with the key that the provider has. Whatever goes wrong, the answer is empty.

import type { Turn } from "./turn.js"
import { turnOfRow } from "./turn.js"

const ASK_TIMEOUT_MS = 3_000

/** The proxy lists no more at once. */
export const MAX_TURNS = 200

export interface Address {
  readonly baseURL: string
  readonly apiKey: string | undefined
}

/** The newest turns of a session, newest first. */
export async function turnsOf(proxy: Address, session: string, limit: number): Promise<Turn[]> {
  try {
    const url = `${proxy.baseURL.replace(/\/+$/, "")}/usage/receipts?limit=${Math.min(Math.max(limit, 1), MAX_TURNS)}`
    const headers: Record<string, string> = { "x-session-affinity": session }
    if (proxy.apiKey) headers.authorization = `Bearer ${proxy.apiKey}`
    const answer = await fetch(url, { headers, redirect: "error", signal: AbortSignal.timeout(ASK_TIMEOUT_MS) })
    if (!answer.ok) return []
    const { data } = (await answer.json()) as { data?: unknown }
    return Array.isArray(data) ? data.map(turnOfRow).filter((turn) => turn !== undefined) : []
  } catch {
    return []
  }
}
