// What a proxy says of one turn: from a row of its list, or from the usage in an answer.

/** What turns come to. */
export interface Spent {
  readonly requests: number
  readonly promptTokens: number
  readonly cachedTokens: number
  readonly priceNanousd: number
  readonly listNanousd: number
}

export interface Turn extends Spent {
  readonly id: string
  readonly agent: string | undefined
  readonly kind: string | undefined
  readonly number: number
  readonly region: string
  /** Unix seconds; undefined in an answer, which comes at once. */
  readonly settledAtS: number | undefined
  /** Loss class -> tokens. */
  readonly loss: Readonly<Record<string, number>>
}

/** A row that takes a turn back has negative tokens and amounts. The credit of a turn has a row of its own. */
const REQUESTS_OF_OUTCOME: Record<string, number> = { voided: -1, credited: 0 }

/** Ends the id of a row that takes a turn back. */
const VOID = "-void"

/** A row of `GET /v1/usage/receipts`; undefined for what is none. */
export function turnOfRow(row: unknown): Turn | undefined {
  const found = members(row)
  if (typeof found.id !== "string") return undefined
  return {
    id: found.id,
    agent: text(found.agent),
    kind: text(found.kind),
    number: count(found.turn),
    region: text(found.region) ?? "",
    requests: REQUESTS_OF_OUTCOME[text(found.outcome) ?? ""] ?? 1,
    settledAtS: typeof found.settled_at === "number" ? found.settled_at : undefined,
    promptTokens: count(found.prompt_tokens),
    cachedTokens: count(found.cached_tokens),
    priceNanousd: count(found.price_nanousd),
    listNanousd: count(found.list_nanousd),
    loss: losses(found.loss),
  }
}

/** The `usage` of an answer, of chat completions or of Anthropic's messages; undefined where it has no receipt. */
export function turnOfUsage(usage: unknown): Turn | undefined {
  const outer = members(usage)
  const receipt = members(outer.warmroute)
  const row = { ...receipt, cached_tokens: 0, prompt_tokens: 0 }
  const turn = turnOfRow(row)
  if (turn === undefined) return undefined
  const cachedTokens = Object.values(members(receipt.cached)).map(count).reduce((sum, tokens) => sum + tokens, 0)
  const lost = Object.values(turn.loss).reduce((sum, tokens) => sum + tokens, 0)
  return { ...turn, cachedTokens, promptTokens: cachedTokens + lost }
}

/** The turns that count: neither one that was taken back, nor the row that did so. */
export function standing(turns: readonly Turn[]): Turn[] {
  const voids = new Set(turns.filter((turn) => turn.id.endsWith(VOID)).map((turn) => turn.id))
  return turns.filter((turn) => !voids.has(turn.id) && !voids.has(turn.id + VOID))
}

/** What several come to. */
export function summed(all: readonly Spent[]): Spent {
  const total = (of: (each: Spent) => number) => all.reduce((sum, each) => sum + of(each), 0)
  return {
    requests: total((each) => each.requests),
    promptTokens: total((each) => each.promptTokens),
    cachedTokens: total((each) => each.cachedTokens),
    priceNanousd: total((each) => each.priceNanousd),
    listNanousd: total((each) => each.listNanousd),
  }
}

function members(value: unknown): Record<string, unknown> {
  return value && typeof value === "object" ? (value as Record<string, unknown>) : {}
}

function count(value: unknown): number {
  return typeof value === "number" && Number.isFinite(value) ? value : 0
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value ? value : undefined
}

function losses(value: unknown): Record<string, number> {
  return Object.fromEntries(Object.entries(members(value)).map(([name, tokens]) => [name, count(tokens)]))
}
