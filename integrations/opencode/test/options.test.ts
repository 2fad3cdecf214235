import assert from "node:assert/strict"
import { test } from "node:test"

import { DEFAULTS, readOptions } from "../src/options.js"

test("without options the defaults hold", () => {
  for (const given of [undefined, null, {}]) assert.deepEqual(readOptions(given), { options: DEFAULTS, problems: [] })
})

test("valid options are taken", () => {
  const given = { providers: ["east", "west"], freezeDate: true, show: false, warn: false, name: "folder" }
  assert.deepEqual(readOptions(given), { options: given, problems: [] })
})

test("what is not valid is named, and its default holds", () => {
  const { options, problems } = readOptions({ providers: [1], freezeDate: "yes", name: "x", dates: true })
  assert.deepEqual(options, DEFAULTS)
  assert.deepEqual(problems, [
    'The option "providers" must be a list of names.',
    'The option "freezeDate" must be true or false.',
    'The option "name" must be "title", "folder" or "none".',
    'There is no option "dates": it is one of providers, freezeDate, show, warn, name.',
  ])
})
