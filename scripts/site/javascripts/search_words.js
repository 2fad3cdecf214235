// Takes words without meaning out of a query. The search completes each word, so that "a" would find all that begins with
// it, and looks for the words as they are, so that "limits" would not find "limit".
"use strict"
{
  const QUERY = 2 // the type of the message to the worker
  const EMPTY = new Set(
    ("a about am an and any are as at be been but by can could did do does for from get give had has have how i if in is " +
    "it its many may me mean means much must my need of on or our should so that the their there these they this to " +
    "use was we were what when where which who why will with without would you your").split(" "))
  const post = Worker.prototype.postMessage
  const meaning = (query) => {
    const words = query.split(/[\s?]+/).filter((word) => word && !EMPTY.has(word.toLowerCase()))
    return words.map((word) => (/[^s]s$/i.test(word) && word.length > 4 ? word.slice(0, -1) : word)).join(" ") || query
  }
  Worker.prototype.postMessage = function (message, ...rest) {
    const isQuery = message?.type === QUERY && typeof message.data === "string"
    return post.call(this, isQuery ? { ...message, data: meaning(message.data) } : message, ...rest)
  }
}
