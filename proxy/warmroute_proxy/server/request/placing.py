"""Decides where a request goes: the router chooses a worker or region, and admission may let the request wait."""

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.request.admission import Admission, RequestToAdmit
from warmroute_proxy.server.request.failure import no_worker
from warmroute_proxy.server.request.faults import Faults
from warmroute_proxy.server.request.request_metrics import RequestMetrics


class Placing:
    def __init__(
        self, router: Router, engines: Engines, admission: Admission, faults: Faults, metrics: RequestMetrics
    ) -> None:
        self.router = router
        self._faults = faults
        self._engines = engines
        self._admission = admission
        self._metrics = metrics

    def place(self, request: RequestToAdmit, now_s: float) -> Decision | None:
        """Return where a request goes now, or None if it was queued or refused."""
        parsed, router = request.parsed, self.router
        if self._faults.suspects and (refusal := self._faults.refusal(parsed, now_s)) is not None:
            request.refused(refusal)
            return None
        try:
            decision = router.place(request.routing, now_s, request.excluded)
        except NoWorker as error:
            causes = self._engines.why_unavailable(error.model) if error.served else ""
            request.refused(no_worker(error, causes, split=parsed.choices > 1 and self._engines.all_split()))
            return None
        return self._admission.enter(request, decision, now_s)

    def place_again(
        self,
        request: RequestToAdmit,
        now_s: float,
        failed: tuple[str, ...] | None,
        admitted: frozenset[str] = frozenset(),
    ) -> Decision | None:
        """Return where the next attempt goes. None if no worker has capacity, the budget of retries is spent, or equal
        requests have ended engines.

        `failed`: the workers that failed in the last attempt. The next one goes to another rank of their engines only
        if no other engine can take it, and takes from the budget of retries. None: the request was only changed.
        `admitted`: the workers that had let it in, to which it may go although they are full by now.
        """
        router = self.router
        routing = request.routing = request.routing.stay()
        if self._faults.refusal(request.parsed, now_s) is not None:
            return None
        excluded = request.excluded | (router.full(routing.model) - admitted)
        decision = None
        if failed:
            decision = self._placed(routing, now_s, excluded | router.ranks_beside(failed))
        if decision is None:
            decision = self._placed(routing, now_s, excluded)
        if decision is not None and failed is not None:
            if not self._admission.retries.spend(now_s):
                self._metrics.retry_refused()
                return None
            self._metrics.retried()
        return decision

    def _placed(self, routing: RoutingRequest, now_s: float, excluded: frozenset[str]) -> Decision | None:
        try:
            return self.router.place(routing, now_s, excluded)
        except NoWorker:
            return None
