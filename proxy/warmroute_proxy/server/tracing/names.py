"""The names of a request's child spans. `docs/reference/tracing.md` describes all spans and attributes of a trace.

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
