// The hooks of V1 in the order in which OpenCode calls them. Its client is made up here, so that it can fail and hang:
// the real one is in tests/field/programs/test_opencode_plugin.py.

import assert from "node:assert/strict"
import { createServer } from "node:http"
import type { AddressInfo } from "node:net"
import { test } from "node:test"

import type { Hooks, PluginInput } from "@opencode-ai/plugin"

import plugin from "../src/index.js"

const CREATED_MS = new Date(2026, 10, 23, 12).getTime()
const SYSTEM = "You are OpenCode.\n<env>\n  Today's date: Tue Nov 24 2026\n</env>"
const MODEL = { providerID: "warmroute", id: "kimi-k2.5", api: { npm: "@ai-sdk/openai-compatible", url: "" }, headers: {} }

interface Asked {
  toasts: Array<{ message: string; variant: string }>
  prompts: Array<{ body: { noReply?: boolean; parts: Array<{ text: string; ignored?: boolean }>; agent?: string } }>
}

function client(asked: Asked, get: () => Promise<unknown>): PluginInput["client"] {
  const made = {
    app: { log: async () => ({}) },
    tui: { showToast: async ({ body }: { body: Asked["toasts"][number] }) => asked.toasts.push(body) },
    session: { get, prompt: async (given: Asked["prompts"][number]) => asked.prompts.push(given) },
  }
  return made as unknown as PluginInput["client"]
}

async function started(options?: object, get: () => Promise<unknown> = async () => ({})) {
  const asked: Asked = { toasts: [], prompts: [] }
  const hooks = await plugin.server({ client: client(asked, get) } as PluginInput, options)
  return { hooks, asked }
}

/** What a request of a session would be sent with. */
async function request(hooks: Hooks, sessionID: string, agent = "build", model: object = MODEL, baseURL?: string) {
  const provider = { id: "warmroute", options: { baseURL: baseURL ?? "http://127.0.0.1:9/v1", apiKey: "sk-1" } }
  const input = { sessionID, agent, model, provider, message: {} } as never
  const system = { system: [SYSTEM] }
  const params = { options: {} as Record<string, unknown> }
  const sent = { headers: {} as Record<string, string> }
  await hooks["experimental.chat.system.transform"]?.({ sessionID, model } as never, system)
  await hooks["chat.params"]?.(input, params as never)
  await hooks["chat.headers"]?.(input, sent)
  return { headers: sent.headers, options: params.options, system: system.system }
}

async function created(hooks: Hooks, id: string, parentID?: string): Promise<void> {
  const event = { type: "session.created", properties: { info: { id, parentID, time: { created: CREATED_MS } } } }
  await hooks.event?.({ event } as never)
}

async function until(holds: () => boolean): Promise<void> {
  while (!holds()) await new Promise((resolve) => setTimeout(resolve, 5))
}

test("each request says who sends it and what for", async () => {
  const { hooks } = await started()
  await created(hooks, "ses_main")
  await created(hooks, "ses_sub", "ses_main")
  const cases = [
    ["ses_main", "title", undefined, "title"],
    ["ses_main", "build", undefined, "main"],
    ["ses_sub", "explore", "ses_main", "sub"],
    ["ses_main", "compaction", undefined, "compaction"],
  ] as const
  for (const [session, agent, parent, kind] of cases) {
    const { headers, options } = await request(hooks, session, agent)
    assert.deepEqual(
      [headers["x-session-affinity"], headers["x-warmroute-agent"], headers["x-parent-session-id"], headers["x-warmroute-kind"]],
      [session, agent, parent, kind],
    )
    assert.equal(options.prompt_cache_key, session)
  }
})

test("tools of a server that starts, and of another session's model, change no prompt", async () => {
  const { hooks, asked } = await started()
  const changed = { event: { type: "mcp.tools.changed", properties: { server: "docs" } } } as never
  const define = (toolID: string) =>
    hooks["tool.definition"]?.({ toolID } as never, { description: toolID, parameters: {} } as never)
  await hooks.event?.(changed)
  await define("edit")
  await request(hooks, "ses_1")
  await define("apply_patch")
  assert.equal(asked.toasts.length, 0)
  await hooks.event?.(changed)
  assert.match(asked.toasts[0]?.message ?? "", /those of docs/)
})

