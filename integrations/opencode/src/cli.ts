#!/usr/bin/env node
// `opencode-warmroute`: prints the provider's block of opencode.json for a proxy.

import { parseArgs } from "node:util"

import { type Listed, providerBlock } from "./provider_block.js"

const HELP = `Usage: opencode-warmroute [--base-url URL] [--key-variable NAME] [--plugin SPEC] [--v2]

Prints opencode.json for a warmroute proxy, with the models that it lists.

  --base-url URL       of the proxy, with /v1 (default: OPENAI_BASE_URL)
  --key-variable NAME  the environment variable that holds the key (default: OPENAI_API_KEY)
  --plugin SPEC        with this plugin, such as opencode-warmroute@file:/path/to/opencode-warmroute-0.1.0.tgz
  --v2                 in the shape of OpenCode V2
`
const TIMEOUT_MS = 10_000

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      "base-url": { type: "string" },
      "key-variable": { type: "string", default: "OPENAI_API_KEY" },
      plugin: { type: "string" },
      v2: { type: "boolean", default: false },
      help: { type: "boolean", default: false },
    },
  })
  if (values.help) {
    process.stdout.write(HELP)
    return
  }
  const baseURL = (values["base-url"] ?? process.env.OPENAI_BASE_URL ?? "").replace(/\/+$/, "")
  if (!/^https?:\/\//.test(baseURL)) throw new Error("give the proxy's URL by --base-url or OPENAI_BASE_URL: http://HOST:PORT/v1")
  const keyVariable = values["key-variable"]
  const key = process.env[keyVariable]
  if (!key) throw new Error(`the environment variable ${keyVariable} holds no key`)
  const wanted = { baseURL, keyVariable, plugin: values.plugin, version: values.v2 ? 2 : 1 } as const
  const block = providerBlock(await models(baseURL, key), wanted)
  process.stdout.write(`${JSON.stringify(block, null, 2)}\n`)
}

async function models(baseURL: string, key: string): Promise<Listed[]> {
  const headers = { authorization: `Bearer ${key}` }
  const answer = await fetch(`${baseURL}/models`, { headers, redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS) })
  if (!answer.ok) throw new Error(`${baseURL}/models answers with status ${answer.status}`)
  const { data } = (await answer.json()) as { data?: unknown }
  if (!Array.isArray(data)) throw new Error(`${baseURL}/models lists no models`)
  return data as Listed[]
}

main().catch((error: unknown) => {
  const { message, cause } = error as Error
  const why = cause instanceof Error ? ` (${cause.message})` : ""
  process.stderr.write(`opencode-warmroute: ${message}${why}\n`)
  process.exitCode = 1
})
