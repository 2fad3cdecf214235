// Sees what goes into the beginning of prompts, and says when it changes: then nothing behind it is cached.
//
// A system prompt is compared with the one before it of the same session that has the same first line, which differs
// between agents, section by section. Only digests are kept. Each change is reported once, though every session and sub-agent meets it.
//
// Limits: `MAX_PROMPTS` system prompts, `MAX_TOOLS` tools, `MAX_SAID` reported changes, `MAX_NOTES` notes; the oldest go.

import { createHash } from "node:crypto"

import { Bounded } from "./bounded.js"
import { dateOf } from "./date_line.js"

const MAX_PROMPTS = 1_000
const MAX_TOOLS = 2_000
const MAX_SAID = 1_000
const MAX_NOTES = 20
const MAX_OPENING_CHARS = 200

/** OpenCode begins each file of instructions with such a line, and the list of skills with this one. */
const SECTION = /^(?:Instructions from: (.+)|Skills provide specialized instructions)/gm

const DATE = "the date"
const PROMPT = "the system prompt"
const SKILLS = "the list of skills"

export interface Note {
  readonly atMs: number
  /** Undefined: of all sessions. */
  readonly session: string | undefined
  readonly text: string
}

type Sections = Map<string, string>

export class PrefixWatch {
  readonly #prompts = new Bounded<string, Sections>(MAX_PROMPTS)
  readonly #tools = new Bounded<string, string>(MAX_TOOLS)
  readonly #said = new Bounded<string, true>(MAX_SAID)
  readonly #notes: Note[] = []

  constructor(private readonly nowMs: () => number = Date.now) {}

  /** What was reported of some sessions, newest last. */
  notesOf(sessions: readonly string[]): Note[] {
    return this.#notes.filter((note) => note.session === undefined || sessions.includes(note.session))
  }

  /** The configuration of OpenCode. Returns what to warn of. */
  configured(config: { compaction?: { prune?: boolean } }): string[] {
    if (config.compaction?.prune !== true) return []
    const text =
      "compaction.prune is on: OpenCode removes old tool output from the history, and the prompt behind it is" +
      " computed again. Set it to false."
    return this.#once("prune", undefined, text)
  }

  /** A system prompt that is about to be sent. Returns what to warn of. */
  system(session: string, text: string): string[] {
    const key = `${session}\0${text.split("\n", 1)[0]?.slice(0, MAX_OPENING_CHARS)}`
    const now = sectionsOf(text)
    const before = this.#prompts.get(key)
    this.#prompts.set(key, now)
    if (before === undefined) return []
    return changed(before, now).flatMap((name) =>
      this.#once(`${name}\0${now.get(name) ?? "removed"}`, session, sentence(name, now)),
    )
  }

  /** A tool that is about to be sent. Returns what to warn of: not of a new one, as each model has tools of its own. */
  tool(id: string, description: string, parameters: unknown): string[] {
    const now = digest(`${description}\0${JSON.stringify(parameters) ?? ""}`)
    const before = this.#tools.get(id)
    this.#tools.set(id, now)
    if (before === undefined || before === now) return []
    return this.toolsChanged(`"${id}" has changed`, `${id}\0${now}`)
  }

  /** The set of tools has changed: `what` says how. */
  toolsChanged(what: string, occasion: string): string[] {
    const text = `The tools have changed (${what}): they stand first in each prompt, so all of it is computed again.`
    return this.#once(`tools\0${occasion}`, undefined, text)
  }

  /** The tools of one session, agent and model, where they are known as a set. Returns what to warn of. */
  toolSet(
    session: string,
    agent: string,
    model: string,
    tools: Record<string, { description: string; input: unknown }>,
  ): string[] {
    const key = `${session}\0${agent}\0${model}\0tools`
    const names = Object.keys(tools)
    const now: Sections = new Map(
      names.map((name) => [name, digest(`${tools[name]?.description}\0${JSON.stringify(tools[name]?.input) ?? ""}`)]),
    )
    const before = this.#prompts.get(key)
    this.#prompts.set(key, now)
    if (before === undefined) return []
    return changed(before, now).flatMap((name) => {
      const how = !before.has(name) ? "was added" : now.has(name) ? "has changed" : "was removed"
      return this.toolsChanged(`"${name}" ${how}`, `${name}\0${now.get(name) ?? "removed"}`)
    })
  }

  #once(key: string, session: string | undefined, text: string): string[] {
    if (this.#said.has(key)) return []
    this.#said.set(key, true)
    this.#notes.push({ atMs: this.nowMs(), session, text })
    this.#notes.splice(0, this.#notes.length - MAX_NOTES)
    return [text]
  }
}

/** The parts of a system prompt by name, files by the end of their path: a digest each, and the date as it stands. */
function sectionsOf(text: string): Sections {
  const sections: Sections = new Map()
  const date = dateOf(text)
  if (date !== undefined) sections.set(DATE, date)
  const rest = date === undefined ? text : text.replace(date, "")
  let name = PROMPT
  let from = 0
  for (const found of rest.matchAll(SECTION)) {
    sections.set(name, digest(rest.slice(from, found.index)))
    name = found[1]?.split(/[\\/]/).slice(-2).join("/") ?? SKILLS
    from = found.index
  }
  return sections.set(name, digest(rest.slice(from)))
}

function changed(before: Sections, now: Sections): string[] {
  const names = new Set([...before.keys(), ...now.keys()])
  return [...names].filter((name) => before.get(name) !== now.get(name))
}

function sentence(name: string, now: Sections): string {
  const after = "what stands behind it, the conversation included, is computed again."
  if (name === DATE && now.has(DATE)) {
    return `The date in the system prompt is now ${now.get(DATE)}: ${after} The option freezeDate prevents that.`
  }
  return `${upper(name)} ${now.has(name) ? "has changed" : "was removed"} in the system prompt: ${after}`
}

function upper(text: string): string {
  return text.startsWith("the ") ? `T${text.slice(1)}` : text
}

function digest(text: string): string {
  return createHash("sha256").update(text).digest("base64url").slice(0, 16)
}
