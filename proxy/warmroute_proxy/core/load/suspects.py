"""Remembers requests that may have ended an engine's process, and limits their retries.

Some requests end the process that serves them, and a retry then ends the next one. The proxy cannot know which request
did it: when a process ends, each of its requests without a first token becomes a *suspect*. The rules:

- A suspect is retried once, and only if all fields of its body are on the API dialect's list, with values within
  bounds.
- A suspect never goes to an engine that runs another tenant's suspect, so the end of a process harms only one tenant.
- While a suspect waits for its first token at an engine, copies of it go to no other engine.
- A request that became a suspect at the end of two processes is refused for `REFUSED_S`.

Requests are identified by tenant and fingerprint of the prompt, so requests with equal prompts are copies of one. The
end of a process counts once for all copies that it ran: those that were sent before its end was seen.

At most `MAX_SUSPECTS` are remembered, divided by tenant (`warmroute.contract.shares`): the tenant that has most
suspects loses its oldest first.
"""

from collections import OrderedDict
from typing import Final

from warmroute.contract.shares import Division
from warmroute_proxy.core.load.blame import Request

REFUSED_S: Final = 600.0
MAX_SUSPECTS: Final = 10_000
ENDS_TO_REFUSE: Final = 2


class _Suspicion:
    """How many processes ended before this request had a token, and when and on which engine the last one ended."""

    __slots__ = ("ends", "last_end_s", "last_engine")

    def __init__(self) -> None:
        self.ends = 0
        self.last_end_s = 0.0
        self.last_engine = ""


class Suspects:
    """The suspects of one proxy process. `now_s` never goes back."""

    def __init__(self) -> None:
        self.by_request: OrderedDict[Request, _Suspicion] = OrderedDict()
        self._division: Division[Request, _Suspicion] = Division(lambda request, _: request[0])

    def process_ended(self, request: Request, engine: str, sent_s: float, now_s: float, *, bounded: bool) -> bool:
        """Record that `request` had no token when its engine's process ended. Returns whether the request may be
        retried.

        `sent_s`: when the request was sent to the engine. `bounded`: whether all of its fields are on the dialect's
        list, within bounds.
        """
        self._forget(now_s)
        suspicion = self.by_request.get(request)
        if suspicion is None:
            suspicion = self.by_request[request] = _Suspicion()
        elif engine == suspicion.last_engine and sent_s < suspicion.last_end_s:
            return bounded and suspicion.ends < ENDS_TO_REFUSE
        suspicion.ends += 1
        suspicion.last_end_s = now_s
        suspicion.last_engine = engine
        self.by_request.move_to_end(request)
        if self._division.begun or 2 * len(self.by_request) > MAX_SUSPECTS:
            self._division.stored(request, self.by_request)
            if len(self.by_request) > MAX_SUSPECTS:
                self.cleared(self._division.next_to_go())
        return bounded and suspicion.ends < ENDS_TO_REFUSE

    def refused_for_s(self, request: Request, now_s: float) -> float:
        """For how many seconds from now a request is refused; 0 if it is not refused."""
        suspicion = self.by_request.get(request)
        if suspicion is None or suspicion.ends < ENDS_TO_REFUSE:
            return 0.0
        return max(0.0, suspicion.last_end_s + REFUSED_S - now_s)

    def is_suspect(self, request: Request, now_s: float) -> bool:
        """Whether a request became a suspect within the last `REFUSED_S`."""
        suspicion = self.by_request.get(request)
        return suspicion is not None and now_s - suspicion.last_end_s < REFUSED_S

    def cleared(self, request: Request) -> None:
        """Forget a suspect, for example once it has its first token: a request ends its process only before that."""
        if self.by_request.pop(request, None) is not None:
            self._division.discard(request)

    def _forget(self, now_s: float) -> None:
        """Drop the suspects whose last process ended more than `REFUSED_S` ago; suspects are sorted by that time."""
        while self.by_request:
            request, suspicion = next(iter(self.by_request.items()))
            if now_s - suspicion.last_end_s < REFUSED_S:
                return
            self.cleared(request)
