// The hooks of OpenCode V2. It tells what each request is for, and shows answers, so nothing is asked from the proxy.

import { CHANNEL, type Said, SAID } from "./channel.js"
import { Bounded } from "./bounded.js"
import { frozen } from "./date_line.js"
import { guarded, within } from "./guarded.js"
import { identityHeaders, type Kind } from "./identity.js"
import { type Options, readOptions } from "./options.js"
import { PrefixWatch } from "./prefix_watch.js"
import { sessionName } from "./session_name.js"
import { type Spent, summed, type Turn } from "./turn.js"
import { tapped } from "./usage_tap.js"
import type { Context, ContextEvent, HttpResponseEvent, ModelRequestEvent, RequestKind, SessionInfo } from "./v2_types.js"
import { explanation, turnLine } from "./words.js"

const COMMAND = "warmroute"
const MAX_SESSIONS = 500
const MAX_KEPT_TURNS = 50
const MAX_DEPTH = 10
const GET_TIMEOUT_MS = 1_000
const SHOWN_MS = 5_000
const WARNED_MS = 10_000
const EXPLAINED_MS = 30_000
const ENDED = /^session\.execution\.(succeeded|failed|interrupted)$/

/** V2's function of a plugin. Returns what ends it. */
export async function setup(context: Context): Promise<() => void> {
  const { options, problems } = readOptions(context.options)
  const plugin = new V2(context, options)
  await plugin.start()
  for (const problem of problems) plugin.warn(problem)
  return () => plugin.stop()
}

class V2 {
  readonly #watch = new PrefixWatch()
  readonly #infos = new Bounded<string, SessionInfo>(MAX_SESSIONS)
  /** The turns of a session and of all that it has started, newest first, by the id of the first of them. */
  readonly #turns = new Bounded<string, Turn[]>(MAX_SESSIONS)
  /** What those come to that were not shown. */
  readonly #unshown = new Bounded<string, Spent[]>(MAX_SESSIONS)
  readonly #stopped = new AbortController()
  #emit: (said: Said) => Promise<void> = async () => {}

  constructor(
    private readonly context: Context,
    private readonly options: Options,
  ) {}

  async start(): Promise<void> {
    const { session, command, rpc } = this.context
    const steps: Array<() => Promise<unknown>> = [
      () => session.hook("context", guarded(this.#context, ignored)),
      () => session.hook("model.request", guarded(this.#request, ignored)),
      () => session.hook("http.response", guarded(this.#response, ignored)),
      () => command.transform((editor) => editor.add(this.#command())),
      async () => {
        const { events } = await rpc.register(CHANNEL, {})
        this.#emit = (said) => events.emit(SAID, said)
      },
    ]
    for (const step of steps) await guarded(step, ignored)() // what a version of V2 lacks is left out
    void guarded(this.#listen, ignored)()
  }

  stop(): void {
    this.#stopped.abort()
  }

  warn(message: string): void {
    if (this.options.warn) this.#say({ message, variant: "warning", duration: WARNED_MS })
  }

  #context = async (event: ContextEvent): Promise<void> => {
    if (!this.#isOurs(event.model.providerID)) return
    if (this.options.freezeDate) {
      const createdMs = (await this.#info(event.sessionID)).time?.created
      if (createdMs !== undefined) for (const part of event.system) part.text = frozen(part.text, createdMs)
    }
    const system = event.system.map((part) => part.text).join("\n")
    const warnings = [
      ...this.#watch.system(event.sessionID, system),
      ...this.#watch.toolSet(event.sessionID, event.agent, event.model.id, event.tools),
    ]
    for (const warning of warnings) this.warn(warning)
  }

  #request = async (event: ModelRequestEvent): Promise<void> => {
    if (!this.#isOurs(event.model.providerID)) return
    const info = await this.#info(event.sessionID)
    const parent = info.parentID
    const kind = kindOf(event.kind, parent)
    const name = sessionName(info, this.options.name)
    const sender = { session: event.sessionID, agent: event.agent, parent, kind, name }
    const given = new Set(Object.keys(event.headers).map((name) => name.toLowerCase()))
    const headers = { ...identityHeaders(sender), "x-opencode-session-id": event.sessionID }
    for (const [name, value] of Object.entries(headers)) {
      if (!given.has(name)) event.headers[name] = value // V2's own affinity of a sub-agent is its parent's
    }
  }

  #response = async (event: HttpResponseEvent): Promise<void> => {
    if (!this.#isOurs(event.model.providerID)) return
    const root = await this.#root(event.sessionID)
    const kind = kindOf(event.kind, (await this.#info(event.sessionID)).parentID)
    event.response = tapped(event.response, (turn) => {
      const who = { agent: turn.agent ?? event.agent, kind: turn.kind ?? kind }
      this.#keep(root, { ...turn, ...who, settledAtS: Date.now() / 1000 })
    })
  }

  #command() {
    const execute = async ({ sessionID }: { sessionID: string }): Promise<void> => {
      const root = await this.#root(sessionID)
      const message = explanation(this.#turns.get(root) ?? [], this.#watch.notesOf([root, sessionID]))
      this.#say({ message, variant: "info", duration: EXPLAINED_MS })
    }
    return { name: COMMAND, description: "explain the last cold turn of this session", execute: guarded(execute, ignored) }
  }

  #listen = async (): Promise<void> => {
    for await (const event of this.context.event.subscribe({ signal: this.#stopped.signal })) {
      const session = (event.data as { sessionID?: string } | undefined)?.sessionID
      if (ENDED.test(event.type) && session !== undefined) await guarded(this.#ended, ignored)(session)
    }
  }

  #ended = async (session: string): Promise<void> => {
    await this.#refresh(session) // it may have a title now
    if (!this.options.show || (await this.#info(session)).parentID !== undefined) return
    const line = turnLine(this.#unshown.get(session) ?? [])
    this.#unshown.set(session, [])
    if (line !== undefined) this.#say({ message: line, variant: "info", duration: SHOWN_MS })
  }

  #keep(root: string, turn: Turn): void {
    this.#turns.set(root, [turn, ...(this.#turns.get(root) ?? [])].slice(0, MAX_KEPT_TURNS))
    this.#unshown.set(root, [summed([turn, ...(this.#unshown.get(root) ?? [])])])
  }

  async #info(id: string): Promise<SessionInfo> {
    return this.#infos.get(id) ?? this.#refresh(id)
  }

  async #refresh(id: string): Promise<SessionInfo> {
    const found = await within(GET_TIMEOUT_MS, this.context.session.get({ sessionID: id }))
    if (found !== undefined) this.#infos.set(id, found)
    return found ?? this.#infos.get(id) ?? { id }
  }

  async #root(id: string): Promise<string> {
    let found = await this.#info(id)
    for (let depth = 0; depth < MAX_DEPTH && found.parentID !== undefined; depth++) found = await this.#info(found.parentID)
    return found.id
  }

  #isOurs(provider: string): boolean {
    return this.options.providers.includes(provider)
  }

  #say(said: Said): void {
    this.#emit(said).catch(ignored)
  }
}

function kindOf(kind: RequestKind, parent: string | undefined): Kind | undefined {
  if (kind === "title" || kind === "compaction") return kind
  if (kind === "generate") return undefined
  return parent === undefined ? "main" : "sub"
}

function ignored(): void {}
