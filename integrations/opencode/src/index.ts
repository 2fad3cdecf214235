// The plugin: OpenCode V1 calls `server` (from 1.18.29 on), V2 calls `setup`.

import { server } from "./v1.js"
import { setup } from "./v2.js"

export default { id: "opencode-warmroute", server, setup }
