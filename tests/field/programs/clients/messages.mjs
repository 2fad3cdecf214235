// Anthropic's messages by its client: what it reads of whole answers, streams and errors, as one JSON object.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ maxRetries: 0 });
const hello = { model: "kimi-k2.5", max_tokens: 64, messages: [{ role: "user", content: "hello" }] };
const script = (...steps) => ({ metadata: { script: JSON.stringify(steps) } });
const tools = [{ name: "read", input_schema: { type: "object", properties: {} } }];
const calls = { ...hello, tools, ...script({ tool_calls: [{ name: "read", arguments: { path: "a" } }] }) };
const found = {};

const whole = await client.messages.create(hello);
found.whole = [whole.stop_reason, whole.content.map((block) => block.type), whole.usage.warmroute.id === whole._request_id];
const stream = client.messages.stream(hello);
const kinds = [];
for await (const event of stream) kinds.push(event.type);
found.stream = [kinds[0], kinds.at(-1), (await stream.finalText()) === whole.content[0].text];

const input = (message) => message.content.map((block) => [block.type, block.input]);
found.calls = input(await client.messages.create(calls));
found.streamedCalls = input(await client.messages.stream(calls).finalMessage());

found.errors = [];
for (const wrong of [{ ...hello, model: "no-such-model" }, { ...hello, messages: [] }]) {
  for (const stream of [false, true]) {
    const error = await client.messages.create({ ...wrong, stream }).catch((problem) => problem);
    found.errors.push([error.constructor.name, error.status, error.error?.error?.type]);
  }
}
const failed = await client.messages
  .stream({ ...hello, ...script({ error_after_tokens: 2 }) })
  .finalMessage()
  .catch((problem) => problem);
found.failed = [failed.constructor.name, failed.error?.error?.type];

console.log(JSON.stringify(found));
