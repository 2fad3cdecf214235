import assert from "node:assert/strict"
import { createServer, type RequestListener, type Server } from "node:http"
import type { AddressInfo } from "node:net"
import { afterEach, test } from "node:test"

import { expect, turnsOf } from "../src/proxy.js"

const servers: Server[] = []
afterEach(() => servers.splice(0).forEach((server) => (server.closeAllConnections(), server.close())))

async function serving(listener: RequestListener): Promise<string> {
  const server = createServer(listener)
  servers.push(server)
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve))
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`
}

test("turns are asked for by the session's header and the provider's key", async () => {
  let asked: unknown
  const baseURL = await serving((request, response) => {
    const { authorization, "x-session-affinity": session } = request.headers
    asked = { url: request.url, authorization, session }
    response.end(JSON.stringify({ data: [{ id: "wr-1", prompt_tokens: 5 }, "no row"] }))
  })
  const turns = await turnsOf({ baseURL: `${baseURL}/`, apiKey: "sk-1" }, "ses_1", 3)
  assert.deepEqual(asked, { url: "/v1/usage/receipts?limit=3", authorization: "Bearer sk-1", session: "ses_1" })
  assert.deepEqual(turns?.map((turn) => [turn.id, turn.promptTokens]), [["wr-1", 5]])
})

test("whatever a proxy answers, there is no error", async () => {
  const answers: RequestListener[] = [
    (_request, response) => response.writeHead(500).end("{}"),
    (_request, response) => response.end("no json"),
    (_request, response) => response.end("null"),
    (_request, response) => response.end('{"data": 7}'),
    (_request, response) => response.writeHead(302, { location: "http://example.invalid/" }).end(),
    (request) => request.socket.destroy(),
  ]
  for (const answer of answers) {
    assert.deepEqual(await turnsOf({ baseURL: await serving(answer), apiKey: "k" }, "s", 1), undefined)
  }
  assert.deepEqual(await turnsOf({ baseURL: "http://127.0.0.1:9/v1", apiKey: undefined }, "s", 1), undefined)
  assert.deepEqual(await turnsOf({ baseURL: "no url", apiKey: "k\n" }, "s", 1), undefined)
})

test("a proxy that hangs is left alone", async () => {
  const baseURL = await serving(() => undefined)
  assert.deepEqual(await turnsOf({ baseURL, apiKey: "k" }, "s", 1), undefined)
})

test("the end of a session is said by headers alone, and nothing comes of what goes wrong", async () => {
  let asked: unknown
  const baseURL = await serving((request, response) => {
    const { authorization, "x-session-affinity": session, "x-warmroute-expect": expected } = request.headers
    asked = { to: `${request.method} ${request.url}`, authorization, session, expected }
    response.writeHead(204).end()
  })
  await expect({ baseURL, apiKey: "sk-1" }, "ses_1", "end")
  assert.deepEqual(asked, { to: "POST /v1/sessions/expect", authorization: "Bearer sk-1", session: "ses_1", expected: "end" })
  for (const answer of [(_: unknown, response) => response.writeHead(404).end("{}"), (request) => request.socket.destroy()] as RequestListener[]) {
    await expect({ baseURL: await serving(answer), apiKey: "k" }, "s", "human")
  }
  await expect({ baseURL: "no url", apiKey: undefined }, "s", "end")
})
