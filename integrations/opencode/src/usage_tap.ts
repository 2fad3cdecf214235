// Reads the receipt in an answer while it passes. The bytes go on unchanged, and whatever is read wrong is left out.
//
// Limit: a whole answer, or a line of a stream, is kept up to `MAX_CHARS`; what is longer is not read. The last line of
// Responses repeats the answer.

import { type Turn, turnOfUsage } from "./turn.js"

const MAX_CHARS = 4 * 1024 * 1024
const MARK = '"warmroute"'

/** The same response; `found` gets its receipt before its end is read. */
export function tapped(response: Response, found: (turn: Turn) => void): Response {
  if (response.body === null || !response.ok) return response
  const isStream = response.headers.get("content-type")?.startsWith("text/event-stream") ?? false
  const reader = new UsageReader(isStream, found)
  const body = response.body.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        controller.enqueue(chunk)
        reader.read(chunk)
      },
      flush() {
        reader.end()
      },
    }),
  )
  const { status, statusText, headers } = response
  return new Response(body, { status, statusText, headers })
}

class UsageReader {
  readonly #decoder = new TextDecoder()
  #text = ""
  #tooLong = false

  constructor(
    private readonly isStream: boolean,
    private readonly found: (turn: Turn) => void,
  ) {}

  read(chunk: Uint8Array): void {
    try {
      this.#add(this.#decoder.decode(chunk, { stream: true }))
    } catch {
      this.#tooLong = true
    }
  }

  end(): void {
    if (this.#text && !this.#tooLong) this.#line(this.#text)
    this.#text = ""
  }

  #add(text: string): void {
    const lines = this.isStream ? text.split("\n") : [text]
    for (const [at, line] of lines.entries()) {
      if (at > 0) {
        this.end()
        this.#tooLong = false
      }
      if (!this.#tooLong) this.#text += line
      if (this.#text.length > MAX_CHARS) {
        this.#tooLong = true
        this.#text = ""
      }
    }
  }

  #line(line: string): void {
    if (!line.includes(MARK)) return
    try {
      const turn = turnOfUsage(usageOf(JSON.parse(line.replace(/^data:/, ""))))
      if (turn !== undefined) this.found(turn)
    } catch {
      // no JSON: not ours to complain of
    }
  }
}

/** The usage of a whole answer or of an event: of chat completions, Anthropic's messages or Responses. */
function usageOf(answer: unknown): unknown {
  const { usage, response } = answer as { usage?: unknown; response?: { usage?: unknown } }
  return usage ?? response?.usage
}
