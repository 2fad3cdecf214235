"""Estimates which conversations a worker's cache still holds, from its size and the order in which they were last used.

An engine reports evictions only if it publishes KV events. Without events, evictions have to be guessed. If a worker
has evicted a conversation, the next turn has no reason to wait for that worker, and computing its prompt there would be
unforeseen work that delays other requests.

Engines drop what was used least recently (SGLang: the leaves of its tree, so a conversation loses its end first). So
the histories (the cached text of one conversation each) of a worker are kept here in the order of their last use, each
with the tokens that no other conversation uses. While all histories together exceed what the cache can hold, the least
recently used history counts as cut at its end, or as gone, unless a turn under way uses it. A prompt displaces as many
tokens as it has.

`kept_tokens` is what the cache can hold: the KV pool that the engine reports, corrected by experience. If a turn finds
its history gone although the history counted as cached, all histories that were last used earlier are gone too. So the
cache holds at most the tokens that were used after the last use of the lost history. `kept_tokens` falls towards this
number, in steps. If a turn finds its history cached although the history counted as evicted, `kept_tokens` rises. If
the engine does not report its pool, `kept_tokens` is infinite until a turn finds its history gone.

Nothing is learned from engines that never report cached tokens or whose events report evictions, from workers with a
host tier or a store, or from other regions. Limit: `MAX_HISTORIES` for each worker, divided by tenant
(`warmroute.contract.shares`): the oldest history of the tenant with the most histories is forgotten, and then counts as
cached.
"""

import math
from collections import OrderedDict
from typing import Final, NamedTuple

from warmroute.contract.shares import Division

MAX_HISTORIES: Final = 10_000
MAX_SHARED: Final = 64
"""The maximum number of shared prefixes that are kept for a worker; the oldest is forgotten first."""
MIN_TOKENS: Final = 1024
MIN_SHARE: Final = 1 / 8
"""A history with fewer tokens, or with a smaller share of its prompt, teaches nothing: rounding and estimation errors
can be as large as the history."""
LOWERED: Final = 0.1
"""When a history is found gone, `kept_tokens` moves by this share of the way to the tokens used after its last use."""
RAISED: Final = 1.05
FIRST: Final = 1.5
"""If no pool is reported, and a history is found gone for the first time, `kept_tokens` becomes this factor times the
tokens used after that history's last use.
"""


class History:
    """What a worker holds of one conversation. `use`: the number of its last use, counted over all histories of the
    worker; `turns`: how many turns are under way. `tenant`: the owner, if there are several tenants.
    """

    __slots__ = ("lineage", "tenant", "tokens", "turns", "use")

    def __init__(self, lineage: int, tenant: str) -> None:
        self.lineage = lineage
        self.tenant = tenant
        self.tokens = 0
        self.turns = 0
        self.use = 0


class Evicted(NamedTuple):
    """A conversation (`lineage`: its id) of which a cache must have evicted all but the first `left` tokens."""

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
        self._is_divided = False  # True once the histories have exceeded half of the limit
        self._division: Division[int, History] = Division(lambda _, history: history.tenant)
        self._by_lineage: OrderedDict[int, History] = OrderedDict()  # the oldest first
        self._shared: dict[int, int] = {}
        self._tokens = 0
        self._uses = 0
        self._pool_tokens: float = math.inf
        self.kept_tokens: float = math.inf
        self.reports = False  # whether the engine has ever reported cached tokens; if not, nothing is learned
        self.has_events = False  # whether KV events report each eviction; if so, nothing is learned

    def set_pool(self, tokens: int) -> None:
        if tokens != self._pool_tokens:
            share = 1.0 if self._pool_tokens == math.inf else self.kept_tokens / self._pool_tokens
            self._pool_tokens = float(tokens)
            known = self.kept_tokens != math.inf
            self.kept_tokens = min(self._pool_tokens, self.kept_tokens) if known else tokens * share

    def use(self, lineage: int, tokens: int, tenant: str = "") -> History:
        """Record that a conversation uses `tokens` of its own here now. Returns its history."""
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
        """Count a new history by tenant. Beyond the limit, forget the oldest history of the tenant that has most."""
        self._is_divided = True
        self._division.stored(lineage, self._by_lineage)
        if len(self._by_lineage) > self._max:
            self._tokens -= self._forget(self._division.next_to_go()).tokens

    def resize(self, lineage: int, tokens: int) -> None:
        """Set the `tokens` of a conversation that is here, without counting a use."""
        history = self._by_lineage.get(lineage)
        if history is not None:
            self._tokens += tokens - history.tokens
            history.tokens = tokens

    def share(self, prefix: int, tokens: int) -> None:
        """Count the `tokens` of a prefix once, however many conversations use it. `prefix`: its last hash."""
        known = self._shared.get(prefix)
        if known is None:
            self._shared[prefix] = tokens
            self._tokens += tokens
            if len(self._shared) > MAX_SHARED:
                self._tokens -= self._shared.pop(next(iter(self._shared)))

    def history(self, lineage: int) -> History | None:
        """The history of a conversation; None if nothing of it is here."""
        return self._by_lineage.get(lineage)

    def last_use(self, lineage: int) -> int:
        """The number of the last use of a history; 0 for an unknown history."""
        history = self._by_lineage.get(lineage)
        return 0 if history is None else history.use

    def is_overfull(self) -> bool:
        """Whether the histories have more tokens than the cache can hold."""
        return self._tokens > self.kept_tokens and self.reports

    def evicted(self) -> list[Evicted]:
        """Shorten the histories that must have been evicted, the least recently used first. Returns what was cut."""
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
        """Learn that a history was gone whose last use had the number `used_before`. Returns the histories that were
        last used before that: they are gone too, with 0 tokens left.
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
