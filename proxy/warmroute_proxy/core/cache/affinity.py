"""Where lineages and sessions were last served.

Three bounded maps:

Lineage -> its last settled turns. The loss classes compare with one of them, and its bytes per token are the best guess
for the next turn. There are several, because a lineage forks: a named session with several conversations, or with two
requests at once. A prompt continues the longest turn whose last cut is at the same position of the
prompt's chain; where there is none, a conversation under way was rewritten, and it continues the newest.

Thread (a lineage without its system prompt) -> the same: a running conversation whose system prompt changed is a new
lineage, and what it lost is its old prompt.

Session -> region: the home of a session whose client does not send the hint back. A session with a derived key has no
home here: it is a guess, and its prefix steers it.

Which worker of a region a lineage goes to is *not* stored here. The prefix index knows that better: an unknown lineage
of a known session (a title request, a compaction, a sub-agent) starts from its longest predicted prefix.

Limits: `MAX_ENTRIES` each, the least recently served is dropped first; `MAX_FORKS` last turns a lineage, the newest.
"""

from collections import OrderedDict
from typing import Final

from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.prompt.chain import Chain

MAX_ENTRIES: Final = 20_000
MAX_FORKS: Final = 4


class Affinity:
    """The three maps."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._turns_by_lineage: OrderedDict[int, tuple[tuple[int, SettledTurn], ...]] = OrderedDict()  # with their cuts
        self._turn_by_thread: OrderedDict[int, SettledTurn] = OrderedDict()
        self._region_by_session: OrderedDict[int, str] = OrderedDict()

    def last_settled(self, lineage: int, chain: Chain, turn: int) -> SettledTurn | None:
        """The turn that this prompt continues; for a conversation under way that continues none, the newest."""
        turns = self._turns_by_lineage.get(lineage)
        if turns is None:
            return None
        hashes = chain.hashes
        longest, most, known = None, 0, len(hashes)
        for cuts, settled in turns:
            if most < cuts <= known and hashes[cuts - 1] == settled.tip:
                longest, most = settled, cuts
        if longest is not None:
            return longest
        return turns[0][1] if turn > 1 else None

    def last_of_thread(self, thread: int) -> SettledTurn | None:
        """The last settled turn of a lineage, whatever its system prompt was."""
        return self._turn_by_thread.get(thread)

    def home(self, session: int) -> str | None:
        """The region where a session was last served."""
        return self._region_by_session.get(session)

    def remember(
        self, lineage: int, chain: Chain, settled: SettledTurn, session: int | None, thread: int | None = None
    ) -> None:
        """Store a turn of a lineage that was served; `session` is None where it has no home of its own."""
        by_lineage, by_thread, by_session = self._turns_by_lineage, self._turn_by_thread, self._region_by_session
        hashes = chain.hashes
        own = len(hashes)
        turns = [(own, settled)]
        for turn in by_lineage.get(lineage, ()):
            cuts, old = turn
            if cuts > own or hashes[cuts - 1] != old.tip:
                turns.append(turn)
        by_lineage[lineage] = tuple(turns[:MAX_FORKS])
        by_lineage.move_to_end(lineage)
        if thread is not None:
            by_thread[thread] = settled
            by_thread.move_to_end(thread)
        if session is not None:
            by_session[session] = settled.region
            by_session.move_to_end(session)
        most = self._max_entries
        if len(by_lineage) > most or len(by_thread) > most or len(by_session) > most:
            self._drop_oldest()

    @property
    def lineages(self) -> int:
        """Lineages held."""
        return len(self._turns_by_lineage)

    @property
    def sessions(self) -> int:
        """Sessions held."""
        return len(self._region_by_session)

    def _drop_oldest(self) -> None:
        """Called after at most one entry was added to each map."""
        for entries in (self._turns_by_lineage, self._turn_by_thread, self._region_by_session):
            if len(entries) > self._max_entries:
                entries.popitem(last=False)
