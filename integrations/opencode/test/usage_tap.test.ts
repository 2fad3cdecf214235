import assert from "node:assert/strict"
import { test } from "node:test"

import type { Turn } from "../src/turn.js"
import { tapped } from "../src/usage_tap.js"

const RECEIPT = { id: "wr-1", turn: 1, region: "east", cached: { device: 64, host: 0, storage: 0 }, loss: { new: 10 } }
const USAGE = { prompt_tokens: 74, warmroute: RECEIPT }
const EVENTS = [
  { choices: [{ delta: { content: 'says "warmroute"' } }] },
  { choices: [], usage: USAGE },
]
const STREAM = `${EVENTS.map((event) => `data: ${JSON.stringify(event)}\r\n\r\n`).join("")}data: [DONE]\n\n`

/** What comes out, and what was found, of bytes that come `size` at a time. */
async function passed(text: string, size: number, type = "text/event-stream"): Promise<[string, Turn[]]> {
  const bytes = new TextEncoder().encode(text)
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size))
      controller.close()
    },
  })
  const found: Turn[] = []
  const response = tapped(new Response(body, { headers: { "content-type": type } }), (turn) => found.push(turn))
  return [await response.text(), found]
}

test("bytes pass unchanged, and the receipt is found wherever they are divided", async () => {
  for (const size of [1, 7, 64, 10_000]) {
    const [text, found] = await passed(STREAM, size)
    assert.equal(text, STREAM)
    assert.deepEqual(found.map((turn) => [turn.id, turn.promptTokens, turn.cachedTokens]), [["wr-1", 74, 64]])
  }
})

test("whole answers, Anthropic's events and those of Responses have receipts, too", async () => {
  const cases: Array<[string, string]> = [
    [JSON.stringify({ usage: USAGE }), "application/json"],
    [`event: message_delta\ndata: ${JSON.stringify({ type: "message_delta", usage: USAGE })}\n\n`, "text/event-stream"],
    [`data: ${JSON.stringify({ type: "response.completed", response: { output: "x".repeat(70_000), usage: USAGE } })}`, "text/event-stream; charset=utf-8"],
  ]
  for (const [text, type] of cases) {
    const [out, found] = await passed(text, 16, type)
    assert.equal(out, text)
    assert.equal(found.length, 1)
  }
})

test("what cannot be read passes all the same", async () => {
  const long = "x".repeat(5_000_000)
  for (const text of ["", "data: {\"warmroute\"", `data: ${long}"warmroute"\n`, "\xff\xfe", `data: null "warmroute"`]) {
    const [out, found] = await passed(text, 1_000)
    assert.equal(out, text)
    assert.deepEqual(found, [])
  }
  const [, found] = await passed(`data: ${long}\n\n${STREAM}`, 1_000)
  assert.equal(found.length, 1)
})

test("errors and answers without a body are left alone", () => {
  for (const response of [new Response("{}", { status: 500 }), new Response(null, { status: 204 })]) {
    assert.equal(tapped(response, () => assert.fail()), response)
  }
})

test("status and headers stay", () => {
  const response = tapped(new Response("{}", { status: 201, headers: { "x-warmroute-receipt": "wr-1" } }), () => {})
  assert.equal(response.status, 201)
  assert.equal(response.headers.get("x-warmroute-receipt"), "wr-1")
})
