// OpenAI's Responses by its client: what it reads of whole answers, streams and errors, as one JSON object.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const model = "kimi-k2.5";
const script = (...steps) => ({ script: JSON.stringify(steps) });
const tools = [
  { type: "function", name: "read", parameters: { type: "object", properties: {} }, strict: false },
  { type: "custom", name: "patch" },
];
const calls = script({
  tool_calls: [
    { name: "read", arguments: { path: "a" } },
    { name: "patch", arguments: { input: "b" } },
  ],
});
const found = {};

const whole = await client.responses.create({ model, input: "hello", reasoning: { effort: "low" } });
found.whole = [whole.status, whole.output.map((item) => item.type), whole.usage.warmroute.id === whole._request_id];

const stream = client.responses.stream({ model, input: "hello", reasoning: { effort: "low" } });
const kinds = [];
for await (const event of stream) kinds.push(event.type);
const streamed = await stream.finalResponse();
found.stream = [kinds[0], kinds.at(-1), streamed.output_text === whole.output_text];

const asked = { model, input: "call", tools, metadata: calls };
const called = await client.responses.create(asked);
found.calls = called.output.map((item) => [item.type, item.arguments ?? item.input]);
const callStream = client.responses.stream(asked);
found.streamedCalls = (await callStream.finalResponse()).output.map((item) => [item.type, item.arguments ?? item.input]);

found.errors = [];
for (const wrong of [{ model: "no-such-model", input: "x" }, { model, input: [] }]) {
  for (const stream of [false, true]) {
    const error = await client.responses.create({ ...wrong, stream }).catch((problem) => problem);
    found.errors.push([error.constructor.name, error.status, error.code]);
  }
}
const fails = await client.responses.create({
  model, input: "x", stream: true, metadata: script({ error_after_tokens: 2 }),
});
for await (const event of fails) found.failed = [event.type, event.response?.error?.code];

console.log(JSON.stringify(found));
