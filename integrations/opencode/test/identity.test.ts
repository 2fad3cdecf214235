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
  for (const agent of ["разработчик", "a\r\nb: c", "", "x".repeat(65), "\u{1f600}", "  "]) {
    new Headers(identityHeaders({ session: "ses_own", agent })) // throws at what no header can hold
  }
  const name = identityHeaders({ session: "s", agent: "ähre" })["x-warmroute-agent"]
  assert.equal(Buffer.from(name ?? "", "latin1").toString("utf8"), "ähre")
})
