// Prints, for the pages named, how many sentences their prose has, and how many words those have.
"use strict"

const { readFileSync } = require("node:fs")
const { createRequire } = require("node:module")
const { resolve } = require("node:path")
const { sentences } = require("./sentences.js")

const { parse } = createRequire(resolve(".node-docs/package.json"))("@textlint/markdown-to-ast")

function* paragraphs(node) {
  if (node.type === "Paragraph") yield node
  else if (!["Header", "Table"].includes(node.type)) for (const child of node.children ?? []) yield* paragraphs(child)
}

const counts = []
for (const page of process.argv.slice(2)) {
  for (const paragraph of paragraphs(parse(readFileSync(page, "utf8")))) {
    counts.push(...sentences(paragraph).map(({ words }) => words.length))
  }
}
counts.sort((one, other) => one - other)
const at = (share) => counts[Math.floor(share * (counts.length - 1))]
const long = counts.filter((count) => count > 30).length
console.log(`${counts.length} sentences; words: median ${at(0.5)}, p95 ${at(0.95)}, most ${at(1)}; over 30: ${long}`)
