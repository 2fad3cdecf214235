// The hooks of V2 against its types as they are mirrored in src/v2_types.ts, and the headers that its source sends
// (anomalyco/opencode, packages/core/src/session/model-request.ts). V2 itself is not run.

import assert from "node:assert/strict"
import { test } from "node:test"

import plugin from "../src/index.js"
import tui from "../src/tui.js"
import type { CommandDefinition, Context, RequestKind, SessionHooks, SessionInfo } from "../src/v2_types.js"

const CREATED_MS = new Date(2026, 10, 23, 12).getTime()
const MODEL = { providerID: "warmroute", id: "kimi-k2.5" }
const SESSIONS: Record<string, SessionInfo> = {
  ses_main: { id: "ses_main", time: { created: CREATED_MS } },
  ses_one: { id: "ses_one", parentID: "ses_main" },
  ses_two: { id: "ses_two", parentID: "ses_main" },
  ses_named: { id: "ses_named", title: "Fix the tests", directory: "/src/shop" },
}

/** What V2 sends by itself: a sub-agent has its parent's affinity. */
const headersOf = (id: string): Record<string, string> => ({
  "x-opencode-session-id": id,
  "x-session-affinity": "ses_main",
  "X-Session-Id": "ses_main",
  ...(id === "ses_main" ? {} : { "x-opencode-parent-session-id": "ses_main", "x-parent-session-id": "ses_main" }),
})

class Host {
  readonly hooks = new Map<string, (event: never) => Promise<void> | void>()
  readonly commands: CommandDefinition[] = []
  readonly said: Array<{ message: string; variant: string }> = []
  #ended: (value: { type: string; data: unknown }) => void = () => {}
  readonly #events = new Promise<{ type: string; data: unknown }>((resolve) => (this.#ended = resolve))

  context(options: unknown, lacking: string[] = []): Context {
    const host = this
    const made = {
      options,
      session: {
        hook: async (name: string, callback: (event: never) => void) => host.hooks.set(name, callback),
        get: async ({ sessionID }: { sessionID: string }) => SESSIONS[sessionID] ?? Promise.reject(new Error("unknown")),
      },
      command: { transform: async (edit: (editor: object) => void) => edit({ add: (one: CommandDefinition) => host.commands.push(one) }) },
      rpc: { register: async () => ({ events: { emit: async (_name: string, said: never) => host.said.push(said) } }) },
      event: {
        subscribe: () => ({
          async *[Symbol.asyncIterator]() {
            yield await host.#events
          },
        }),
      },
    }
    return Object.fromEntries(Object.entries(made).filter(([name]) => !lacking.includes(name))) as unknown as Context
  }

  async call<Name extends keyof SessionHooks>(name: Name, event: SessionHooks[Name]): Promise<SessionHooks[Name]> {
    await this.hooks.get(name)?.(event as never)
    return event
  }

  ended(sessionID: string): void {
    this.#ended({ type: "session.execution.succeeded", data: { sessionID } })
  }
}

const scope = (sessionID: string, agent: string, kind: RequestKind) => ({ sessionID, agent, kind, model: MODEL })

test("each request says who sends it and what for, beside V2's own headers", async () => {
  const host = new Host()
  await plugin.setup(host.context({}))
  const cases: Array<[string, string, RequestKind, string | undefined]> = [
    ["ses_main", "build", "primary", "main"],
    ["ses_main", "title", "title", "title"],
    ["ses_main", "build", "compaction", "compaction"],
    ["ses_main", "build", "generate", undefined],
    ["ses_one", "explore", "primary", "sub"],
    ["ses_two", "explore", "primary", "sub"],
  ]
  for (const [session, agent, kind, wanted] of cases) {
    const { headers } = await host.call("model.request", { ...scope(session, agent, kind), headers: headersOf(session) })
    const added = { "x-warmroute-agent": agent, ...(wanted && { "x-warmroute-kind": wanted }) }
    assert.deepEqual(headers, { ...headersOf(session), ...added })
  }
})

test("where V2 sends no headers they are all there", async () => {
  const host = new Host()
  await plugin.setup(host.context({}))
  const { headers } = await host.call("model.request", { ...scope("ses_one", "explore", "primary"), headers: {} })
  assert.deepEqual(headers, {
    "x-opencode-session-id": "ses_one",
    "x-parent-session-id": "ses_main",
    "x-session-affinity": "ses_one",
    "x-warmroute-agent": "explore",
    "x-warmroute-kind": "sub",
  })
})

