"""What one cache still holds of the conversations that were computed there, by its size and the order of their use.

An engine does not report evictions, unless it publishes KV events. A home that has evicted a conversation is a home no
longer: the conversation's next turn has no reason to wait there, and its prompt is unforeseen work that delays others.

Engines drop what was used least lately (SGLang: the leaves of its tree, so a conversation from its end on). So the
histories of a worker are kept here in the order of their last use, each with the tokens that it alone uses. As long as
they are more than the cache can hold, the oldest that no turn under way uses has lost its end, or is gone. A large
prompt displaces as much as it is long.

What the cache can hold is `kept_tokens`: the KV pool that the engine reports, less what experience takes from it. A
turn that finds its history gone although it counted as cached shows that all that was older is gone too, and that no
more fits than was used since: `kept_tokens` falls to that, in steps. A turn that finds its history although it counted
as evicted raises it. Where nothing is reported, it is infinite until the first history is missed.

Not learned: of engines that never report anything as cached, of engines whose events report evictions, of workers with
a host tier or a store, of other regions. Limit: `MAX_HISTORIES` of a worker, divided by tenant
(`warmroute.contract.shares`): of the tenant that has most, the oldest is forgotten and then counts as cached.
"""

import math
from collections import OrderedDict
from typing import Final, NamedTuple

from warmroute.contract.shares import Division

MAX_HISTORIES: Final = 10_000
MAX_SHARED: Final = 64
"""Prefixes that several conversations share, of a worker; the oldest is forgotten."""
MIN_TOKENS: Final = 1024
MIN_SHARE: Final = 1 / 8
"""A shorter history, or a smaller share of its prompt, teaches nothing: pages and errors of estimates are as long."""
LOWERED: Final = 0.1
"""How far each history that was missed lowers `kept_tokens`: a share of the difference."""
RAISED: Final = 1.05
FIRST: Final = 1.5
"""The first history that was missed sets `kept_tokens` to what was used since times this factor."""


class History:
    """What a worker holds of one conversation. `use` numbers its last use; `turns` are those under way. `tenant`: whose
    it is, if there are several.
    """

    __slots__ = ("lineage", "tenant", "tokens", "turns", "use")

    def __init__(self, lineage: int, tenant: str) -> None:
        self.lineage = lineage
        self.tenant = tenant
        self.tokens = 0
        self.turns = 0
        self.use = 0


class Evicted(NamedTuple):
    """What a cache must have evicted: of a lineage, `left` tokens remain, from its start."""

    lineage: int
    left: int
    tenant: str = ""


class Occupancy:
    """The histories of one worker."""

    __slots__ = (
        "_by_lineage",
        "_division",
        "_is_divided",
        "_max",
        "_pool_tokens",
        "_shared",
        "_tokens",
        "_uses",
        "has_events",
        "kept_tokens",
        "reports",
    )

    def __init__(self, max_histories: int = MAX_HISTORIES) -> None:
        self._max = max_histories
        self._is_divided = False  # so is what is more than half of the limit
        self._division: Division[int, History] = Division(lambda _, history: history.tenant)
        self._by_lineage: OrderedDict[int, History] = OrderedDict()  # the oldest first
        self._shared: dict[int, int] = {}
        self._tokens = 0
        self._uses = 0
        self._pool_tokens: float = math.inf
        self.kept_tokens: float = math.inf
        self.reports = False  # has reported anything as cached: an engine that never does teaches nothing
        self.has_events = False  # KV events report each eviction

    def set_pool(self, tokens: int) -> None:
        if tokens != self._pool_tokens:
            share = 1.0 if self._pool_tokens == math.inf else self.kept_tokens / self._pool_tokens
            self._pool_tokens = float(tokens)
            known = self.kept_tokens != math.inf
            self.kept_tokens = min(self._pool_tokens, self.kept_tokens) if known else tokens * share

    def use(self, lineage: int, tokens: int, tenant: str = "") -> History:
        """A conversation uses `tokens` of its own here now; its history."""
        history = self._by_lineage.get(lineage)
        if history is not None:
            self._by_lineage.move_to_end(lineage)
            if self._is_divided:
                self._division.stored(lineage, self._by_lineage)
        else:
            history = self._by_lineage[lineage] = History(lineage, tenant)
            if self._is_divided or len(self._by_lineage) > self._max // 2:
                self._divide(lineage)
        self._tokens += tokens - history.tokens
        history.tokens = tokens
        self._uses += 1
        history.use = self._uses
        return history

    def _divide(self, lineage: int) -> None:
        """One more conversation is here, and they are many: of the tenant that has most, the oldest goes."""
        self._is_divided = True
        self._division.stored(lineage, self._by_lineage)
        if len(self._by_lineage) > self._max:
            self._tokens -= self._forget(self._division.next_to_go()).tokens

    def resize(self, lineage: int, tokens: int) -> None:
        """A conversation that is here has `tokens` of its own; nothing uses it now."""
        history = self._by_lineage.get(lineage)
        if history is not None:
            self._tokens += tokens - history.tokens
            history.tokens = tokens

    def share(self, prefix: int, tokens: int) -> None:
        """A prefix (its last hash) of `tokens` that several conversations use is here, once."""
        known = self._shared.get(prefix)
        if known is None:
            self._shared[prefix] = tokens
            self._tokens += tokens
            if len(self._shared) > MAX_SHARED:
                self._tokens -= self._shared.pop(next(iter(self._shared)))

    def history(self, lineage: int) -> History | None:
        """What is here of a conversation, None if nothing is."""
        return self._by_lineage.get(lineage)

    def last_use(self, lineage: int) -> int:
        """The number of the last use of a history, 0 if none is known."""
        history = self._by_lineage.get(lineage)
        return 0 if history is None else history.use

    def is_overfull(self) -> bool:
        """Whether more was used than can be there."""
        return self._tokens > self.kept_tokens and self.reports

    def evicted(self) -> list[Evicted]:
        """The lineages whose histories must have made room."""
        gone: list[Evicted] = []
        for lineage, history in self._by_lineage.items():
            excess = self._tokens - self.kept_tokens
            if excess <= 0:
                break
            if not history.turns and history.tokens:
                left = history.tokens - math.ceil(excess)
                left = left if left >= MIN_TOKENS else 0
                self._tokens -= history.tokens - left
                history.tokens = left
                gone.append(Evicted(lineage, left, history.tenant))
        for each in gone:
            if not each.left:
                self._forget(each.lineage)
        return gone

    def _forget(self, lineage: int) -> History:
        self._division.discard(lineage)
        return self._by_lineage.pop(lineage)

    def missed(self, lineage: int, used_before: int) -> list[Evicted]:
        """A history whose last use had this number was gone: learn from it. The lineages that are gone with it, each
        with the 0 tokens that it has left.
        """
        since = sum([each.tokens for each in self._by_lineage.values() if each.use > used_before])
        since -= self._by_lineage[lineage].tokens if lineage in self._by_lineage else 0
        if self.kept_tokens == math.inf:
            self.kept_tokens = FIRST * since
        elif since < self.kept_tokens:
            self.kept_tokens += LOWERED * (since - self.kept_tokens)
        gone = [each for each in self._by_lineage.values() if each.use < used_before and not each.turns]
        for older in gone:
            self._tokens -= self._forget(older.lineage).tokens
        return [Evicted(older.lineage, 0, older.tenant) for older in gone]

    def found(self) -> None:
        self.kept_tokens = min(self._pool_tokens, self.kept_tokens * RAISED)
