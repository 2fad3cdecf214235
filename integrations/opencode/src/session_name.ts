// What people know a session by, as a header that any client can send. Pure.
//
// A title in letters that no header holds everywhere becomes the one without accents; where letters are lost by that, the
// folder is the name.

import type { Naming } from "./options.js"

/** The proxy shows names up to this length. */
const MAX_NAME_BYTES = 64

/** What OpenCode calls a session until it has made a title. */
const UNTITLED = /^(New|Child) session - \d{4}-\d\d-\d\dT/

export interface Named {
  readonly title?: string | undefined
  readonly directory?: string | undefined
}

/** The name of a session, by its title or else its folder; undefined where there is none to show. */
export function sessionName(session: Named, naming: Naming): string | undefined {
  if (naming === "none") return undefined
  const title = naming === "folder" || UNTITLED.test(session.title ?? "") ? undefined : shown(session.title)
  return title ?? shown(session.directory?.split(/[\\/]/).filter(Boolean).at(-1))
}

function shown(text: unknown): string | undefined {
  if (typeof text !== "string") return undefined
  const plain = text.slice(0, 4 * MAX_NAME_BYTES).normalize("NFKD").replace(/\p{M}/gu, "").replace(/\s+/g, " ").trim()
  if (!/^[\x20-\x7e]+$/.test(plain)) return undefined
  return plain.length <= MAX_NAME_BYTES ? plain : `${plain.slice(0, MAX_NAME_BYTES - 3).trimEnd()}...`
}