test("a session has the name that a person knows, once it has a title", async () => {
  const { hooks } = await started()
  const tell = (type: string, title: string) =>
    hooks.event?.({ event: { type, properties: { info: { id: "ses_1", title, directory: "/src/shop" } } } } as never)
  const name = async () => (await request(hooks, "ses_1")).headers["x-warmroute-session-name"]
  await tell("session.created", "New session - 2026-11-24T10:00:00.000Z")
  assert.equal(await name(), "shop")
  await tell("session.updated", "Fix the tests")
  assert.equal(await name(), "Fix the tests")
  const quiet = await started({ name: "none" }, async () => ({ data: { id: "ses_1", title: "Fix the tests" } }))
  assert.equal((await request(quiet.hooks, "ses_1")).headers["x-warmroute-session-name"], undefined)
})

test("a session of an earlier process is looked up, once", async () => {
  let calls = 0
  const { hooks } = await started({}, async () => (calls++, { data: { id: "ses_old", parentID: "ses_parent", time: {} } }))
  for (let turn = 0; turn < 3; turn++) {
    assert.equal((await request(hooks, "ses_old")).headers["x-warmroute-kind"], "sub")
  }
  assert.equal(calls, 1)
})

test("other providers, and headers and keys that a user has set, are left alone", async () => {
  const { hooks } = await started()
  assert.deepEqual(await request(hooks, "ses_1", "build", { ...MODEL, providerID: "other" }), {
    headers: {},
    options: {},
    system: [SYSTEM],
  })
  const { headers } = await request(hooks, "ses_1", "build", { ...MODEL, headers: { "X-Session-Affinity": "mine" } })
  assert.equal(headers["x-session-affinity"], undefined)
  const anthropic = { ...MODEL, api: { npm: "@ai-sdk/anthropic", url: "" } }
  assert.deepEqual((await request(hooks, "ses_1", "build", anthropic)).options, {})
})

test("the date is frozen where that is asked for", async () => {
  for (const [freezeDate, day] of [[true, "Mon Nov 23"], [false, "Tue Nov 24"]] as const) {
    const { hooks } = await started({ freezeDate })
    await created(hooks, "ses_1")
    assert.match((await request(hooks, "ses_1")).system.join(), new RegExp(`date: ${day} 2026`))
  }
})

test("no hook fails where OpenCode and the proxy do", async () => {
  for (const get of [async () => Promise.reject(new Error("gone")), () => new Promise(() => {})]) {
    const { hooks, asked } = await started({ freezeDate: true }, get)
    const { headers } = await request(hooks, "ses_1")
    assert.equal(headers["x-session-affinity"], "ses_1")
    await hooks.event?.({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } } as never)
    for (const broken of [undefined, null, { event: null }, { event: { type: "session.created" } }]) {
      await hooks.event?.(broken as never)
    }
    await hooks["chat.headers"]?.({} as never, {} as never)
    await hooks["experimental.chat.system.transform"]?.({ sessionID: "s", model: MODEL } as never, {} as never)
    await hooks["tool.definition"]?.({ toolID: "x" } as never, undefined as never)
    await assert.rejects(async () => hooks["command.execute.before"]?.(command("ses_1"), { parts: [] }))
    assert.equal(asked.toasts.length, 0)
  }
})

const command = (sessionID: string) => ({ command: "warmroute", sessionID, arguments: "" })

