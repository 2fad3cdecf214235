// The sessions of OpenCode V1 that were seen: who started them, when, and what they have sent since they were shown.
//
// Limit: `MAX_SESSIONS`, those that were seen first go.

import type { PluginInput } from "@opencode-ai/plugin"

import { Bounded } from "./bounded.js"
import { within } from "./guarded.js"
import type { Address, Expected } from "./proxy.js"
import type { Spent } from "./turn.js"

const MAX_SESSIONS = 1_000
const MAX_DEPTH = 10
const GET_TIMEOUT_MS = 1_000

export interface Session {
  readonly id: string
  /** Its `x-session-affinity`: the id, if the user has set no other. */
  key: string
  readonly parent: string | undefined
  title: string | undefined
  readonly directory: string | undefined
  /** Unix milliseconds; undefined where OpenCode did not say. */
  readonly createdMs: number | undefined
  /** Requests since it was counted. */
  requests: number
  /** Since when turns are not counted, in unix milliseconds. */
  sinceMs: number | undefined
  /** Its last count: whether the proxy has answered. */
  counting: Promise<boolean>
  /** What was counted and not shown. */
  readonly unshown: Spent[]
  proxy: Address | undefined
  /** What the proxy knows of how soon it returns, since its last request. */
  expected: Expected | undefined
  /** Agent and model of the user's last message. */
  last: { agent?: string; model?: { providerID: string; modelID: string } }
}

/** What this plugin uses of a session as OpenCode describes it. */
export interface Info {
  id: string
  parentID?: string | undefined
  title?: string
  directory?: string
  time?: { created?: number }
}

export class Sessions {
  readonly #sessions = new Bounded<string, Session>(MAX_SESSIONS)

  constructor(private readonly client: PluginInput["client"]) {}

  /** A session that OpenCode has told of. */
  created(info: Info): Session {
    const found = this.#sessions.get(info.id)
    if (found !== undefined) return found
    const createdMs = info.time?.created
    const { id, parentID: parent, title, directory } = info
    const sent = { requests: 0, sinceMs: undefined, counting: Promise.resolve(true), unshown: [] }
    const known = { proxy: undefined, expected: undefined, last: {} }
    const made: Session = { id, key: id, parent, title, directory, createdMs, ...sent, ...known }
    this.#sessions.set(info.id, made)
    return made
  }

  /** A session has another title. One that was not seen is looked up when it is used. */
  updated(info: Info): void {
    const session = this.#sessions.get(info.id)
    if (session !== undefined) session.title = info.title
  }

  /** A session that may be older than this process. Where OpenCode does not answer in time, one without a parent. */
  async of(id: string): Promise<Session> {
    const found = this.#sessions.get(id)
    if (found !== undefined) return found
    const answer = await within(GET_TIMEOUT_MS, this.client.session.get({ path: { id } }))
    return this.created(answer?.data ?? { id })
  }

  /** The session itself and all that it has started, directly or not. */
  family(id: string): Session[] {
    return this.#sessions.values().filter((session) => session.id === id || this.#root(session) === id)
  }

  #root(session: Session): string {
    let found = session
    for (let depth = 0; depth < MAX_DEPTH && found.parent !== undefined; depth++) {
      const parent = this.#sessions.get(found.parent)
      if (parent === undefined) return found.parent
      found = parent
    }
    return found.id
  }
}
