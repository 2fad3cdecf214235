// The date in OpenCode's system prompt, which changes at midnight and with it everything that stands behind it.
//
// V1 writes `Today's date: Mon Nov 23 2026`, from `new Date().toDateString()`. The frozen line is computed from the time
// at which the session was created, so it is the same after a restart, and nothing has to be stored.

const DATE_LINE = /^([ \t]*Today's date: )([A-Z][a-z]{2} [A-Z][a-z]{2} \d{2} \d{4})[ \t]*$/m

/** The date that a system prompt names, as it stands there. */
export function dateOf(system: string): string | undefined {
  return DATE_LINE.exec(system)?.[2]
}

/** The system prompt as it was on the day when the session was created (unix milliseconds). */
export function frozen(system: string, createdMs: number): string {
  const then = new Date(createdMs)
  if (Number.isNaN(then.getTime())) return system
  return system.replace(DATE_LINE, (_line, before: string) => `${before}${then.toDateString()}`)
}
