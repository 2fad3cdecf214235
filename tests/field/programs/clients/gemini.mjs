// Gemini's API by Google's client: what it reads of whole answers, streams and errors, as one JSON object.
import { GoogleGenAI } from "@google/genai";

const client = new GoogleGenAI({
  apiKey: process.env.GEMINI_API_KEY,
  httpOptions: { baseUrl: process.env.GOOGLE_GEMINI_BASE_URL, retryOptions: { attempts: 1 } },
});
const hello = { model: "kimi-k2.5", contents: "hello" };
const thinks = { ...hello, config: { thinkingConfig: { includeThoughts: true, thinkingBudget: 64 } } };
const found = {};

const whole = await client.models.generateContent(hello);
found.whole = [whole.candidates[0].finishReason, whole.candidates[0].content.parts.length, whole.usageMetadata.totalTokenCount > 0];
let text = "";
let last;
for await (const chunk of await client.models.generateContentStream(hello)) {
  text += chunk.text ?? "";
  last = chunk;
}
found.stream = [last.candidates[0].finishReason, text === whole.text, last.usageMetadata.promptTokenCount > 0];
const thought = await client.models.generateContent(thinks);
found.thoughts = thought.candidates[0].content.parts.map((part) => Boolean(part.thought));
const counted = await client.models.countTokens(hello);
found.counted = counted.totalTokens === whole.usageMetadata.promptTokenCount;

found.errors = [];
for (const wrong of [{ ...hello, model: "no-such-model" }, { ...hello, config: { candidateCount: 2 } }]) {
  for (const ask of ["generateContent", "generateContentStream"]) {
    const error = await client.models[ask](wrong).catch((problem) => problem);
    found.errors.push([error.constructor.name, error.status]);
  }
}

console.log(JSON.stringify(found));
