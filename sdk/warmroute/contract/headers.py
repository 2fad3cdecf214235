"""Names of the headers that warmroute reads and adds, all lower case."""

from typing import Final

AFFINITY: Final = "x-session-affinity"
"""The session key of a request, chosen by the client; opaque, at most 256 bytes, printable."""

DERIVED: Final = "x-warmroute-session-derived"
"""`1` if the affinity key was derived from the prompt, not chosen by the client: a weak hint."""

IDEMPOTENCY: Final = "idempotency-key"
"""The key of a logical call, equal over its retries; at most 256 bytes, printable."""

AGENT: Final = "x-warmroute-agent"
"""The name of the agent that sends a request, such as `explore`; shown in its receipt, at most 64 bytes, printable."""

NAME: Final = "x-warmroute-session-name"
"""A name of the session for people, such as `fix the tests`; shown in its receipts, at most 64 bytes, printable."""

HARNESS: Final = "x-warmroute-harness"
"""The name of the program that sends a request, such as `opencode`; shown in its receipt, at most 64 bytes. Without it,
the receipt shows the first product of `user-agent`."""

KIND: Final = "x-warmroute-kind"
"""The purpose of a request: one of `identity.KINDS`; shown in its receipt."""

EXPECT: Final = "x-warmroute-expect"
"""The next step after a turn: `tool` (its answer calls tools), `human` (a person reads it) or `end` (the last turn).
The value decides how long the session's KV is worth keeping; other values are ignored."""

WAIT: Final = "x-warmroute-wait"
"""`no`: a request that would wait to begin its session, because the fleet's KV memory is full, is refused at once with
the expected waiting time. Other values are ignored."""

PRIORITY: Final = "x-warmroute-priority"
"""`interactive` or `background`: whether a waiting request goes before or after other requests of its tenant. The value
changes nothing for other tenants. Other values are ignored."""

OBJECTIVES: Final = ("x-gateway-inference-objective", "x-llm-d-inference-objective")
"""The priority, in the headers that clients of the Gateway API's inference extension and of llm-d send."""

FAIRNESS_IDS: Final = ("x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id")
"""The name of the program that sends a request. The programs of a tenant get equal shares of the tenant's capacity."""

STANDING_HEADERS: Final = frozenset(
    {
        PRIORITY,
        *OBJECTIVES,
        *FAIRNESS_IDS,
        "x-gateway-model-name-rewrite",
        "x-llm-d-model-name-rewrite",
        "x-slo-ttft-ms",
        "x-slo-tpot-ms",
        "x-prediction-based-scheduling",
    }
)
"""The headers for priority and fairness, and further headers of the Gateway API's extension and of llm-d. The further
headers have no effect, but the record of a request's placement names them."""

HOME: Final = "x-warmroute-home"
"""Response: the region that holds the session's KV. The client sends the header back with the next turn. A turn that
comes in at the wrong region costs a hop, or the cache."""

RECEIPT: Final = "x-warmroute-receipt"
"""Response: the id of the turn's receipt (`usage.warmroute`), in the head of each response to a dispatched request."""

FORWARD: Final = "x-warmroute-forward"
"""Between proxies only: the proxy that forwards, signed with the fleet secret. Dropped from clients' requests."""
