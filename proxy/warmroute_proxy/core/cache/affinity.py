"""Remembers where lineages (conversation branches) and sessions were last served.

Three bounded maps:

Lineage -> its last settled turns. A new turn is compared with the turn that it continues, to explain lost cache hits
(loss classes). The bytes per token of that turn are also the best guess for the new one. A lineage has several last
turns if it forks: a named session may have several conversations, or two requests at once. A prompt is a chain of
hashes, one for each cut (a position in the prompt). It continues the longest turn whose last hash stands in the
prompt's own chain at the same position. If no turn matches, the client has rewritten a conversation under way, and the
prompt counts as continuing the newest turn.

Thread (a lineage without its system prompt) -> its last settled turn. If the system prompt of a running conversation
changes, the conversation becomes a new lineage. The thread then finds the old prompt, whose cached tokens the change
has lost.

Session -> where its longest lineage was last served. This place is the session's home: a new lineage of the session
begins there (a title, a compaction, a sub-agent). Only the longest lineage moves the session's home. Each known lineage
has its own home, where its last turn was served, so a sub-agent served elsewhere does not move the other lineages. If
the client names no session, its key is derived from the prompt. A derived key is only a guess, so no home is stored for
it.

Turns that other regions serve are stored here too, because their proxies announce them (`settled_turn`). So a request
finds the home of its lineage in whichever region it arrives.

Which worker of the region has a lineage in its cache is *not* decided here: the prefix index knows that better.

Limits: `MAX_ENTRIES` for each map, divided by tenant (`warmroute.contract.shares`): the tenant with the most entries
loses its least recently served entry first. A lineage keeps its newest `MAX_FORKS` turns.
"""

from collections import OrderedDict
from typing import Any, Final

from warmroute.contract.shares import Division
from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.prompt.chain import Chain

MAX_ENTRIES: Final = 20_000
MAX_FORKS: Final = 4
_ASKED: Final = 64
"""The maximum number of lineages whose last lookup is cached. Each cached lookup keeps a prompt's hashes in memory."""


class _SessionHome(Frozen, frozen=True):
    """Where the longest lineage of a session was last served, and how long its prompt was."""

    region: str
    lineage: int
    prompt_bytes: int


