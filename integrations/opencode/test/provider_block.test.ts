import assert from "node:assert/strict"
import { test } from "node:test"

import { providerBlock } from "../src/provider_block.js"

const LISTED = [
  { id: "kimi-k2.5", max_model_len: 200_000, rates_usd_per_mtok: { input: "0.6", cached: "0.1", output: "3" } },
  { id: "small", max_model_len: 4_096 },
  { id: "plain" },
]
const WANTED = { baseURL: "http://127.0.0.1:8000/v1", keyVariable: "WARM_KEY" }

test("V1's block has limits and prices, and no key", () => {
  const block = providerBlock(LISTED, { ...WANTED, version: 1 })
  assert.deepEqual(block, {
    $schema: "https://opencode.ai/config.json",
    model: "warmroute/kimi-k2.5",
    small_model: "warmroute/kimi-k2.5",
    provider: {
      warmroute: {
        npm: "@ai-sdk/openai-compatible",
        name: "warmroute",
        options: { baseURL: "http://127.0.0.1:8000/v1", apiKey: "{env:WARM_KEY}" },
        models: {
          "kimi-k2.5": {
            name: "kimi-k2.5",
            limit: { context: 200_000, output: 8_192 },
            cost: { input: 0.6, output: 3, cache_read: 0.1 },
          },
          small: { name: "small", limit: { context: 4_096, output: 1_024 } },
          plain: { name: "plain", limit: { context: 128_000, output: 8_192 } },
        },
      },
    },
  })
})

test("the plugin is there where it is said what to install it from", () => {
  const plugin = "opencode-warmroute@file:/tmp/plugin.tgz"
  for (const [version, key] of [[1, "plugin"], [2, "plugins"]] as const) {
    const block = providerBlock(LISTED, { ...WANTED, version, plugin }) as Record<string, unknown>
    assert.deepEqual(block[key], [plugin])
  }
})

test("V2's block names its package", () => {
  const { providers } = providerBlock(LISTED, { ...WANTED, version: 2 }) as { providers: { warmroute: object } }
  const { models, ...provider } = providers.warmroute as { models: object }
  assert.deepEqual(provider, {
    env: ["WARM_KEY"],
    package: "@opencode/ai/providers/openai-compatible",
    settings: { baseURL: "http://127.0.0.1:8000/v1" },
  })
  assert.deepEqual(Object.keys(models), ["kimi-k2.5", "small", "plain"])
})

test("a key that may use no model is an error", () => {
  assert.throws(() => providerBlock([], { ...WANTED, version: 1 }), /no model/)
})
