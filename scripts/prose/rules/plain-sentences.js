// A sentence has at most 30 words, and begins with a noun rather than with a pronoun that stands for one.
"use strict"

const { sentences } = require("../sentences.js")

const LONGEST = 30
const VERBS =
  "is|are|was|were|be|has|have|had|does|do|did|can|cannot|could|may|might|must|will|would|should|needs?|makes?|means?|shows?|" +
  "says?|takes?|gives?|holds?|keeps?|goes|comes?|gets?|costs?|counts?|happens?|matters?|works?|applies|leaves?|lets?|stands?"
const PRONOUN = new RegExp(`^(?:It|(?:This|That|These|Those)(?=\\s+(?:${VERBS})\\b)|That(?=\\s+of\\b)|Those(?=\\s+(?:of|that|who|which|with|in|from)\\b)|Who(?:ever)?|What(?:ever)?)\\b`)

module.exports = (context) => ({
  [context.Syntax.Paragraph](paragraph) {
    for (let node = paragraph.parent; node; node = node.parent) {
      if (node.type === "Header" || node.type === "Table") return
    }
    for (const { text, words, at } of sentences(paragraph)) {
      const report = (message) => {
        const padding = context.locator.at(at - paragraph.range[0])
        context.report(paragraph, new context.RuleError(message, { padding }))
      }
      if (words.length > LONGEST) report(`${words.length} words are more than ${LONGEST}: ${text.slice(0, 60)}...`)
      const opening = PRONOUN.exec(text)
      if (opening && !(text.endsWith("?") && /^Wh/.test(text))) {
        report(`name the subject instead of "${opening[0]}": ${text.slice(0, 60)}...`)
      }
    }
  },
})
