import assert from "node:assert/strict"
import { test } from "node:test"

import { identityHeaders, kindOf } from "../src/identity.js"

test("V1 tells by agent and parent what a request is for", () => {
  const cases = [
    ["build", undefined, "main"],
    ["plan", undefined, "main"],
    ["explore", "ses_parent", "sub"],
    ["title", undefined, "title"],
    ["compaction", "ses_parent", "compaction"],
  ] as const
  for (const [agent, parent, kind] of cases) assert.equal(kindOf(agent, parent), kind)
})

test("a request carries session, parent, agent and kind", () => {
  assert.deepEqual(identityHeaders({ session: "ses_own", agent: "explore", parent: "ses_parent", kind: "sub" }), {
    "x-session-affinity": "ses_own",
    "x-parent-session-id": "ses_parent",
    "x-warmroute-agent": "explore",
    "x-warmroute-kind": "sub",
  })
})

test("any name of an agent makes headers that can be sent", () => {
  const cases: Array<[string, string | undefined]> = [
    ["my agent", "my agent"],
    ["ähre", "%C3%A4hre"],
    ["a\r\nb: c", "a%0D%0Ab%3A%20c"],
    ["\ud800", "%EF%BF%BD"],
    ["x".repeat(64), "x".repeat(64)],
    ["x".repeat(65), undefined],
    ["разработчик", undefined],
    ["  ", undefined],
    ["", undefined],
  ]
  for (const [agent, wanted] of cases) {
    const headers = identityHeaders({ session: "ses_own", agent })
    assert.equal(headers["x-warmroute-agent"], wanted)
    new Headers(headers) // throws at what no header can hold
  }
})
