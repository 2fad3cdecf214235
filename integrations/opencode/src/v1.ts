// The hooks of OpenCode V1, by the types of @opencode-ai/plugin 1.18.33.
//
// For one request OpenCode calls `tool.definition` for each tool, `experimental.chat.system.transform`, `chat.params` and
// `chat.headers`, titles, summaries and sub-agents included. It does not show answers to plugins, so what was cached is
// asked from the proxy when the session is idle again.

import type { Hooks, PluginInput } from "@opencode-ai/plugin"

import { Bounded } from "./bounded.js"
import { frozen } from "./date_line.js"
import { guarded } from "./guarded.js"
import { identityHeaders, kindOf } from "./identity.js"
import { type Options, readOptions } from "./options.js"
import { PrefixWatch } from "./prefix_watch.js"
import { type Address, expect, type Expected, MAX_TURNS, turnsOf } from "./proxy.js"
import { type Spent, standing, summed, type Turn } from "./turn.js"
import { sessionName } from "./session_name.js"
import { type Info, type Session, Sessions } from "./v1_sessions.js"
import { explanation, turnLine } from "./words.js"

export const COMMAND = "warmroute"
const DESCRIPTION = "explain the last cold turn of this session"
const COMPATIBLE = "@ai-sdk/openai-compatible"
const EXPLAINED_TURNS = 50
/** A turn of more requests is asked for in parts: each may have a second row, and the proxy lists `MAX_TURNS`. */
const COUNTED_REQUESTS = MAX_TURNS / 2
const MAX_FAMILY = 20
const MAX_WARNED = 3
const MAX_COUNTED_TURNS = 2_000
const SHOWN_MS = 5_000
const WARNED_MS = 10_000

/** The type of a hook that is there. */
type Hook<Name extends keyof Hooks> = NonNullable<Hooks[Name]>
type Request = Parameters<Hook<"chat.headers">>[0]

/** Ends a command that was carried out here, so that OpenCode sends nothing to the model. */
class CarriedOut extends Error {
  constructor() {
    super(`/${COMMAND} has been carried out`)
    this.stack = this.message // no fault: OpenCode's log needs no trace
  }
}

/** V1's function of a plugin. */
export async function server(input: PluginInput, given?: unknown): Promise<Hooks> {
  const { options, problems } = readOptions(given)
  const plugin = new V1(input.client, options, input.directory)
  for (const problem of problems) plugin.warn(problem)
  return plugin.hooks()
}

class V1 {
  readonly #watch = new PrefixWatch()
  readonly #sessions: Sessions
  readonly #countedTurns = new Bounded<string, true>(MAX_COUNTED_TURNS)
  /** Warnings that are on the screen. */
  #warned: Array<{ message: string; untilMs: number }> = []
  /** Warnings from before the first request, when no screen may be there; then undefined. */
  #early: string[] | undefined = []

  constructor(
    private readonly client: PluginInput["client"],
    private readonly options: Options,
    private readonly directory: string | undefined,
  ) {
    this.#sessions = new Sessions(client)
  }

