"""Reads spans in OTLP's JSON, one export a line, as the OpenTelemetry Collector's file exporter writes them.

Attributes follow the semantic conventions for generative AI 1.40 (`gen_ai.usage.input_tokens`,
`gen_ai.usage.cache_read.input_tokens`). The reader also knows an older name of vLLM and LiteLLM,
`gen_ai.usage.prompt_tokens`. Spans of warmroute have the prediction and the loss classes, so all steps are known. Input
tokens include cached tokens, as the conventions require (open-telemetry/semantic-conventions #3163).

Several programs may trace one request: a client, a gateway, an engine. From each trace, only one program's spans are
read: warmroute's if there are any, otherwise those of the program with the most spans that count cached tokens. If a
span has a descendant that its own program wrote, only the descendant is read.

Limits: at most `MAX_OPEN` traces wait for further spans until the log ends. A trace has at most `MAX_SPANS` waiting
spans, and all traces together have at most `MAX_WAITING`. A span beyond these limits becomes a separate turn.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from warmroute.contract.usage import counts_of
from warmroute.files.otlp import attributes_of, spans_of
from warmroute_proxy.ladder.of_reports import Report
from warmroute_proxy.ladder.readers.lines import MAX_OPEN, count_of, day_of, json_object, nanousd_of, text_of

MODEL: Final = ("gen_ai.request.model", "gen_ai.response.model")
SESSION: Final = ("gen_ai.conversation.id", "session.id")
COST: Final = ("warmroute.cost_usd", "gen_ai.cost.total_cost", "gen_ai.usage.cost")
LOSS: Final = "warmroute.loss_tokens."
PREDICTED: Final = "warmroute.predicted_cached_tokens"
OWN: Final = "warmroute."
MAX_SPANS: Final = 1_000
MAX_WAITING: Final = 100_000


class _Span(NamedTuple):
    """A span with token counts. `program`: the name of the program that wrote it; empty for warmroute."""

    program: str
    id: str
    report: Report


class _Trace:
    """The spans of one trace so far."""

    def __init__(self) -> None:
        self.spans: list[_Span] = []
        self._parents: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._parents) + len(self.spans)

    def add(self, span: Mapping[str, Any]) -> None:
        if len(self._parents) < MAX_SPANS:
            self._parents[text_of(span.get("spanId"))] = text_of(span.get("parentSpanId"))

    def requests(self) -> list[Report]:
        if not self.spans:
            return []
        counted: dict[str, int] = {}
        for span in self.spans:
            counted[span.program] = counted.get(span.program, 0) + (span.report.reported is not None)
        chosen = max(counted, key=lambda program: (not program, counted[program]))
        own = [span for span in self.spans if span.program == chosen]
        above = {id_ for span in own for id_ in self._above(span.id)}
        return [span.report for span in own if not span.id or span.id not in above]

    def _above(self, id_: str) -> set[str]:
        found: set[str] = set()
        while (id_ := self._parents.get(id_, "")) and id_ not in found:
            found.add(id_)
        return found


class Otel:
    """Reads the spans of requests: those with a count of input tokens.

    `merged`: spans that were left out because another span of their trace shows the same request.
    """

    def __init__(self) -> None:
        self.skipped = 0
        self.merged = 0
        self._open: dict[str, _Trace] = {}
        self._waiting = 0

    def reports(self, lines: Iterable[bytes]) -> Iterator[Report]:
        for line in lines:
            export = json_object(line)
            if export is None:
                self.skipped += bool(line.strip())
                continue
            for resource, span in spans_of(export):
                yield from self._read(resource, span)
        while self._open:
            yield from self._closed()

    def _read(self, resource: Mapping[str, Any], span: Mapping[str, Any]) -> Iterator[Report]:
        attributes = attributes_of(span.get("attributes"))
        prompt, trace_id = counts_of(attributes).prompt, text_of(span.get("traceId"))
        if not trace_id:
            if prompt is not None:
                yield _report(resource, span, attributes, prompt)
            return
        is_full = trace_id not in self._open and len(self._open) >= MAX_OPEN
        if is_full or self._waiting >= MAX_WAITING:
            yield from self._closed()
        trace = self._open.setdefault(trace_id, _Trace())
        before = len(trace)
        trace.add(span)
        if prompt is not None:
            report = _report(resource, span, attributes, prompt)
            if len(trace.spans) >= MAX_SPANS:
                yield report
            else:
                trace.spans.append(_Span(_program(resource, attributes), text_of(span.get("spanId")), report))
        self._waiting += len(trace) - before

    def _closed(self) -> list[Report]:
        trace = self._open.pop(next(iter(self._open)))
        self._waiting -= len(trace)
        found = trace.requests()
        self.merged += len(trace.spans) - len(found)
        return found


def _program(resource: Mapping[str, Any], attributes: Mapping[str, Any]) -> str:
    """The name of the program that wrote a span; empty for warmroute."""
    is_own = any(name.startswith(OWN) for name in attributes)
    return "" if is_own else text_of(resource.get("service.name")) or "(no name)"


def _report(resource: Mapping[str, Any], span: Mapping[str, Any], attributes: Mapping[str, Any], prompt: int) -> Report:
    loss = {
        name.removeprefix(LOSS): tokens
        for name, value in attributes.items()
        if name.startswith(LOSS) and (tokens := count_of(value)) is not None
    }
    counts, predicted = counts_of(attributes), count_of(attributes.get(PREDICTED))
    started_ns = count_of(str(span.get("startTimeUnixNano", ""))[:-9]) or 0
    return Report(
        prompt_tokens=prompt,
        completion_tokens=counts.completion or 0,
        reported=counts.cached,
        predicted=predicted,
        cost_nanousd=next((found for name in COST if (found := nanousd_of(attributes.get(name))) is not None), None),
        loss=loss if predicted is not None else None,
        worker=text_of(resource.get("service.instance.id")),
        keys={
            "session": _text(attributes, SESSION),
            "tenant": text_of(attributes.get("enduser.id")),
            "model": _text(attributes, MODEL),
            "harness": text_of(attributes.get("user_agent.original")).partition("/")[0],
            "day": day_of(started_ns),
        },
    )


def _text(attributes: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((found for name in names if (found := text_of(attributes.get(name)))), "")
