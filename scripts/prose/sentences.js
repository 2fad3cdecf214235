// The sentences of a paragraph, for the rule and for the figures.
"use strict"

const CODE = "\uE000" // a span of code is one word
const SHORT = /(?:\b(?:e\.g|i\.e|vs|etc|Fig|No)\.|(?<!\d )\b[A-Z]\.)$/
const END = /(?:[.!?]["')\]]*(?=\s+["'([]*[A-Z0-9\uE000]|\s*$)|(?<!\.)\.["')\]]*(?=\s+[a-z])|:(?=\s*$))/g

// The text of a node as it is read, and for each character its place in the source.
function flat(node, text = [], places = []) {
  const put = (value, at, step) => {
    for (let i = 0; i < value.length; i += 1) {
      text.push(value[i])
      places.push(at + i * step)
    }
  }
  if (node.type === "Str") put(node.value, node.range[0], 1)
  else if (node.type === "Code") put(CODE, node.range[0], 0)
  else if (node.type === "Break") put(" ", node.range[0], 0)
  else if (node.children) for (const child of node.children) flat(child, text, places)
  return { text, places }
}

function sentences(paragraph) {
  const { text, places } = flat(paragraph)
  const whole = text.join("")
  const found = []
  let begin = 0
  const add = (end) => {
    const raw = whole.slice(begin, end)
    const lead = raw.length - raw.trimStart().length
    const words = raw.split(/\s+/).filter((word) => /[\p{L}\p{N}\uE000]/u.test(word))
    if (words.length) found.push({ text: raw.trim(), words, at: places[begin + lead] })
    begin = end
  }
  for (const match of whole.matchAll(END)) {
    const end = match.index + match[0].length
    if (!SHORT.test(whole.slice(begin, end))) add(end)
  }
  if (begin < whole.length) add(whole.length)
  return found
}

module.exports = { CODE, sentences }
