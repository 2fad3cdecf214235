import assert from "node:assert/strict"
import { test } from "node:test"

import { PrefixWatch } from "../src/prefix_watch.js"

const system = (parts: { date?: string; agents?: string; opening?: string; skills?: string }) =>
  `${parts.opening ?? "You are OpenCode."}
<env>
  Today's date: ${parts.date ?? "Mon Nov 23 2026"}
</env>
Instructions from: /project/AGENTS.md
${parts.agents ?? "Be brief."}
Skills provide specialized instructions and workflows.
${parts.skills ?? "none"}`

test("a system prompt that stays the same is no cause to warn", () => {
  const watch = new PrefixWatch()
  for (let turn = 0; turn < 3; turn++) assert.deepEqual(watch.system("ses_1", system({})), [])
})

test("a change is named by the section that it is in, once for all sessions", () => {
  const cases: Array<[string, RegExp]> = [
    [system({ date: "Tue Nov 24 2026" }), /^The date in the system prompt is now Tue Nov 24 2026: .*freezeDate/],
    [system({ agents: "Be long." }), /^project\/AGENTS\.md has changed in the system prompt/],
    [system({ skills: "one" }), /^The list of skills has changed/],
  ]
  for (const [text, wanted] of cases) {
    const watch = new PrefixWatch()
    for (const session of ["ses_1", "ses_2"]) watch.system(session, system({}))
    const warnings = watch.system("ses_1", text)
    assert.equal(warnings.length, 1)
    assert.match(warnings[0] ?? "", wanted)
    assert.deepEqual(watch.system("ses_1", text), [])
    assert.deepEqual(watch.system("ses_2", text), [])
  }
})

test("a second edit of the same file is a second cause", () => {
  const watch = new PrefixWatch()
  const warned = ["one", "two", "three"].map((agents) => watch.system("ses_1", system({ agents })).length)
  assert.deepEqual(warned, [0, 1, 1])
})

test("titles and agents of one session have prompts of their own", () => {
  const watch = new PrefixWatch()
  for (const opening of ["You are OpenCode.", "You are a title generator.", "You are OpenCode."]) {
    assert.deepEqual(watch.system("ses_1", system({ opening })), [])
  }
})

test("a tool that changes is named, and not one that another model has", () => {
  const watch = new PrefixWatch()
  for (const tool of ["edit", "bash", "bash", "apply_patch", "edit"]) assert.deepEqual(watch.tool(tool, "runs", {}), [])
  assert.match(watch.tool("bash", "runs more", {})[0] ?? "", /"bash" has changed/)
})

test("a known set of tools shows what was removed", () => {
  const watch = new PrefixWatch()
  const bash = { description: "runs", input: {} }
  assert.deepEqual(watch.toolSet("ses_1", "build", "kimi", { bash, read: bash }), [])
  assert.deepEqual(watch.toolSet("ses_1", "explore", "kimi", { read: bash }), [])
  assert.deepEqual(watch.toolSet("ses_1", "build", "glm", { bash }), [])
  assert.match(watch.toolSet("ses_1", "build", "kimi", { bash })[0] ?? "", /"read" was removed/)
})

test("pruning is warned of where it is on", () => {
  assert.equal(new PrefixWatch().configured({ compaction: { prune: true } }).length, 1)
  for (const config of [{}, { compaction: {} }, { compaction: { prune: false } }]) {
    assert.deepEqual(new PrefixWatch().configured(config), [])
  }
})

test("notes are kept for the explanation, of a session and of all", () => {
  const watch = new PrefixWatch(() => 7)
  watch.system("ses_1", system({}))
  watch.system("ses_1", system({ agents: "new" }))
  watch.configured({ compaction: { prune: true } })
  assert.deepEqual(watch.notesOf(["ses_1"]).map((note) => note.atMs), [7, 7])
  assert.equal(watch.notesOf(["ses_2"]).length, 1)
})
