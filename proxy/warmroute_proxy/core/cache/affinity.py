"""Where lineages and sessions were last served.

Three bounded maps:

Lineage -> its last settled turns. The loss classes compare a new turn with one of them, whose bytes per token are also
the best guess for the new turn. A lineage has several if it forks: a named session may have several conversations, or
two requests at once. A prompt continues the longest turn whose last cut its own chain has at the same position. If no
turn matches, the client has rewritten a conversation under way, and the prompt continues the newest turn.

Thread (a lineage without its system prompt) -> its last settled turn. If the system prompt of a running conversation
changes, the conversation becomes a new lineage, and what it lost is its old prompt.

Session -> where its longest lineage was last served. A new lineage of the session begins at this home (a title, a
compaction, a sub-agent). Only the longest lineage moves the home. A lineage itself is at home where its own last turn
was served, so a sub-agent served elsewhere does not move the others. A session with a derived key has no home here,
because such a key is a guess.

Turns that other regions serve are stored here too, as their proxies announce them (`settled_turn`). So a request finds
the home of its lineage in whichever region it arrives.

The worker that serves a lineage within a region is *not* stored here. The prefix index knows that better.

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
"""The most lineages whose last lookup is kept while a turn is placed. Each keeps a prompt's hashes alive."""


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
        """The turns, each with the index of its last cut."""

        self._turn_by_thread: OrderedDict[int, SettledTurn] = OrderedDict()
        self._home_by_session: OrderedDict[int, _SessionHome] = OrderedDict()
        self._lineages: Division[int, Any] = Division()
        self._threads: Division[int, Any] = Division()
        self._sessions: Division[int, Any] = Division()
        self._asked: dict[int, tuple[Chain, int, SettledTurn | None]] = {}
        """Lineage -> the last lookup since one of its turns was stored: prompt, turn number, and the turn found."""

    def last_settled(self, lineage: int, chain: Chain, turn: int) -> SettledTurn | None:
        """The turn that this prompt continues; the newest if none matches and the prompt is not a first turn."""
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

    def last_number(self, lineage: int) -> int | None:
        """The number of the last settled turn of a lineage, whatever its prompt was; None if no turn of it is known."""
        turns = self._turns_by_lineage.get(lineage)
        if turns is None:
            return None
        newest = turns[0][1]
        return newest.turn + newest.turns_before

    def last_of_thread(self, thread: int) -> SettledTurn | None:
        """The last settled turn of a thread, whatever its system prompt was."""
        return self._turn_by_thread.get(thread)

    def home(self, session: int) -> str | None:
        """The region where the longest lineage of a session was last served."""
        found = self._home_by_session.get(session)
        return None if found is None else found.region

    def longest(self, session: int) -> SettledTurn | None:
        """The last settled turn of the longest lineage of a session."""
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
        """Store a served turn of a lineage. `session` is None if the session has no home of its own. `tenant`: the
        owner, if there are several tenants.
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
        """Store a turn that another region serves, in place of the turn that it continues."""
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
        """An entry was stored in `table`: drop one if the table is over its limit."""
        if key is None or len(table) <= self._half:
            return
        division.stored(key, table)
        if len(table) > self._max_entries:
            gone = division.next_to_go()
            del table[gone]
            division.discard(gone)


def _with_counts(settled: SettledTurn, old: SettledTurn) -> SettledTurn:
    """The turn with the counts that are already known. Only the region that serves a turn gets its counts."""
    if settled.prompt_tokens is None and old.prompt_tokens is not None and settled.region == old.region:
        return old
    return settled