/** A proxy with these rows, newest first. */
async function proxy(rows: readonly (typeof ROW)[]): Promise<{ baseURL: string; asked: () => number; stop: () => void }> {
  let asked = 0
  const server = createServer(({ method, url }, response) => {
    if (method === "POST") return void response.writeHead(204).end()
    const parameters = new URL(url ?? "", "http://proxy").searchParams
    const sinceS = Date.now() / 1000 - parseInt(parameters.get("since") ?? `${Date.now()}s`)
    const data = rows.filter((row) => row.settled_at >= sinceS).slice(0, Number(parameters.get("limit")))
    response.end(JSON.stringify({ data }), () => asked++)
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  const stop = () => (server.closeAllConnections(), server.close())
  return { baseURL: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`, asked: () => asked, stop }
}

const ROW = {
  id: "wr-1", turn: 1, region: "east", settled_at: 4e9, prompt_tokens: 1_000, cached_tokens: 0, price_nanousd: 600_000,
  list_nanousd: 600_000, loss: { cold: 1_000 }, agent: "build", kind: "main",
}

test("an idle session shows what its requests came to, and the command explains", async () => {
  const { baseURL, stop } = await proxy([ROW])
  const { hooks, asked } = await started()
  await created(hooks, "ses_1")
  await hooks["chat.message"]?.({ sessionID: "ses_1", agent: "plan" }, {} as never)
  await request(hooks, "ses_1", "build", MODEL, baseURL)
  await hooks.event?.({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } } as never)
  await until(() => asked.toasts.length > 0)
  assert.deepEqual(asked.toasts.map((toast) => [toast.variant, toast.message]), [["info", "0% of 1,000 tokens cached\n$0.0006"]])
  await assert.rejects(async () => hooks["command.execute.before"]?.(command("ses_1"), { parts: [] }), /carried out/)
  stop()
  const [prompt] = asked.prompts
  assert.equal(prompt?.body.noReply, true)
  assert.equal(prompt?.body.agent, "plan")
  assert.equal(prompt?.body.parts[0]?.ignored, true)
  assert.match(prompt?.body.parts[0]?.text ?? "", /^The last cold request was turn 1 /)
  await hooks["command.execute.before"]?.({ ...command("ses_1"), command: "other" }, { parts: [] })
})

test("the proxy is told once which sessions wait for the user, and which are over", async () => {
  const heard: string[] = []
  const server = createServer((asked, response) => {
    if (asked.method === "POST") heard.push(`${asked.headers["x-session-affinity"]} ${asked.headers["x-warmroute-expect"]}`)
    response.end('{"data": []}')
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  const baseURL = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
  const { hooks } = await started()
  await created(hooks, "ses_1")
  await created(hooks, "ses_sub", "ses_1")
  await created(hooks, "ses_unused")
  const idle = (sessionID: string) => hooks.event?.({ event: { type: "session.idle", properties: { sessionID } } } as never)
  const deleted = (id: string) => hooks.event?.({ event: { type: "session.deleted", properties: { info: { id } } } } as never)
  for (const session of ["ses_1", "ses_sub"]) await request(hooks, session, "build", MODEL, baseURL)
  await idle("ses_sub")
  await until(() => heard.length === 1)
  await idle("ses_1")
  await idle("ses_1")
  await until(() => heard.length === 2)
  await request(hooks, "ses_1", "build", MODEL, baseURL)
  await idle("ses_1")
  await until(() => heard.length === 3)
  await idle("ses_unused")
  await deleted("ses_unused")
  await deleted("ses_1")
  await until(() => heard.length === 4)
  server.closeAllConnections()
  server.close()
  assert.deepEqual(heard, ["ses_sub end", "ses_1 human", "ses_1 human", "ses_1 end"])
})

test("a session is asked for by the key that the user has set, and nobody is told that it ends", async () => {
  const heard: unknown[] = []
  const server = createServer(({ method, headers }, response) => {
    heard.push([method, headers["x-session-affinity"]])
    response.end(JSON.stringify({ data: [ROW] }))
  })
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  const baseURL = `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
  const { hooks, asked } = await started()
  await request(hooks, "ses_1", "build", { ...MODEL, headers: { "X-Session-Affinity": "mine" } }, baseURL)
  await hooks.event?.({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } } as never)
  await until(() => asked.toasts.length > 0)
  await assert.rejects(async () => hooks["command.execute.before"]?.(command("ses_1"), { parts: [] }), /carried out/)
  server.closeAllConnections()
  server.close()
  assert.deepEqual(heard, [["GET", "mine"], ["GET", "mine"]])
})

test("a turn is shown once, also where a request after it has failed", async () => {
  const { baseURL, asked: asks, stop } = await proxy([ROW])
  const { hooks, asked } = await started()
  for (const sessionID of ["ses_1", "ses_2"]) await created(hooks, sessionID)
  const idle = (sessionID: string) => hooks.event?.({ event: { type: "session.idle", properties: { sessionID } } } as never)
  await request(hooks, "ses_1", "build", MODEL, baseURL)
  await idle("ses_1")
  await until(() => asked.toasts.length > 0)
  await request(hooks, "ses_1", "build", MODEL, baseURL) // of which the proxy knows nothing
  await idle("ses_1")
  await until(() => asks() === 2)
  const other = await proxy([{ ...ROW, id: "wr-2" }])
  await request(hooks, "ses_2", "build", MODEL, other.baseURL)
  await idle("ses_2")
  await until(() => asked.toasts.length > 1)
  stop()
  other.stop()
  assert.equal(asked.toasts.length, 2)
})

test("requests that left no row are asked for once, and a request that ends late is in the next line", async () => {
  const rows: (typeof ROW)[] = []
  const { baseURL, asked: asks, stop } = await proxy(rows)
  const { hooks, asked } = await started()
  await created(hooks, "ses_1")
  const idle = () => hooks.event?.({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } } as never)
  await request(hooks, "ses_1", "title", MODEL, baseURL)
  await idle()
  await until(() => asks() === 1)
  await idle()
  rows.push(ROW)
  await request(hooks, "ses_1", "build", MODEL, baseURL)
  rows.push({ ...ROW, id: "wr-2" })
  await idle()
  await until(() => asked.toasts.length > 0)
  stop()
  assert.equal(asks(), 2)
  assert.match(asked.toasts[0]?.message ?? "", /2,000 tokens cached in 2 requests/)
})