test("a session has the name that a person knows", async () => {
  const host = new Host()
  await plugin.setup(host.context({}))
  const { headers } = await host.call("model.request", { ...scope("ses_named", "build", "primary"), headers: {} })
  assert.equal(headers["x-warmroute-session-name"], "Fix the tests")
})

const answer = (id: string, loss: Record<string, number>) => {
  const warmroute = { id, turn: 1, region: "east", cached: { device: 900, host: 0, storage: 0 }, loss, price_nanousd: 1_000_000, list_nanousd: 2_000_000 }
  return new Response(`data: ${JSON.stringify({ usage: { warmroute } })}\n\n`, { headers: { "content-type": "text/event-stream" } })
}

test("receipts are read from answers, shown at the end, and explained", async () => {
  const host = new Host()
  await plugin.setup(host.context({}))
  for (const [session, loss] of [["ses_main", { new: 100 }], ["ses_one", { cold: 100_000 }]] as const) {
    const event = { ...scope(session, "build", "primary"), response: answer(`wr-${session}`, loss) }
    await (await host.call("http.response", event)).response.text()
  }
  host.ended("ses_main")
  while (host.said.length === 0) await new Promise((resolve) => setTimeout(resolve, 5))
  assert.match(host.said[0]?.message ?? "", /^1% of 101,900 tokens cached in 2 requests\n\$0\.0020, \$0\.0020 saved$/)
  await host.commands[0]?.execute({ sessionID: "ses_main" })
  assert.match(host.said[1]?.message ?? "", /\(sub, agent build\): 900 of 100,900 .* Receipt wr-ses_one\./s)
})

test("the line counts more requests than are kept for the explanation", async () => {
  const host = new Host()
  await plugin.setup(host.context({}))
  for (let sent = 0; sent < 120; sent++) {
    const event = { ...scope("ses_main", "build", "primary"), response: answer(`wr-${sent}`, { new: 100 }) }
    await (await host.call("http.response", event)).response.text()
  }
  host.ended("ses_main")
  while (host.said.length === 0) await new Promise((resolve) => setTimeout(resolve, 5))
  assert.match(host.said[0]?.message ?? "", /cached in 120 requests\n\$0\.12, /)
})

test("the context is watched and frozen", async () => {
  const host = new Host()
  await plugin.setup(host.context({ freezeDate: true }))
  const context = (agents: string, tools: string[]) => ({
    ...scope("ses_main", "build", "primary"),
    system: [
      { type: "text" as const, text: "You are OpenCode." },
      { type: "text" as const, text: `Today's date: Tue Nov 24 2026\nInstructions from: /p/AGENTS.md\n${agents}` },
    ],
    tools: Object.fromEntries(tools.map((name) => [name, { description: name, input: {} }])),
  })
  const { system } = await host.call("context", context("one", ["bash", "read"]))
  assert.match(system[1]?.text ?? "", /^Today's date: Mon Nov 23 2026$/m)
  await host.call("context", context("two", ["bash"]))
  const messages = host.said.map((said) => said.message)
  assert.equal(messages.length, 2)
  assert.match(messages[0] ?? "", /^p\/AGENTS\.md has changed/)
  assert.match(messages[1] ?? "", /"read" was removed/)
})

test("nothing fails where a version lacks a part, or gives something else", async () => {
  for (const lacking of [["rpc"], ["command"], ["event"], ["session"], ["rpc", "command", "event", "session"]]) {
    const host = new Host()
    ;(await plugin.setup(host.context(undefined, lacking)))()
    for (const callback of host.hooks.values()) {
      await callback(undefined as never)
      await callback({ model: MODEL, sessionID: "ses_unknown" } as never)
    }
    for (const command of host.commands) await command.execute({ sessionID: "ses_unknown" })
  }
})

test("the terminal part shows what the server's part says", () => {
  const shown: unknown[] = []
  let handle: (payload: unknown) => void = () => {}
  const on = (_name: string, handler: typeof handle) => ((handle = handler), () => {})
  const context = { client: { rpc: () => ({ events: { on } }) }, ui: { toast: { show: (input: unknown) => shown.push(input) } } }
  assert.equal(typeof tui.setup(context as never), "function")
  const said = { message: "99%", variant: "info", duration: 5 }
  for (const payload of [said, { data: said }, undefined, {}, 7]) handle(payload)
  assert.deepEqual(shown, [{ title: "warmroute", ...said }, { title: "warmroute", ...said }])
  assert.equal(tui.setup({} as never), undefined)
})
