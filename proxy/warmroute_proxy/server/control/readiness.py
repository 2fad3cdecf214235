"""Whether requests should be sent to this proxy now, for `/ready`, `/metrics` and the picker's health check."""

from collections.abc import Callable, Sequence
from typing import Final

from warmroute_proxy.core.base.trouble import Problem, Trouble
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.ledger.ledger import Ledger
from warmroute_proxy.server.request.open_requests import OpenRequests

OF_ENGINES: Final = frozenset({Trouble.NO_ENGINE, Trouble.ALL_ENGINES_DRAIN})


class Readiness:
    def __init__(
        self,
        open_requests: OpenRequests,
        ledger: Ledger,
        engines: Engines,
        degraded: Sequence[Callable[[], list[Problem]]],
        other_regions_up: Callable[[], bool],
    ) -> None:
        """`degraded`: functions that return problems with which the proxy still serves requests. `other_regions_up`:
        returns whether turns can be forwarded to another region.
        """
        self._other_regions_up = other_regions_up
        self._open_requests = open_requests
        self._ledger = ledger
        self._engines = engines
        self._degraded = degraded

    def degraded(self) -> list[Problem]:
        found = [problem for problems in self._degraded for problem in problems()]
        return [*found, *self._of_engines()] if self.elsewhere else found

    @property
    def elsewhere(self) -> bool:
        """Whether no engine of this region takes turns, but another region can serve them. Then other regions must not
        forward turns to this region.
        """
        return bool(self._of_engines()) and self._other_regions_up()

    def problems(self) -> list[Problem]:
        """The reasons to send no requests here; empty if the proxy is ready."""
        reasons = []
        if self._open_requests.closed:
            reasons.append(Problem(Trouble.SHUTTING_DOWN, "shutting down"))
        if not self._ledger.healthy:
            waiting = self._ledger.waiting
            what = "the volume of state_dir is full" if self._ledger.short_of_space else "the ledger cannot be written"
            text = what + (f": the rows of {waiting} turns wait" if waiting else "")
            reasons.append(Problem(Trouble.LEDGER_UNWRITABLE, text))
        return reasons if self.elsewhere else [*reasons, *self._of_engines()]

    def _of_engines(self) -> list[Problem]:
        up = [engine_id for engine_id, engine in self._engines.by_id.items() if engine.serves]
        if not up:
            return [Problem(Trouble.NO_ENGINE, "no engine is up")]
        if all(map(self._engines.drains.draining, up)):
            return [Problem(Trouble.ALL_ENGINES_DRAIN, "all engines that are up drain")]
        return []

    def can_answer(self) -> bool:
        """Whether a gateway should ask this picker (a proxy that chooses engines for the gateway). It should even if no
        engine is up, since only the picker tells clients of this.
        """
        return not any(problem.trouble not in OF_ENGINES for problem in self.problems())

    def troubles(self) -> tuple[str, ...]:
        """The names of all problems that this process reports at `/ready`."""
        return tuple({problem.trouble.value for problem in (*self.problems(), *self.degraded())})
