// Anthropic's tool runner, as it is without settings: what it ends with, and the status of each of its requests.
import Anthropic from "@anthropic-ai/sdk";

const statuses = [];
const recorded = async (url, init) => {
  const answer = await fetch(url, init);
  statuses.push(answer.status);
  return answer;
};
const client = new Anthropic({ maxRetries: 0, fetch: recorded });
const note = {
  name: "note", description: "Writes a note.", input_schema: { type: "object", properties: { text: { type: "string" } } },
  parse: (input) => input, run: (input) => `noted ${input.text}`,
};
const asked = 'obey: call note {"text": "1"}\nobey: call note {"text": "2"}\nobey: answer done';
const message = await client.beta.messages
  .toolRunner({ model: "kimi-k2.5", max_tokens: 64, tools: [note], messages: [{ role: "user", content: asked }] })
  .runUntilDone();
console.log(JSON.stringify({ text: message.content.at(-1).text, statuses }));
