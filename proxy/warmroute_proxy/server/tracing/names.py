"""The names of all spans and attributes of a trace: `docs/reference/tracing.md` has them in one table.

Names that begin with `warmroute` are our own. The other names follow OpenTelemetry's semantic conventions 1.40
(opentelemetry.io/docs/specs/semconv). No attribute contains prompt text, a key, or a client's name for its session.
"""

from typing import Final

QUEUE: Final = "queue"
ATTEMPT: Final = "attempt"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
FORWARD: Final = "forward"
STORE: Final = "store"

SPANS: Final = {
    QUEUE: "Waiting for capacity, for KV memory or for a limit.",
    ATTEMPT: "One dispatch to an engine, or to a prefill and decode pair. Engines continue the trace from this span.",
    PREFILL: "From the dispatch until the prompt is computed. In a pair: the prefill leg.",
    DECODE: "From then to the end of the engine's answer. In a pair: the decode leg.",
    FORWARD: "Another region serves the request. Its proxy continues the trace from this span.",
    STORE: "The settled row is written to the journal; the end of the answer waits for it.",
}
"""Child spans by name."""

REQUEST_ATTRIBUTES: Final = {
    "gen_ai.operation.name": "`text_completion` for `/v1/completions`, `embeddings` for `/v1/embeddings`, else `chat`.",
    "gen_ai.provider.name": "`warmroute`.",
    "gen_ai.request.model": "The model, by its name in the config.",
    "gen_ai.conversation.id": "The session's hash, as in the receipt. Absent without a session.",
    "gen_ai.usage.input_tokens": "Prompt tokens, cached ones included.",
    "gen_ai.usage.cache_read.input_tokens": "Cached prompt tokens.",
    "gen_ai.usage.output_tokens": "Completion tokens.",
    "gen_ai.response.time_to_first_chunk": "Seconds to the first content. Absent if none came.",
    "http.request.method": "`POST`.",
    "http.route": "The route.",
    "http.response.status_code": "The status; absent if the client left before it, or another region answers.",
    "error.type": "The code of a refusal, or else the outcome. Absent if that is `completed` or `forwarded`.",
    "warmroute.receipt.id": "The receipt's id, as in the response header.",
    "warmroute.turn": "Number of the turn in its session.",
    "warmroute.stream": "Whether the answer is streamed.",
    "warmroute.outcome": "The ledger entry's, or without one: `forwarded`, `refused`, `client_left` or `interrupted`.",
    "warmroute.attempts": "Number of attempts.",
    "warmroute.predicted_cached_tokens": "Prompt tokens that placement predicted to be cached.",
    "warmroute.cached_tokens": "Cached prompt tokens by tier: `.device`, `.host` and `.storage` are appended.",
    "warmroute.loss_tokens": "Prompt tokens not cached, by loss class: `.new`, `.evicted` and so on are appended.",
    "warmroute.cost_usd": "The price, USD.",
    "warmroute.saved_usd": "The list price less the price, USD.",
    "warmroute.proxy_ms": "The proxy's own time, milliseconds.",
    "warmroute.forwarded_from": "The region that has forwarded the request. Absent otherwise.",
}
"""Attributes of the request's span."""

CHILD_ATTRIBUTES: Final = {
    "warmroute.worker": "`attempt`, `prefill`, `decode`: the worker's id.",
    "warmroute.decode_worker": "`attempt`: the decode worker of a pair. Absent otherwise.",
    "warmroute.region": "`forward`: the region that serves the request.",
    "warmroute.event": "`queue`, `attempt`, `decode`, `forward`, `store`: the cause of a failure.",
}
"""Attributes of child spans."""

RESOURCE_ATTRIBUTES: Final = {
    "service.name": "`service_name` of the config.",
    "service.version": "warmroute's version.",
    "service.instance.id": "Host name and process id.",
    "warmroute.region": "The proxy's region.",
}
"""Attributes of the resource, which all spans share."""
