// What a proxy says of one turn: from a row of its list, or from the usage in an answer.

export interface Turn {
  readonly id: string
  readonly agent: string | undefined
  readonly kind: string | undefined
  readonly number: number
  readonly region: string
  /** Unix seconds; undefined in an answer, which comes at once. */
  readonly settledAtS: number | undefined
  readonly promptTokens: number
  readonly cachedTokens: number
  readonly priceNanousd: number
  readonly listNanousd: number
  /** Loss class -> tokens. */
  readonly loss: Readonly<Record<string, number>>
}

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
