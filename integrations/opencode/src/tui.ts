// The terminal part under OpenCode V2: it shows what the server's part says.

import { CHANNEL, type Said, SAID } from "./channel.js"
import type { TuiContext } from "./v2_types.js"

export default {
  id: "opencode-warmroute",
  setup(context: TuiContext): (() => void) | undefined {
    try {
      return context.client.rpc(CHANNEL).events.on(SAID, (payload) => show(context, payload))
    } catch {
      return undefined
    }
  },
}

/** The payload itself, or an event that holds it as `data`. */
function show(context: TuiContext, payload: unknown): void {
  const outer = payload as Partial<Said> & { data?: Partial<Said> }
  const { message, variant, duration } = outer?.data ?? outer ?? {}
  if (typeof message !== "string") return
  try {
    context.ui.toast.show({ title: "warmroute", message, ...(variant && { variant }), ...(duration && { duration }) })
  } catch {
    // a terminal that shows no toasts
  }
}
