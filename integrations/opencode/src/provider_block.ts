// The provider's block of opencode.json, from the models that a proxy lists. Pure.

/** A model as `GET /v1/models` lists it. */
export interface Listed {
  readonly id: string
  readonly max_model_len?: number
  readonly rates_usd_per_mtok?: { readonly input: string; readonly cached: string; readonly output: string }
}

export interface Wanted {
  readonly baseURL: string
  /** The environment variable that holds the key. */
  readonly keyVariable: string
  readonly version: 1 | 2
  /** What OpenCode installs this plugin from: a name, or `opencode-warmroute@file:/a/path.tgz`. */
  readonly plugin?: string | undefined
}

/** OpenCode keeps them free in the context, so an answer has at most a quarter of it. */
const MAX_ANSWER_TOKENS = 8_192
const DEFAULT_CONTEXT_TOKENS = 128_000

/** A whole opencode.json, without the plugin where it is not said what to install it from, and with the key left in the environment. The first model is that of titles, too. */
export function providerBlock(listed: readonly Listed[], wanted: Wanted): object {
  const [first] = listed
  if (first === undefined) throw new Error("the proxy lists no model that this key may use")
  const models = Object.fromEntries(listed.map((model) => [model.id, modelBlock(model)]))
  const name = `warmroute/${first.id}`
  const { baseURL, keyVariable } = wanted
  if (wanted.version === 2) {
    const provider = {
      env: [keyVariable],
      package: "@opencode/ai/providers/openai-compatible",
      settings: { baseURL },
      models,
    }
    return { model: name, ...(wanted.plugin && { plugins: [wanted.plugin] }), providers: { warmroute: provider } }
  }
  const provider = {
    npm: "@ai-sdk/openai-compatible",
    name: "warmroute",
    options: { baseURL, apiKey: `{env:${keyVariable}}` },
    models,
  }
  return {
    $schema: "https://opencode.ai/config.json",
    model: name,
    small_model: name,
    ...(wanted.plugin && { plugin: [wanted.plugin] }),
    provider: { warmroute: provider },
  }
}

function modelBlock(model: Listed): object {
  const context = model.max_model_len ?? DEFAULT_CONTEXT_TOKENS
  const block = { name: model.id, limit: { context, output: Math.min(MAX_ANSWER_TOKENS, Math.floor(context / 4)) } }
  const rates = model.rates_usd_per_mtok
  if (rates === undefined) return block
  const cost = { input: Number(rates.input), output: Number(rates.output), cache_read: Number(rates.cached) }
  return { ...block, cost }
}
