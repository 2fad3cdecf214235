"""Decides where a request goes: the router chooses a worker or region, and admission may let the request wait."""

from warmroute_proxy.core.placement.choices import NoWorker
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.router import Router
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
        parsed, router, excluded = request.parsed, self.router, request.excluded
        if self._faults.has_suspects:
            refusal = self._faults.refusal(parsed, now_s)
            if refusal is not None:
                request.refused(refusal)
                return None
            excluded |= self._faults.closed_to(parsed, now_s)
        try:
            decision = router.place(request.routing, now_s, excluded)
        except NoWorker as error:
            causes = self._engines.why_unavailable(error.model) if error.served else ""
            request.refused(no_worker(error, causes, split=parsed.choices > 1 and self._engines.all_split()))
            return None
        return self._admission.enter(request, decision, now_s)

    def place_again(self, request: RequestToAdmit, now_s: float, *, after_failure: bool = True) -> Decision | None:
        """Return where the next attempt goes, or None if no worker has capacity or the budget of retries is spent.

        `after_failure`: the last attempt failed, so the next one is a retry: it takes from the budget of retries, and
        may not go to a full worker. Otherwise the request was only changed: it may, since it was admitted before.
        """
        parsed, router = request.parsed, self.router
        routing = request.routing = request.routing.stay()
        full = router.full(routing.model) if after_failure else frozenset[str]()
        try:
            closed = self._faults.closed_to(parsed, now_s)
            decision = router.place(routing, now_s, request.excluded | full | closed)
        except NoWorker:
            return None
        if after_failure:
            if not self._admission.retries.spend(now_s):
                self._metrics.retry_refused()
                return None
            self._metrics.retried()
        return decision