  hooks(): Hooks {
    const guard = <Given extends (...given: never[]) => unknown>(hook: Given) => guarded(hook, this.#failed)
    const hooks: Hooks = {
      config: guard(this.#config),
      event: guard(this.#event),
      "chat.message": guard(this.#message),
      "chat.params": guard(this.#params),
      "chat.headers": guard(this.#headers),
      "command.execute.before": this.#command, // which ends by an error, on purpose
      "experimental.chat.system.transform": guard(this.#system),
    }
    if (this.options.warn) hooks["tool.definition"] = guard(this.#tool)
    return hooks
  }

  warn(message: string): void {
    if (!this.options.warn || this.#early?.push(message) !== undefined) return
    const nowMs = Date.now()
    this.#warned = [...this.#warned.filter((each) => each.untilMs > nowMs), { message, untilMs: nowMs + WARNED_MS }]
    this.#warned.splice(0, this.#warned.length - MAX_WARNED)
    this.#log("warn", message)
    this.#toast("warning", this.#warned.map((each) => each.message).join("\n"), WARNED_MS)
  }

  /** Shows a line, above the warnings that are on the screen: OpenCode shows one toast at a time. */
  #shown(line: string): void {
    const warned = this.#warned.filter((each) => each.untilMs > Date.now()).map((each) => each.message)
    this.#log("info", line)
    if (warned.length === 0) this.#toast("info", line, SHOWN_MS)
    else this.#toast("warning", [line, ...warned].join("\n"), WARNED_MS)
  }

  #config: Hook<"config"> = async (config) => {
    const warnings = this.#watch.configured(config as Parameters<PrefixWatch["configured"]>[0])
    for (const warning of warnings) this.warn(warning)
    config.command = { [COMMAND]: { template: DESCRIPTION, description: DESCRIPTION }, ...config.command }
  }

  #event = async ({ event }: { event: { type: string; properties?: unknown } }): Promise<void> => {
    const properties = (event.properties ?? {}) as { sessionID?: string; server?: string; info?: Info }
    if (event.type === "session.created" && properties.info) this.#sessions.created(properties.info)
    if (event.type === "session.updated" && properties.info) this.#sessions.updated(properties.info)
    if (event.type === "session.idle" && properties.sessionID) {
      void this.#idle(properties.sessionID).catch(this.#failed)
      void this.#waits(properties.sessionID).catch(this.#failed)
    }
    if (event.type === "session.deleted" && properties.info) this.#ended(properties.info.id)
    if (event.type === "mcp.tools.changed" && this.#early === undefined) {
      const occasion = `${properties.server}\0${Date.now()}`
      for (const warning of this.#watch.toolsChanged(`those of ${properties.server}`, occasion)) this.warn(warning)
    }
  }

  #message: Hook<"chat.message"> = async (input) => {
    const session = await this.#sessions.of(input.sessionID)
    session.last = { ...(input.agent && { agent: input.agent }), ...(input.model && { model: input.model }) }
  }

  #tool: Hook<"tool.definition"> = async (input, output) => {
    for (const warning of this.#watch.tool(input.toolID, output.description, output.parameters)) this.warn(warning)
  }

  #system: Hook<"experimental.chat.system.transform"> = async (input, output) => {
    const id = input.sessionID
    if (id === undefined || !this.#isOurs(input.model.providerID)) return
    if (this.options.freezeDate) {
      const { createdMs } = await this.#sessions.of(id)
      if (createdMs !== undefined) output.system.splice(0, Infinity, ...output.system.map((text) => frozen(text, createdMs)))
    }
    for (const warning of this.#watch.system(id, output.system.join("\n"))) this.warn(warning)
  }

  #params: Hook<"chat.params"> = async (input, output) => {
    if (!this.#isOurs(input.model.providerID) || input.model.api.npm !== COMPATIBLE) return
    output.options.prompt_cache_key ??= input.sessionID
  }

  #headers: Hook<"chat.headers"> = async (input, output) => {
    if (!this.#isOurs(input.model.providerID)) return
    const session = await this.#sessions.of(input.sessionID)
    const kind = kindOf(input.agent, session.parent)
    const name = sessionName({ title: session.title, directory: session.directory ?? this.directory }, this.options.name)
    const sender = { session: session.id, agent: input.agent, parent: session.parent, kind, name }
    const own = new Map(Object.entries(input.model.headers ?? {}).map(([name, value]) => [name.toLowerCase(), value]))
    for (const [name, value] of Object.entries(identityHeaders(sender))) {
      if (!own.has(name)) output.headers[name] = value
    }
    session.key = own.get("x-session-affinity") ?? session.id
    session.requests += 1
    session.sinceMs ??= Date.now()
    session.proxy = addressOf(input)
    if (this.options.show && session.requests >= COUNTED_REQUESTS) void this.#count(session)
    session.expected = undefined
    const early = this.#early ?? []
    this.#early = undefined
    for (const message of early) this.warn(message)
  }

  #command: Hook<"command.execute.before"> = async (input) => {
    if (input.command !== COMMAND) return
    const text = await this.#explained(input.sessionID).catch((error: unknown) => {
      this.#failed(error)
      return "The last cold turn cannot be explained: the plugin has failed."
    })
    const { last } = await this.#sessions.of(input.sessionID)
    // `ignored`: shown to the user, never sent to a model.
    const parts = [{ type: "text" as const, text, ignored: true }]
    await this.client.session
      .prompt({ path: { id: input.sessionID }, body: { noReply: true, parts, ...last } })
      .catch(this.#failed)
    throw new CarriedOut()
  }

  /** Shows what the session and its sub-agents have sent since they were shown last. */
  async #idle(id: string): Promise<void> {
    const session = await this.#sessions.of(id)
    if (!this.options.show || session.parent !== undefined) return
    const spent: Spent[] = []
    const silent = new Set<string | undefined>() // proxies that do not answer
    for (const each of this.#sessions.family(id)) {
      const at = each.proxy?.baseURL
      if (!silent.has(at) && !(await this.#count(each))) silent.add(at)
      spent.push(...each.unshown.splice(0))
    }
    const line = turnLine(spent)
    if (line !== undefined) this.#shown(line)
  }

  /** Counts what a session has sent, after the count that is under way. Returns whether its proxy answers. */
  #count(session: Session): Promise<boolean> {
    session.counting = session.counting.then(() => this.#counted(session))
    return session.counting
  }

  async #counted(session: Session): Promise<boolean> {
    const { proxy, sinceMs, requests } = session
    if (proxy === undefined || sinceMs === undefined || requests === 0) return true
    session.requests = 0
    session.sinceMs = Date.now() // requests that are under way are counted with the next ones
    const found = await turnsOf(proxy, session.key, MAX_TURNS, sinceMs)
    if (found === undefined) {
      session.sinceMs = sinceMs
      session.requests ||= 1 // so that it is asked for again
      return false
    }
    const counted = standing(found).filter((turn) => !this.#countedTurns.has(turn.id))
    for (const turn of counted) this.#countedTurns.set(turn.id, true)
    session.unshown.push(summed(counted))
    return true
  }

  /** Says that a session waits for the user. A sub-agent that is idle has given its answer, and is over. */
  async #waits(id: string): Promise<void> {
    const session = await this.#sessions.of(id)
    this.#expect(session, session.parent === undefined ? "human" : "end")
  }

  /** Says that a session that was deleted is over, and so are those that it has started. */
  #ended(id: string): void {
    for (const session of this.#sessions.family(id)) this.#expect(session, "end")
  }

  /** Says it once for each turn, and nothing of a session that has sent nothing, or whose key others may have. */
  #expect(session: Session, expected: Expected): void {
    if (session.proxy === undefined || session.key !== session.id) return
    if (session.expected === "end" || session.expected === expected) return
    session.expected = expected
    void expect(session.proxy, session.id, expected)
  }

  async #explained(id: string): Promise<string> {
    const turns: Turn[] = []
    const family = this.#sessions.family(id)
    const proxy = family.find((each) => each.proxy !== undefined)?.proxy
    if (proxy === undefined) return "No request of this session has gone to a warmroute proxy since OpenCode started."
    const proxies = new Map(family.slice(-MAX_FAMILY).map((each) => [each.key, each.proxy ?? proxy]))
    for (const [key, address] of proxies) turns.push(...((await turnsOf(address, key, EXPLAINED_TURNS)) ?? []))
    turns.sort((one, other) => (other.settledAtS ?? 0) - (one.settledAtS ?? 0))
    return explanation(turns, this.#watch.notesOf(family.map((each) => each.id)))
  }

  #isOurs(provider: string): boolean {
    return this.options.providers.includes(provider)
  }

  #toast(variant: "info" | "warning", message: string, duration: number): void {
    this.client.tui.showToast({ body: { title: "warmroute", message, variant, duration } }).catch(ignored)
  }

  #log(level: "debug" | "info" | "warn", message: string): void {
    this.client.app.log({ body: { service: "warmroute", level, message } }).catch(ignored)
  }

  #failed = (error: unknown): void => {
    this.#log("debug", `the plugin has failed: ${error instanceof Error ? error.message : "unknown"}`)
  }
}

/** Where the provider of a request is. OpenCode gives the provider itself, which its type calls a context. */
function addressOf(input: Request): Address | undefined {
  const provider = input.provider as { key?: unknown; options?: { baseURL?: unknown; apiKey?: unknown } }
  const baseURL = provider.options?.baseURL ?? input.model.api.url
  const apiKey = provider.options?.apiKey ?? provider.key
  if (typeof baseURL !== "string" || !baseURL) return undefined
  return { baseURL, apiKey: typeof apiKey === "string" ? apiKey : undefined }
}

function ignored(): void {}
