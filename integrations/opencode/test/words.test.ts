import assert from "node:assert/strict"
import { test } from "node:test"

import { type Turn, turnOfRow, turnOfUsage } from "../src/turn.js"
import { explanation, isCold, turnLine } from "../src/words.js"

const turn = (given: Partial<Turn>): Turn => ({
  id: "wr-1",
  agent: "build",
  kind: "main",
  number: 2,
  region: "east",
  settledAtS: 1,
  requests: 1,
  promptTokens: 1_000,
  cachedTokens: 960,
  priceNanousd: 1_200_000,
  listNanousd: 6_000_000,
  loss: { new: 40 },
  ...given,
})

test("the line after a turn adds its requests up", () => {
  assert.equal(turnLine([]), undefined)
  assert.equal(turnLine([turn({})]), "96% of 1,000 tokens cached\n$0.0012, $0.0048 saved")
  const lines = turnLine([turn({ cachedTokens: 1_000, listNanousd: 1_200_000 }), turn({ promptTokens: 0, cachedTokens: 0 })])
  assert.equal(lines, "100% of 1,000 tokens cached in 2 requests\n$0.0024, $0.0048 saved")
})

test("a share is never rounded up to 100%", () => {
  assert.match(turnLine([turn({ promptTokens: 10_000, cachedTokens: 9_999 })]) ?? "", /^99% /)
})

test("a turn is cold by what could have been cached, not by what came with it", () => {
  assert.equal(isCold(turn({ loss: { new: 900, page_rounding: 60, not_kept: 40 } })), false)
  assert.equal(isCold(turn({ loss: { prefix_changed: 500 } })), true)
  assert.equal(isCold(turn({ loss: { moved: 100 } })), false)
  assert.equal(isCold(turn({ promptTokens: 100_000, loss: { moved: 1_000 } })), false)
})

test("the newest cold turn is explained, with what was seen before it", () => {
  const cold = turn({ number: 4, cachedTokens: 250, loss: { prefix_changed: 700, new: 50 }, settledAtS: 100 })
  const notes = [
    { atMs: 90_000, session: undefined, text: "AGENTS.md has changed." },
    { atMs: 110_000, session: undefined, text: "Later." },
  ]
  const text = explanation([turn({}), cold, turn({ loss: { cold: 1_000 } })], notes)
  assert.match(text, /^The last cold request was turn 4 at \d\d:\d\d:\d\d \(main, agent build\): 250 of 1,000 .*\(25%\), in region east\.$/m)
  assert.match(text, /^- 700 tokens \(prefix_changed\) follow a place/m)
  assert.match(text, /^Seen at \d\d:\d\d:\d\d: AGENTS\.md has changed\.$/m)
  assert.doesNotMatch(text, /Later/)
})

test("without a cold turn it says so", () => {
  assert.match(explanation([turn({})], []), /^None of the last 1 requests/)
  assert.match(explanation([], []), /knows no turn/)
})

test("turns that were taken back are not explained", () => {
  const taken = turn({ id: "wr-1-void", requests: -1, promptTokens: -1_000, cachedTokens: -960, loss: {} })
  assert.match(explanation([taken, turn({ loss: { cold: 1_000 } })], []), /knows no turn/)
  assert.match(explanation([taken], []), /knows no turn/)
  assert.match(explanation([taken, turn({ id: "wr-2" })], []), /last 1 requests.*\n96% of 1,000 tokens/)
})

test("a usage object gives the same turn as its row", () => {
  const receipt = {
    id: "wr-1", agent: "build", kind: "main", turn: 2, region: "east", price_nanousd: 1_200_000, list_nanousd: 6_000_000,
    cached: { device: 900, host: 60, storage: 0 }, loss: { new: 40 },
  }
  assert.deepEqual(turnOfUsage({ prompt_tokens: 1_000, warmroute: receipt }), turn({ settledAtS: undefined }))
})

test("what is no row is none", () => {
  for (const row of [undefined, null, 7, "x", [], {}, { id: 1 }]) assert.equal(turnOfRow(row), undefined)
  assert.deepEqual(turnOfRow({ id: "wr-1", prompt_tokens: "many", loss: null })?.loss, {})
  assert.equal(turnOfUsage({ prompt_tokens: 1 }), undefined)
})