class Affinity:
    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._half = max_entries // 2
        self._turns_by_lineage: OrderedDict[int, tuple[tuple[int, SettledTurn], ...]] = OrderedDict()
        """Lineage -> its last turns, each with the index of its last hash in the chain."""

        self._turn_by_thread: OrderedDict[int, SettledTurn] = OrderedDict()
        self._home_by_session: OrderedDict[int, _SessionHome] = OrderedDict()
        self._lineages: Division[int, Any] = Division()
        self._threads: Division[int, Any] = Division()
        self._sessions: Division[int, Any] = Division()
        self._asked: dict[int, tuple[Chain, int, SettledTurn | None]] = {}
        """Lineage -> its last lookup (prompt, turn number, turn found), until a turn of the lineage is stored."""

    def last_settled(self, lineage: int, chain: Chain, turn: int) -> SettledTurn | None:
        """The turn that this prompt continues. If no turn matches, the newest turn; None if `turn` is the first."""
        asked = self._asked.get(lineage)
        if asked is not None:
            of, at_turn, found = asked
            if of is chain and at_turn == turn:
                return found
        turns = self._turns_by_lineage.get(lineage)
        if turns is None:
            return None
        hashes = chain.hashes
        longest, most, known = None, -1, len(hashes)
        for at, settled in turns:
            if at < known and hashes[at] == settled.tip and at > most:
                longest, most = settled, at
        if longest is None and turn > 1:
            longest = turns[0][1]
        if len(self._asked) >= _ASKED:
            self._asked.clear()
        self._asked[lineage] = (chain, turn, longest)
        return longest

    def is_full(self, lineage: int) -> bool:
        """Whether a lineage has `MAX_FORKS` turns, so that turns of its other conversations may be forgotten."""
        return len(self._turns_by_lineage.get(lineage, ())) == MAX_FORKS

    def last_number(self, lineage: int) -> int | None:
        """The number of the last settled turn of a lineage, whatever its prompt was; None if no turn of it is known."""
        turns = self._turns_by_lineage.get(lineage)
        if turns is None:
            return None
        newest = turns[0][1]
        return newest.turn + newest.turns_before

    def last_of_thread(self, thread: int) -> SettledTurn | None:
        """The most recent settled turn of a thread, whatever its system prompt was."""
        return self._turn_by_thread.get(thread)

    def home(self, session: int) -> str | None:
        """The region where the longest lineage of a session was last served."""
        found = self._home_by_session.get(session)
        return None if found is None else found.region

    def longest(self, session: int) -> SettledTurn | None:
        """The most recent settled turn of a session's longest lineage."""
        found = self._home_by_session.get(session)
        turns = self._turns_by_lineage.get(found.lineage) if found is not None else None
        return turns[0][1] if turns else None

    def remember(
        self,
        lineage: int,
        chain: Chain,
        settled: SettledTurn,
        session: int | None,
        thread: int | None = None,
        tenant: str = "",
    ) -> None:
        """Store a served turn of a lineage. `session`: None if no home is stored for the session. `tenant`: the owner,
        if there are several tenants.
        """
        hashes = chain.hashes
        own = len(hashes) - 1
        turns = [(own, settled)]
        for turn in self._turns_by_lineage.get(lineage, ()):
            at, old = turn
            if at > own or hashes[at] != old.tip:
                turns.append(turn)
            elif at == own:
                settled = _with_counts(settled, old)
                turns[0] = (own, settled)
        self._store(lineage, turns, settled, session, thread, tenant)

    def observe(self, served: RegionalTurn) -> None:
        """Store a turn that another region serves. It replaces the turn that it continues."""
        settled, turns = served.turn, []
        for turn in self._turns_by_lineage.get(served.lineage, ()):
            old = turn[1]
            if old.tip == settled.tip:
                settled = _with_counts(settled, old)
            elif old.tip != served.follows:
                turns.append(turn)
        turns.insert(0, (served.cuts - 1, settled))
        self._store(served.lineage, turns, settled, served.session, served.thread, served.tenant)

    @property
    def lineages(self) -> int:
        return len(self._turns_by_lineage)

    @property
    def sessions(self) -> int:
        return len(self._home_by_session)

    def _store(
        self,
        lineage: int,
        turns: list[tuple[int, SettledTurn]],
        settled: SettledTurn,
        session: int | None,
        thread: int | None,
        tenant: str,
    ) -> None:
        by_lineage, by_thread, by_session = self._turns_by_lineage, self._turn_by_thread, self._home_by_session
        self._asked.pop(lineage, None)
        by_lineage[lineage] = tuple(turns[:MAX_FORKS])
        by_lineage.move_to_end(lineage)
        if thread is not None:
            by_thread[thread] = settled
            by_thread.move_to_end(thread)
        if session is not None:
            home = by_session.get(session)
            if home is None or home.lineage == lineage or home.prompt_bytes < settled.prompt_bytes:
                by_session[session] = _SessionHome(settled.region, lineage, settled.prompt_bytes)
            by_session.move_to_end(session)
        if tenant:
            self._note_owner(lineage, thread, session, tenant)
        half = self._half
        if len(by_lineage) > half or len(by_thread) > half or len(by_session) > half:
            self._divide(by_lineage, self._lineages, lineage)
            self._divide(by_thread, self._threads, thread)
            self._divide(by_session, self._sessions, session)

    def _note_owner(self, lineage: int, thread: int | None, session: int | None, tenant: str) -> None:
        self._lineages.owners[lineage] = tenant
        if thread is not None:
            self._threads.owners[thread] = tenant
        if session is not None:
            self._sessions.owners[session] = tenant

    def _divide(self, table: OrderedDict[int, Any], division: Division[int, Any], key: int | None) -> None:
        """Count an entry that was stored in `table`, and drop one entry if the table is over its limit."""
        if key is None or len(table) <= self._half:
            return
        division.stored(key, table)
        if len(table) > self._max_entries:
            gone = division.next_to_go()
            del table[gone]
            division.discard(gone)


def _with_counts(settled: SettledTurn, old: SettledTurn) -> SettledTurn:
    """Fill in the counts that `settled` lacks from `old`, which describes the same turn: only the region that serves a
    turn gets its counts.
    """
    if settled.prompt_tokens is None and old.prompt_tokens is not None and settled.region == old.region:
        return old
    return settled
