// What the server's part of the plugin says to its terminal part under OpenCode V2.

import type { Channel } from "./v2_types.js"

export interface Said {
  readonly message: string
  readonly variant: "info" | "warning"
  readonly duration: number
}

export const SAID = "said"

export const CHANNEL: Channel = {
  id: "opencode-warmroute",
  methods: {},
  events: {
    [SAID]: {
      type: "object",
      properties: { message: { type: "string" }, variant: { type: "string" }, duration: { type: "number" } },
      required: ["message", "variant", "duration"],
      additionalProperties: false,
    },
  },
}
