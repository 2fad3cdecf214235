"""Opt-in telemetry: a span for each turn, with OpenTelemetry's attributes of generative AI and ours.

All names are pinned here. Those that begin with `gen_ai` are of the semantic conventions 1.40
(opentelemetry.io/docs/specs/semconv/gen-ai); the others are ours. No attribute has text of a prompt.
"""

import time
from importlib import import_module
from typing import Any, Final

from warmroute._turns import Turn

OPERATION: Final = "gen_ai.operation.name"
MODEL: Final = "gen_ai.request.model"
CONVERSATION: Final = "gen_ai.conversation.id"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
RECEIPT: Final = "warmroute.receipt.id"
REGION: Final = "warmroute.region"
COST_USD: Final = "warmroute.cost_usd"
SAVED_USD: Final = "warmroute.saved_usd"
CAUSE: Final = "warmroute.guard.cause"
WHERE: Final = "warmroute.guard.where"
TOKENS_LOST: Final = "warmroute.guard.tokens_lost"
REPAIRED_BY: Final = "warmroute.guard.repaired_by"

_NANO: Final = 1e9


class Telemetry:
    """Spans of turns, to the tracer provider of the program."""

    def __init__(self) -> None:
        """`ImportError` that says what to install, where OpenTelemetry's API is not there."""
        try:
            trace: Any = import_module("opentelemetry.trace")
            propagation: Any = import_module("opentelemetry.trace.propagation.tracecontext")
        except ImportError:
            raise ImportError("telemetry=True needs OpenTelemetry: pip install 'warmroute[telemetry]'") from None
        self._tracer = trace.get_tracer("warmroute")
        self._trace = trace
        self._propagator = propagation.TraceContextTextMapPropagator()

    def begun(self, turn: Turn) -> dict[str, str]:
        """Begin the span of a turn; the headers with which a server continues its trace."""
        carrier: dict[str, str] = {}
        turn.span = self._started(turn)
        self._propagator.inject(carrier, self._trace.set_span_in_context(turn.span))
        return carrier

    def settled(self, turn: Turn) -> None:
        """The usage of a turn is known: its span is from its request until now."""
        span = turn.span or self._started(turn)
        span.set_attributes(attributes_of(turn))
        span.end(end_time=time.time_ns())

    def failed(self, turn: Turn) -> None:
        """The call has failed: its span says so."""
        if turn.span is not None:
            turn.span.set_attributes(attributes_of(turn))
            turn.span.set_status(self._trace.StatusCode.ERROR)
            turn.span.end(end_time=time.time_ns())

    def _started(self, turn: Turn) -> Any:
        return self._tracer.start_span(f"chat {turn.model}", kind=self._trace.SpanKind.CLIENT, start_time=turn.begun_ns)


def attributes_of(turn: Turn) -> dict[str, str | int | float]:
    """The attributes of a turn; what is not known is left out."""
    found: dict[str, object] = {OPERATION: "chat", MODEL: turn.model, CONVERSATION: turn.session}
    if (measured := turn.measured) is not None:
        found |= {INPUT_TOKENS: measured.prompt_tokens, CACHED_TOKENS: measured.cached_tokens}
        found |= {OUTPUT_TOKENS: measured.completion_tokens, RECEIPT: turn.receipt_id, REGION: measured.region}
        if (amounts := measured.amounts_nanousd) is not None:
            found |= {COST_USD: amounts.cost / _NANO, SAVED_USD: amounts.saved / _NANO}
    checked = turn.checked
    event = checked.event if checked is not None and checked.event is not None else turn.miss
    if event is not None:
        found |= {CAUSE: str(event.cause), WHERE: event.where, TOKENS_LOST: event.tokens_lost}
    if checked is not None and checked.repairs:
        found |= {REPAIRED_BY: str(checked.repairs[0].repaired_by)}
    return {name: value for name, value in found.items() if isinstance(value, (str, int, float))}
