"""Makes the child spans of one request from its events (`request.states`) and their times. Does no I/O."""

from collections.abc import Callable
from typing import Final

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.request.states import RequestEvent
from warmroute_proxy.server.tracing import names
from warmroute_proxy.server.tracing.finished import Child

_FAILURES: Final = frozenset(
    {RequestEvent.FAIL, RequestEvent.HOME_FAILED, RequestEvent.CRASH, RequestEvent.CLIENT_LEFT, RequestEvent.REFUSE}
)
_COMPUTED: Final = frozenset({RequestEvent.PREFILL, RequestEvent.CONTENT})


class Timeline:
    """The child spans of a request. Times are in seconds of the proxy's monotonic clock."""

    def __init__(self, new_span_id: Callable[[], int]) -> None:
        self.children: list[Child] = []
        self.waited_s: float | None = None  # how long the last wait in the queue took
        self.sent_id = 0
        """The span id of the present attempt or forward; 0 if there is no such span."""

        self._new_span_id = new_span_id
        self._waits_since_s = 0.0
        self._sent_s = 0.0
        self._computed_s = 0.0
        self._settles_since_s = 0.0

    def step(self, event: RequestEvent, now_s: float, decision: Decision | None) -> None:
        """Note an event. `decision`: the request's last decision."""
        if event in _COMPUTED:
            self._computed_s = self._computed_s or now_s
            return
        if event is RequestEvent.CLIENT_LEFT and not self._waits_since_s:
            return  # the engine goes on, or the row is being written
        self._close(now_s, decision, event.name.lower() if event in _FAILURES else "")
        if event is RequestEvent.QUEUE:
            self._waits_since_s = now_s
        elif event is RequestEvent.SETTLE:
            self._settles_since_s = now_s
        elif event is RequestEvent.DISPATCH or event is RequestEvent.FORWARD:
            self._sent_s, self._computed_s, self.sent_id = now_s, 0.0, self._new_span_id()

    def _close(self, now_s: float, decision: Decision | None, failed_by: str) -> None:
        if self._waits_since_s:
            self.waited_s = now_s - self._waits_since_s
            self.children.append(Child(names.QUEUE, self._waits_since_s, now_s, failed_by=failed_by))
            self._waits_since_s = 0.0
        if self.sent_id and decision is not None:
            self.children += self._sent(now_s, decision, failed_by)
            self.sent_id = 0
        if self._settles_since_s:
            self.children.append(Child(names.STORE, self._settles_since_s, now_s, failed_by=failed_by))
            self._settles_since_s = 0.0

    def _sent(self, now_s: float, decision: Decision, failed_by: str) -> list[Child]:
        """Make the spans of the attempt or forward that ends now."""
        sent_s, own, answering = self._sent_s, self.sent_id, decision.worker or decision.decode
        if decision.kind == "forward" or answering is None:
            region = (("warmroute.region", decision.region),)
            return [Child(names.FORWARD, sent_s, now_s, own, attributes=region, failed_by=failed_by)]
        prefill = decision.prefill or answering
        workers = [("warmroute.worker", prefill.id)]
        if prefill is not answering:
            workers.append(("warmroute.decode_worker", answering.id))
        made = [Child(names.ATTEMPT, sent_s, now_s, own, attributes=tuple(workers), failed_by=failed_by)]
        if self._computed_s:
            by_prefill, by_decode = (("warmroute.worker", prefill.id),), (("warmroute.worker", answering.id),)
            made.append(Child(names.PREFILL, sent_s, self._computed_s, 0, own, by_prefill))
            made.append(Child(names.DECODE, self._computed_s, now_s, 0, own, by_decode, failed_by))
        return made
