// Keeps what goes wrong here away from OpenCode: a hook that throws would end the user's turn.

type Hook = (...given: never[]) => unknown

/** The same hook, which never throws and never rejects; `failed` gets what went wrong. */
export function guarded<Given extends Hook>(hook: Given, failed: (error: unknown) => void): Given {
  const made = async (...given: never[]): Promise<void> => {
    try {
      await hook(...given)
    } catch (error) {
      failed(error)
    }
  }
  return made as unknown as Given
}

/** What a promise gives within a time, else undefined, also where it rejects. */
export async function within<Value>(timeoutMs: number, promise: Promise<Value>): Promise<Value | undefined> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<undefined>((resolve) => (timer = setTimeout(resolve, timeoutMs, undefined)))
  try {
    return await Promise.race([promise, late])
  } catch {
    return undefined
  } finally {
    clearTimeout(timer)
  }
}
