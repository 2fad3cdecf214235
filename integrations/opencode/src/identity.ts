// Who sends a request and what for, as the headers that a proxy reads. Pure.

export type Kind = "main" | "sub" | "title" | "compaction"

export interface Sender {
  readonly session: string
  readonly agent: string
  readonly parent?: string | undefined
  readonly kind?: Kind | undefined
  /** What people know the session by. */
  readonly name?: string | undefined
}

/** The proxy shows names of agents up to this length. */
const MAX_AGENT_BYTES = 64

/** The hidden agents of OpenCode V1 that send something else than a turn of a conversation. */
const KIND_OF_AGENT: Record<string, Kind> = { title: "title", compaction: "compaction" }

/** What a request of V1 is for, which V1 does not say. */
export function kindOf(agent: string, parent: string | undefined): Kind {
  return KIND_OF_AGENT[agent] ?? (parent ? "sub" : "main")
}

/** The headers for a request. Names and values can be sent as they are, whatever the agent is called. */
export function identityHeaders(sender: Sender): Record<string, string> {
  const headers: Record<string, string> = { "x-session-affinity": sender.session }
  if (sender.parent) headers["x-parent-session-id"] = sender.parent
  const agent = headerText(sender.agent)
  if (agent && agent.length <= MAX_AGENT_BYTES) headers["x-warmroute-agent"] = agent
  if (sender.kind) headers["x-warmroute-kind"] = sender.kind
  if (sender.name) headers["x-warmroute-session-name"] = sender.name
  return headers
}

/** A name as it is where any header can hold it, else percent-encoded. */
function headerText(text: string): string {
  const wellFormed = Buffer.from(text.trim()).toString()
  return /^[\x20-\x7e]*$/.test(wellFormed) ? wellFormed : encodeURIComponent(wellFormed)
}
