"""Reads what decides a request's place in its tenant's queue (`core.queue.programs`): its priority and its program.

    x-warmroute-priority             interactive, normal or background
    x-gateway-inference-objective    these words, or flex, batch, priority: the names of objectives that clusters use
    service_tier (body)              flex or priority, as OpenAI has them; other tiers are ignored
    x-gateway-inference-fairness-id  the name of a program of the API key's tenant

The first of these that states a priority counts; if there is no such header or member, the tenant's `default_priority`
counts. Headers with other values, and all other `STANDING_HEADERS`, have no effect; the record of the decision names
them. In llm-d, the headers `x-gateway-inference-...` are also spelt `x-llm-d-inference-...`; both spellings are read
(https://llm-d.ai/docs/api-reference/epp-http-headers).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, get_args

from warmroute.contract import headers as names
from warmroute_proxy.core.queue.programs import BACKGROUND, INTERACTIVE, NORMAL, Priority

PRIORITY_NAMES: Final[tuple[str, ...]] = get_args(Priority)
_BY_WORD: Final[Mapping[str, int]] = {name: number for number, name in enumerate(PRIORITY_NAMES)}
_BY_OBJECTIVE: Final[Mapping[str, int]] = {
    **_BY_WORD, "priority": INTERACTIVE, "flex": BACKGROUND, "batch": BACKGROUND
}  # fmt: skip
_BY_TIER: Final[Mapping[str, int]] = {"priority": INTERACTIVE, "flex": BACKGROUND}


class Standing(NamedTuple):
    """What decides a request's place in its tenant's queue. `stated`: whether the client states a priority. `program`:
    the client's name for the program, or empty. `program_key`: a hash of this name under the tenant's key. `ignored`:
    headers without effect. `parent`: the session that started the request's session, if the client names it.
    """

    priority: int = NORMAL
    stated: bool = False
    program: str = ""
    ignored: tuple[str, ...] = ()
    program_key: int | None = None
    parent: int | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether decision records show it: the client stated something, or the priority is not `normal`."""
        return self.stated or self.priority != NORMAL or bool(self.program or self.ignored)

    def with_default(self, word: str) -> "Standing":
        """A copy with the tenant's `default_priority`, which counts if the client states no priority."""
        priority = _BY_WORD[word]
        return self if self.stated or priority == self.priority else self._replace(priority=priority)

    def with_tier(self, tier: object) -> "Standing":
        """A copy with the priority of a `service_tier`, which counts if no header states a priority."""
        priority = None if self.stated or not isinstance(tier, str) else _BY_TIER.get(tier)
        return self if priority is None else self._replace(priority=priority, stated=True)


NO_STANDING: Final = Standing()


def standing_of(identity: Mapping[str, str]) -> Standing:
    """The standing of a request with these headers, whose names are lower case."""
    found = names.STANDING_HEADERS.intersection(identity)
    if not found:
        return NO_STANDING
    priority = _BY_WORD.get(identity.get(names.PRIORITY, ""))
    ignored = sorted(found - {names.PRIORITY, *names.OBJECTIVES, *names.FAIRNESS_IDS})
    if priority is None and names.PRIORITY in found:
        ignored.append(names.PRIORITY)
    for name in names.OBJECTIVES:
        if name in found:
            objective = _BY_OBJECTIVE.get(identity[name])
            if objective is None or (priority is not None and priority != objective):
                ignored.append(name)
            elif priority is None:
                priority = objective
    program = next((identity[name] for name in names.FAIRNESS_IDS if identity.get(name)), "")
    return Standing(NORMAL if priority is None else priority, priority is not None, program, tuple(ignored))