test("the line waits for a count that is under way", async () => {
  const { baseURL, stop } = await proxy([ROW])
  const { hooks, asked } = await started()
  await created(hooks, "ses_1")
  for (let sent = 0; sent < 100; sent++) await request(hooks, "ses_1", "build", MODEL, baseURL)
  await hooks.event?.({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } } as never)
  await until(() => asked.toasts.length > 0)
  stop()
  assert.match(asked.toasts[0]?.message ?? "", /1,000 tokens/)
})

test("the line counts all requests of the turn and their credits, and nothing from before", async () => {
  const old = ["wr-old-1", "wr-old-2"].map((id) => ({ ...ROW, id, settled_at: 1 }))
  const credit = { ...ROW, outcome: "credited", prompt_tokens: 0, price_nanousd: -100_000, list_nanousd: 0 }
  const cases: Array<[number, (id: string) => typeof ROW[], string]> = [
    [3, (id) => (id === "wr-0" ? [{ ...ROW, id }] : []), "0% of 1,000 tokens cached\n$0.0006"],
    [2, (id) => [{ ...credit, id: `${id}-credit` }, { ...ROW, id }], "0% of 2,000 tokens cached in 2 requests\n$0.0010, $0.0002 saved"],
    [250, (id) => [{ ...ROW, id }], "0% of 250,000 tokens cached in 250 requests\n$0.15"],
  ]
  for (const [requests, left, wanted] of cases) {
    const rows = [...old]
    const { baseURL, asked: asks, stop } = await proxy(rows)
    const { hooks, asked } = await started()
    await created(hooks, "ses_1")
    for (let sent = 0; sent < requests; sent++) {
      await request(hooks, "ses_1", "build", MODEL, baseURL)
      await until(() => asks() === Math.floor((sent + 1) / 100))
      rows.unshift(...left(`wr-${sent}`))
    }
    await hooks.event?.({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } } as never)
    await until(() => asked.toasts.length > 0)
    stop()
    assert.equal(asked.toasts[0]?.message, wanted)
  }
})

test("warnings from before the first request are shown with it, and stay beside the next line", async () => {
  const { baseURL, stop } = await proxy([ROW])
  const { hooks, asked } = await started({ wrong: 1 })
  await hooks.config?.({ compaction: { prune: true } } as never)
  assert.equal(asked.toasts.length, 0)
  await request(hooks, "ses_1", "build", MODEL, baseURL)
  assert.equal(asked.toasts.length, 2)
  await hooks.event?.({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } } as never)
  await until(() => asked.toasts.length > 2)
  stop()
  assert.match(asked.toasts[2]?.message ?? "", /cached\n.*\nThere is no option "wrong".*\ncompaction\.prune is on/)
})

test("without warnings and lines nothing is shown", async () => {
  const { baseURL, stop } = await proxy([ROW])
  const { hooks, asked } = await started({ warn: false, show: false })
  await hooks.config?.({ compaction: { prune: true } } as never)
  await request(hooks, "ses_1", "build", MODEL, baseURL)
  await hooks.event?.({ event: { type: "session.idle", properties: { sessionID: "ses_1" } } } as never)
  stop()
  assert.equal(asked.toasts.length, 0)
  assert.equal(hooks["tool.definition"], undefined)
})

test("the command is there beside the user's own", async () => {
  const { hooks } = await started()
  const config: { command?: Record<string, { template: string }> } = { command: { mine: { template: "x" } } }
  await hooks.config?.(config as never)
  assert.deepEqual(Object.keys(config.command ?? {}), ["warmroute", "mine"])
})
