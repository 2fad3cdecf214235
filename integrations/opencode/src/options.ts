// What a user may set in the configuration of OpenCode, beside the name of the plugin.

/** What a session is called in the proxy's tables. */
export type Naming = "title" | "folder" | "none"

const NAMINGS: readonly unknown[] = ["title", "folder", "none"] satisfies Naming[]

export interface Options {
  /** Names of the providers in opencode.json that are warmroute proxies. */
  readonly providers: readonly string[]
  /** Keep the date line of a session's system prompt at the day on which the session began. */
  readonly freezeDate: boolean
  /** Show after each turn what was cached and what it cost. */
  readonly show: boolean
  /** Warn when something breaks the prefix. */
  readonly warn: boolean
  /** Send the title of a session, else its folder; the folder alone; or neither. */
  readonly name: Naming
}

export const DEFAULTS: Options = { providers: ["warmroute"], freezeDate: false, show: true, warn: true, name: "title" }

const WANTED: Record<keyof Options, string> = {
  providers: "a list of names",
  freezeDate: "true or false",
  show: "true or false",
  warn: "true or false",
  name: '"title", "folder" or "none"',
}

/** The options, and a sentence for each that is not valid: its default holds. */
export function readOptions(given: unknown): { options: Options; problems: string[] } {
  const problems: string[] = []
  const options: Record<string, unknown> = { ...DEFAULTS }
  for (const [name, value] of Object.entries(given && typeof given === "object" ? given : {})) {
    if (!(name in WANTED)) {
      problems.push(`There is no option "${name}": it is one of ${Object.keys(WANTED).join(", ")}.`)
    } else if (isValid(name as keyof Options, value)) {
      options[name] = value
    } else {
      problems.push(`The option "${name}" must be ${WANTED[name as keyof Options]}.`)
    }
  }
  return { options: options as unknown as Options, problems }
}

function isValid(name: keyof Options, value: unknown): boolean {
  if (name === "name") return NAMINGS.includes(value)
  if (name !== "providers") return typeof value === "boolean"
  return Array.isArray(value) && value.every((each) => typeof each === "string")
}
