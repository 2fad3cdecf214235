import assert from "node:assert/strict"
import { test } from "node:test"

import { dateOf, frozen } from "../src/date_line.js"

const SYSTEM = `You are OpenCode.
<env>
  Working directory: /project
  Today's date: Tue Nov 24 2026
</env>
Instructions from: /project/AGENTS.md
Today's date: Wed Jan 01 2020
`
const CREATED_MS = new Date(2026, 10, 23, 23, 59).getTime()

test("the date of a system prompt is the first line that names it", () => {
  assert.equal(dateOf(SYSTEM), "Tue Nov 24 2026")
  assert.equal(dateOf("You are a title generator."), undefined)
})

test("a frozen prompt has the day of the session, and nothing else changes", () => {
  assert.equal(frozen(SYSTEM, CREATED_MS), SYSTEM.replace("Tue Nov 24", "Mon Nov 23"))
  assert.equal(frozen(frozen(SYSTEM, CREATED_MS), CREATED_MS), frozen(SYSTEM, CREATED_MS))
})

test("what has no such line, or no time, stays as it is", () => {
  for (const text of ["", "Today's date: 2026-11-23", "Today's date: $& Nov 23 2026"]) assert.equal(frozen(text, CREATED_MS), text)
  assert.equal(frozen(SYSTEM, Number.NaN), SYSTEM)
})
