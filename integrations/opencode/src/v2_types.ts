// What this plugin uses of OpenCode V2's plugin API.
//
// Mirrored from anomalyco/opencode: packages/plugin/src/promise/{plugin,session,command,event,adapter}.ts and
// packages/plugin/src/tui/context.ts, as of September 2026 (@opencode/plugin 2.0). The package itself is not needed: V2
// calls `setup` with an object of this shape.

export type RequestKind = "primary" | "compaction" | "title" | "generate"

interface Scope {
  readonly sessionID: string
  readonly agent: string
  readonly model: { readonly providerID: string; readonly id: string }
  readonly kind: RequestKind
}

export interface ContextEvent extends Omit<Scope, "kind"> {
  system: Array<{ type: "text"; text: string }>
  tools: Record<string, { description: string; input: unknown }>
}

export interface ModelRequestEvent extends Scope {
  baseURL?: string
  headers: Record<string, string>
}

export interface HttpResponseEvent extends Scope {
  response: Response
}

export interface SessionHooks {
  context: ContextEvent
  "model.request": ModelRequestEvent
  "http.response": HttpResponseEvent
}

export interface SessionInfo {
  readonly id: string
  readonly parentID?: string
  readonly title?: string
  readonly directory?: string
  readonly time?: { readonly created?: number }
}

export interface CommandDefinition {
  readonly name: string
  readonly description?: string
  readonly execute: (input: { readonly sessionID: string }) => Promise<void>
}

/** A definition of messages from the server's part of a plugin to its terminal part, with JSON schemas. */
export interface Channel {
  readonly id: string
  readonly methods: Record<string, never>
  readonly events: Record<string, object>
}

export interface Context {
  readonly options: unknown
  readonly session: {
    hook<Name extends keyof SessionHooks>(
      name: Name,
      callback: (event: SessionHooks[Name]) => Promise<void> | void,
    ): Promise<unknown>
    get(input: { sessionID: string }): Promise<SessionInfo>
  }
  readonly command: {
    transform(callback: (editor: { add(definition: CommandDefinition): void }) => void): Promise<unknown>
  }
  readonly event: {
    subscribe(options?: { readonly signal?: AbortSignal }): AsyncIterable<{ readonly type: string; readonly data?: unknown }>
  }
  readonly rpc: {
    register(channel: Channel, handlers: object): Promise<{ events: { emit(name: string, payload: object): Promise<void> } }>
  }
}

export interface TuiContext {
  readonly client: {
    rpc(channel: Channel): { events: { on(name: string, handler: (payload: unknown) => void): () => void } }
  }
  readonly ui: {
    readonly toast: { show(input: { title?: string; message: string; variant?: string; duration?: number }): void }
  }
}
