"""Where lineages and sessions were last served.

Three bounded maps. Lineage -> its last settled turns: the loss classes compare with one of them, and its bytes per
token are the best guess for the next turn. There are several, because a lineage forks: two conversations that share a
derived key, or a named session that asks two things at once. The one that a prompt continues is the longest whose last
cut stands at the same place of the prompt's chain; where none does, a conversation under way was rewritten, and it is
the newest. Thread (a lineage without its system prompt) -> the same: a running conversation whose system prompt changed
is a new lineage, and what it lost is its old prompt. Session -> region: the home of a session whose client does not
send the hint back. A session with a derived key has no home here: equal prompts share such keys, and a home of theirs
would herd.

Which worker of a region a lineage goes to is *not* kept here. The prefix index knows that better: an unknown lineage
of a known session (a title request, a compaction, a sub-agent) starts from its longest predicted prefix.

Limits: `MAX_ENTRIES` each, the least recently served goes first; `MAX_FORKS` last turns a lineage, the newest.
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
        self._lasts_by_lineage: OrderedDict[int, tuple[tuple[int, SettledTurn], ...]] = OrderedDict()  # with their cuts
        self._last_by_thread: OrderedDict[int, SettledTurn] = OrderedDict()
        self._region_by_session: OrderedDict[int, str] = OrderedDict()

    def last_settled(self, lineage: int, chain: Chain, turn: int) -> SettledTurn | None:
        """The turn that this prompt continues; for one under way that continues none, the newest of its lineage."""
        lasts = self._lasts_by_lineage.get(lineage)
        if lasts is None:
            return None
        hashes = chain.hashes
        if len(lasts) == 1:  # as of nearly all
            cuts, last = lasts[0]
            return last if turn > 1 or (cuts <= len(hashes) and hashes[cuts - 1] == last.tip) else None
        longest, most = None, 0
        for cuts, last in lasts:
            if most < cuts <= len(hashes) and hashes[cuts - 1] == last.tip:
                longest, most = last, cuts
        if longest is not None:
            return longest
        return lasts[0][1] if turn > 1 else None

    def last_of_thread(self, thread: int) -> SettledTurn | None:
        """The last settled turn of a lineage, whatever its system prompt was."""
        return self._last_by_thread.get(thread)

    def home(self, session: int) -> str | None:
        """The region where a session was last served."""
        return self._region_by_session.get(session)

    def remember(
        self, lineage: int, chain: Chain, last: SettledTurn, session: int | None, thread: int | None = None
    ) -> None:
        """A turn of a lineage was served; `session` is None where it has no home of its own."""
        by_lineage, by_thread, by_session = self._lasts_by_lineage, self._last_by_thread, self._region_by_session
        known, hashes = by_lineage.get(lineage), chain.hashes
        lasts: tuple[tuple[int, SettledTurn], ...] = ((len(hashes), last),)
        if known is not None:
            for cuts, old in known:
                if (cuts > len(hashes) or hashes[cuts - 1] != old.tip) and len(lasts) < MAX_FORKS:
                    lasts = (*lasts, (cuts, old))
        by_lineage[lineage] = lasts
        by_lineage.move_to_end(lineage)
        if thread is not None:
            by_thread[thread] = last
            by_thread.move_to_end(thread)
        if session is not None:
            by_session[session] = last.region
            by_session.move_to_end(session)
        most = self._max_entries
        if len(by_lineage) > most or len(by_thread) > most or len(by_session) > most:
            self._drop_oldest()

    @property
    def lineages(self) -> int:
        """Lineages held."""
        return len(self._lasts_by_lineage)

    @property
    def sessions(self) -> int:
        """Sessions held."""
        return len(self._region_by_session)

    def _drop_oldest(self) -> None:
        """One was added to each map at most."""
        for entries in (self._lasts_by_lineage, self._last_by_thread, self._region_by_session):
            if len(entries) > self._max_entries:
                entries.popitem(last=False)
