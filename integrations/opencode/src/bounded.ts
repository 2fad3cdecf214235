// A map that forgets what was set longest ago.

export class Bounded<Key, Value> {
  readonly #values = new Map<Key, Value>()

  constructor(readonly max: number) {}

  get(key: Key): Value | undefined {
    return this.#values.get(key)
  }

  has(key: Key): boolean {
    return this.#values.has(key)
  }

  set(key: Key, value: Value): void {
    this.#values.delete(key)
    this.#values.set(key, value)
    for (const oldest of this.#values.keys()) {
      if (this.#values.size <= this.max) return
      this.#values.delete(oldest)
    }
  }

  /** The oldest first. */
  values(): Value[] {
    return [...this.#values.values()]
  }
}
