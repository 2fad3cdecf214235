import assert from "node:assert/strict"
import { test } from "node:test"

import { sessionName } from "../src/session_name.js"

const directory = "/srv/projects/shop"

test("a session is known by its title, and until it has one by its folder", () => {
  const cases: Array<[string | undefined, string | undefined]> = [
    ["Fix the tests", "Fix the tests"],
    ["New session - 2026-11-24T10:00:00.000Z", "shop"],
    ["Child session - 2026-11-24T10:00:00.000Z", "shop"],
    ["New session - what it is", "New session - what it is"],
    [undefined, "shop"],
    ["  ", "shop"],
    ["two\nlines\tand more", "two lines and more"],
    ["Größe ändern", undefined],
    ["Añadir café", "Anadir cafe"],
    ["\u4fee\u590d\u6d4b\u8bd5", "shop"],
    ["x".repeat(64), "x".repeat(64)],
    ["x".repeat(65), `${"x".repeat(61)}...`],
    ["\u0000", "shop"],
  ]
  for (const [title, wanted] of cases) {
    const name = sessionName({ title, directory }, "title")
    assert.equal(name, wanted ?? "shop", title)
    new Headers({ "x-warmroute-session-name": name ?? "" }) // throws at what no header can hold
  }
})

test("a user may send the folder alone, or nothing", () => {
  assert.equal(sessionName({ title: "Fix the tests", directory }, "folder"), "shop")
  assert.equal(sessionName({ title: "Fix the tests", directory: "C:\\src\\shop\\" }, "folder"), "shop")
  assert.equal(sessionName({ title: "Fix the tests", directory: "/" }, "folder"), undefined)
  assert.equal(sessionName({ title: "Fix the tests", directory }, "none"), undefined)
  assert.equal(sessionName({}, "title"), undefined)
})
