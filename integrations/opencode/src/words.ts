// Sentences about turns: one line after each, and the explanation of the last cold one. Pure.

import type { Note } from "./prefix_watch.js"
import { type Spent, standing, summed, type Turn } from "./turn.js"

/** Loss classes that a warm turn does not have, and what each means. The others come with every turn. */
const COLD: Record<string, string> = {
  cold: "were seen for the first time. Expected when a session, a sub-agent, a title or a summary begins.",
  prefix_changed: "follow a place that was rewritten: system prompt, tools or history.",
  moved: "are cached on another worker: the worker that served the turn was faster or cheaper.",
  elsewhere: "are cached in another region.",
  not_computed_yet: "stand in a request that was sent shortly before and was still being computed.",
  evicted: "were cached and had to make room. Shorter pauses help, or more cache on the server.",
  forgotten: "were computed before, and the server no longer has them: it decides alone how long it keeps a prompt.",
  salt_changed: "are cached under an older cache salt. The loss ends with the next turns.",
  engine_misreport: "are uncertain: the engine's own count was impossible.",
  unknown: "have no known reason.",
}
const OTHER: Record<string, string> = {
  new: "came with this turn.",
  page_rounding: "are the rest of a page.",
  not_kept: "are the previous answer, whose KV stayed on the engine that decoded it.",
}

/** A turn is cold if it lost more than this share of its prompt, and more than so many tokens. */
const COLD_SHARE = 0.02
const COLD_TOKENS = 128

/** What the requests of a turn come to, in a line or two; undefined where nothing is known. */
export function turnLine(all: readonly Spent[]): string | undefined {
  const { requests, promptTokens, cachedTokens, priceNanousd, listNanousd } = summed(all)
  if (requests < 1) return undefined
  const saved = listNanousd - priceNanousd
  const share = `${percent(cachedTokens, promptTokens)} of ${number(promptTokens)} tokens cached`
  const counted = requests > 1 ? ` in ${number(requests)} requests` : ""
  return `${share}${counted}\n${usd(priceNanousd)}${saved > 0 ? `, ${usd(saved)} saved` : ""}`
}

/** Whether a turn had to compute much that an earlier one could have left in a cache. */
export function isCold(turn: Turn): boolean {
  return lostTokens(turn) >= Math.max(COLD_TOKENS, turn.promptTokens * COLD_SHARE)
}

/** Why the newest cold turn was cold. `all`: newest first; `notes`: what was seen here. */
export function explanation(all: readonly Turn[], notes: readonly Note[]): string {
  const turns = standing(all)
  if (turns.length === 0) return "The proxy knows no turn of this session, or it does not answer."
  const cold = turns.find(isCold)
  if (cold === undefined) {
    return `None of the last ${summed(turns).requests} requests of this session was cold:\n${turnLine(turns)}`
  }
  return [...headline(cold), ...lossLines(cold), ...costLines(cold), ...noteLines(cold, notes)].join("\n")
}

function headline(turn: Turn): string[] {
  const when = turn.settledAtS === undefined ? "" : ` at ${clock(turn.settledAtS * 1000)}`
  const who = [turn.kind, turn.agent && `agent ${turn.agent}`].filter(Boolean).join(", ")
  const counts = `${number(turn.cachedTokens)} of ${number(turn.promptTokens)} prompt tokens were cached`
  return [
    `The last cold request was turn ${turn.number}${when}${who ? ` (${who})` : ""}: ${counts}` +
      ` (${percent(turn.cachedTokens, turn.promptTokens)}), in region ${turn.region}.`,
  ]
}

function lossLines(turn: Turn): string[] {
  const order = Object.entries(turn.loss).sort((one, other) => other[1] - one[1])
  return order.map(([name, tokens]) => `- ${number(tokens)} tokens (${name}) ${COLD[name] ?? OTHER[name] ?? ""}`.trimEnd())
}

function costLines(turn: Turn): string[] {
  return [`It cost ${usd(turn.priceNanousd)}; with nothing cached ${usd(turn.listNanousd)}. Receipt ${turn.id}.`]
}

function noteLines(turn: Turn, notes: readonly Note[]): string[] {
  const endMs = turn.settledAtS === undefined ? Infinity : turn.settledAtS * 1000
  return notes.filter((note) => note.atMs <= endMs).slice(-3).map((note) => `Seen at ${clock(note.atMs)}: ${note.text}`)
}

function lostTokens(turn: Turn): number {
  return Object.keys(COLD).reduce((sum, name) => sum + (turn.loss[name] ?? 0), 0)
}

function percent(part: number, whole: number): string {
  return whole ? `${Math.floor((100 * part) / whole)}%` : "0%"
}

function number(value: number): string {
  return value.toLocaleString("en-US")
}

function usd(nanousd: number): string {
  const amount = nanousd / 1e9
  return `$${amount.toFixed(amount !== 0 && Math.abs(amount) < 0.1 ? 4 : 2)}`
}

function clock(ms: number): string {
  return new Date(ms).toTimeString().slice(0, 8)
}
