"""Opens and settles the ledger row of a request, and raises and lowers its load at the router.

`open` writes each dispatch to disk. `settle` makes usage, losses (the reasons why tokens were not cached), price and
receipt from the reported tokens, and ends the row. `inference_request`, which calls these, has already decided what is
charged and which workers are at fault.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from warmroute.contract.money import Rates
from warmroute_proxy.core.accounting.entry import Entry, Outcome
from warmroute_proxy.core.accounting.entry_steps import Ending, crediting, dispatch, interrupt, move, settle
from warmroute_proxy.core.accounting.losses import NOTHING_SEEN, PLAIN, IndexEstimates, LastTurn, Seen, classify
from warmroute_proxy.core.accounting.receipt import as_warm
from warmroute_proxy.core.accounting.usage import before_answers, with_expected
from warmroute_proxy.core.accounting.usage_fields import Usage
from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.cache.prompt_memory import KnownPrompt
from warmroute_proxy.core.cache.return_times import PERSON, TOOLS
from warmroute_proxy.core.cache.settled_turn import RegionalTurn, SettledTurn
from warmroute_proxy.core.cache.tiers import cacheable_tokens
from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.placement.credit import Credits, MovedTurn, credit_nanousd
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.placement.homes import elsewhere_region, keeps_warm, last_prompt_tokens, repeats
from warmroute_proxy.core.placement.router import Router, Settled, Ticket
from warmroute_proxy.core.prompt.routing_request import RoutingRequest
from warmroute_proxy.core.queue.quota import NO_TOKENS, UsedTokens
from warmroute_proxy.core.queue.reservation import Reservation
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.intake.body import AnyBody
from warmroute_proxy.server.intake.parsed_request import ParsedRequest
from warmroute_proxy.server.intake.prefix_breaks import Looked, member, turn_before
from warmroute_proxy.server.ledger.earlier_turns import EarlierTurn
from warmroute_proxy.server.ledger.journal import JournalError
from warmroute_proxy.server.request.admission import Admission
from warmroute_proxy.server.request.attempt import Attempt
from warmroute_proxy.server.request.continuation import Continuation
from warmroute_proxy.server.request.request_metrics import RequestMetrics
from warmroute_proxy.server.stores.limits.request_limits import LimitedRequest

# The functions up to `with_restart` find out why prompt tokens of a turn were not cached. They compare the turn with
# the turn before it, and with what caches were expected to hold. `core.accounting.losses` has the loss classes.


def losses_of(
    account: "RequestAccount",
    routing: RoutingRequest,
    usage: Usage,
    attempt: Attempt,
    *,
    here: str,
    seen: Seen = NOTHING_SEEN,
) -> dict[str, int]:
    """The uncached tokens of a turn in the region `here`, by loss class. The turn is compared with the turn before it.
    That is the turn in `looked`, if its prefix has changed since; otherwise `before`, the last turn that the router
    knew; otherwise `earlier`, a turn in the ledger from before the proxy's start. `seen`: what was observed of the
    caches, if that was looked up. If it was looked up and `before` is None, estimates are scaled by this prompt's own
    bytes per token.

    Another proxy may have served the turn that changed the prefix. So a prompt that begins with the whole prompt of
    `before` counts as unchanged, even if it differs from the older turn in `looked`.
    """
    decision, before, looked, earlier = attempt.decision, account.before, account.looked, account.earlier
    other_settings = account.other_settings and "cached_tokens" not in usage.estimated
    known, other_region = decision.known_tokens, decision.other_region_tokens
    last_turn = turn_before(looked, decision, here)
    is_repeated = account.is_repeated
    is_rewritten = last_turn is not None and last_turn.rewritten and not is_repeated
    if before is not None and (before.salt_epoch != routing.salt_epoch or not is_rewritten):
        tokens, is_here = last_prompt_tokens(before, routing, usage.prompt_tokens), before.region == here
        if is_repeated:  # the prompt was sent before, even if the index has forgotten it
            known, other_region = max(known, tokens), other_region if is_here else max(other_region, tokens)
        last_turn = LastTurn(
            tokens, before.completion_tokens or 0, decision.cache_worker in before.workers,
            before.salt_epoch != routing.salt_epoch, is_here, other_settings, is_repeated,
        )  # fmt: skip
    elif before is None and earlier is not None and _follows(routing, earlier, usage) and not is_rewritten:
        known = max(known, min(earlier.prompt_tokens, usage.prompt_tokens))
        at_home = decision.cache_worker in earlier.workers
        last_turn = LastTurn(earlier.prompt_tokens, earlier.completion_tokens, at_home, False, earlier.region == here)
    predicted, moved = decision.predicted_cached_tokens, decision.other_worker_tokens
    expected = IndexEstimates(known, predicted, moved, other_region, decision.restarted_tokens, seen)
    if other_settings:  # what the engine found is all that it has of this rendering of the prompt
        expected = _NOT_EXPECTED
    if before is None and seen is not NOTHING_SEEN and "prompt_tokens" not in usage.estimated:
        expected = expected.scaled(usage.prompt_tokens, decision.prompt_tokens_est)
    return classify(
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        page_size=attempt.engine.info.page_tokens,
        estimates=expected,
        last_turn=last_turn,
        disaggregated=decision.prefill is not None,
        misreported=usage.misreported_tokens > 0,
        cached_reported="cached_tokens" not in usage.estimated,
    )


_NOT_EXPECTED: Final = IndexEstimates(0, 0, 0)


def _follows(routing: RoutingRequest, earlier: EarlierTurn, usage: Usage) -> bool:
    """Whether a turn continues the `earlier` turn of the ledger. A prompt that was just compacted is shorter than the
    earlier prompt, and does not continue it.
    """
    if routing.turns_before:
        return usage.prompt_tokens >= earlier.prompt_tokens
    return routing.turn > earlier.turn


def with_restart(seen: Seen, load: WorkerLoad, earlier: EarlierTurn | None) -> Seen:
    """Mark `seen` as evicted if the engine must have restarted, since it has computed fewer tokens in all than
    `earlier` had."""
    computed = load.prefill_rate.uncached_total
    if earlier is not None and computed is not None and computed < earlier.prompt_tokens:
        return replace(seen, evicted_here=True, evicted=True)
    return seen


UNCHARGED: Final = Rates(0, 0, 0)
_WARM: Final = b'"kind":"warm"'
_NONE: Final[Mapping[str, int]] = {}
_TIERS_GUESSED: Final = ("cached_tiers",)


class RequestAccount(msgspec.Struct):
    """The state of one request's row, load and answer so far."""

    entry: Entry | None = None
    ticket: Ticket | None = None
    continuation: Continuation | None = None
    read_slowly: bool = False
    ttft_ms: float | None = None
    proxy_s: float = 0.0
    looked: Looked | KnownPrompt | None = None
    before: SettledTurn | None = None
    earlier: EarlierTurn | None = None
    """The turn before, as known when the request was sent: copies of a request may settle while it runs. `earlier`: the
    one in the ledger, if the router knows no turn of the lineage.
    """

    is_repeated: bool = False
    """Whether the prompt begins with that of `before`."""

    other_settings: bool = False
    """Whether the prompt repeats that of `before`, which the same worker has rendered with other settings."""

    has_credit: bool = False
    since_s: float = 0.0
    """Start of the proxy's own latency; defaults to the arrival of the request."""

    @property
    def attempts(self) -> int:
        return 0 if self.entry is None else len(self.entry.rids)

    def tokens(self) -> int:
        """The request's tokens at an engine: those of its prompt, and those generated so far."""
        return 0 if self.ticket is None else self.ticket.resident


class End(Frozen, frozen=True):
    outcome: Outcome
    status: int
    now_s: float
    charged: bool
    client_left: bool


class Announces(Protocol):
    """Announces turns of this region to other regions. `active`: there are other regions."""

    region: str

    @property
    def active(self) -> bool: ...

    def announce(self, announcement: RegionalTurn, allowed: Collection[str] | None) -> None: ...


class Rows(Protocol):
    @property
    def earlier_turns(self) -> dict[str, EarlierTurn]:
        """The newest turn of each lineage (conversation branch) from before this process began, by lineage."""

    def open(self, entry: Entry) -> None:
        """Write that a request was sent. Raises: JournalError."""

    def settle(self, entry: Entry, on_durable: Callable[[JournalError | None], None]) -> None:
        """Write how a request ended."""


class Settlement:
    """Opens, settles and interrupts the rows of requests, and reserves and releases their load."""

    def __init__(
        self,
        router: Router,
        engines: Engines,
        admission: Admission,
        ledger: Rows,
        metrics: RequestMetrics,
        announcements: Announces,
        unix_clock: Callable[[], float],
    ) -> None:
        self._router = router
        self._engines, self._admission = engines, admission
        self._prices = admission.prices
        self._credits = Credits()
        self._ledger = ledger
        self._metrics = metrics
        self._announcements = announcements if announcements.active else None
        self._region = announcements.region
        self._unix_clock = unix_clock

    def numbered(
        self, parsed: ParsedRequest, routing: RoutingRequest, body: AnyBody, looked: Looked | KnownPrompt | None
    ) -> RoutingRequest:
        """Return a request with `turns_before`, the number of turns that a compaction took out of its prompt. Called
        before the request's row is opened, as long as the prompt's text is in memory.

        A prompt that continues a known prompt takes `turns_before` from that prompt. The request is returned unchanged
        if it has no session key, or if its session had only one turn so far: many programs ask independent questions
        under one key, and reading their prompts twice would be wasted.
        """
        if type(looked) is KnownPrompt:
            return replace(routing, turns_before=looked.turns_before)
        if routing.derived:
            return routing
        known = self._router.last_number(routing.lineage)
        if known is None:
            earlier = self._ledger.earlier_turns.get(routing.lineage.to_bytes(8, "big").hex())
            known = 0 if earlier is None else earlier.turn
        if known <= 1:
            return routing
        before = self._router.turns_before(routing, known, lambda: parsed.is_compacted(body))
        return replace(routing, turns_before=before) if before else routing

    def open(
        self, account: RequestAccount, request: LimitedRequest, decision: Decision, *, receipt_id: str, rid: str
    ) -> None:
        """Open the row, or add an attempt to it, before the attempt is sent. Raises: JournalError."""
        entry = account.entry
        served_by = self._engines.served_by(decision)
        if entry is None:
            parsed, routing, opened_at = request.parsed, request.routing, self._unix_clock()
            model = parsed.model
            entry = Entry(
                id=receipt_id, tenant=parsed.tenant.name, session=parsed.session,
                lineage=routing.lineage.to_bytes(8, "big").hex(), turn=routing.turn + routing.turns_before,
                region=self._region, model=model.name, route=parsed.route, stream=parsed.stream,
                rates=self._prices.rates(model.name, opened_at), opened_at=opened_at,
                forwarded_from=parsed.forwarded_from,
            )  # fmt: skip
        dispatch(entry, rid, served_by, decision.predicted_cached_tokens)
        self._ledger.open(entry)
        account.entry = entry

    def move(self, account: RequestAccount, decision: Decision | None) -> None:
        """Write to the row at which workers the attempt is now; `decision` is None if these are unknown. Raises:
        JournalError.
        """
        if account.entry is not None:
            if decision is None:
                move(account.entry, (), 0)
            else:
                move(account.entry, self._engines.served_by(decision), decision.predicted_cached_tokens)
            self._ledger.open(account.entry)

    def interrupt(self, account: RequestAccount) -> None:
        """End the row of a request that the proxy's own fault has ended; nothing is charged."""
        entry = account.entry
        if entry is not None and not entry.ended:
            interrupt(entry, self._unix_clock())
            self._ledger.settle(entry, _ignore)
            self._metrics.interrupted()

    def settle(
        self,
        account: RequestAccount,
        request: LimitedRequest,
        attempt: Attempt,
        end: End,
        on_written: Callable[[JournalError | None], None],
    ) -> None:
        """Make a row and a receipt from the reported usage; `on_written` is called when the row is durable."""
        entry, parsed, routing = account.entry, request.parsed, request.routing
        assert entry is not None
        if end.outcome != "completed" and not end.client_left:  # a client that left may have a new answer by now
            parsed.left_unanswered()
        usage, reported = _counted(attempt, parsed)
        if end.charged and attempt.leg.sent:
            usage = _with_expected(usage, reported, attempt, routing, end)
        if account.continuation is not None:
            usage = account.continuation.settled(usage, attempt.scanner)
        before = account.before
        loss = losses_of(account, routing, usage, attempt, here=self._region)
        plain = PLAIN.issuperset(loss)
        loss = loss if plain else self._missed(account, attempt, usage, routing) or loss
        settled = self._settle_ticket(account, attempt, request, usage, end)
        if not end.charged:
            entry.rates = UNCHARGED
        changes = parsed.changes
        if parsed.dropped or attempt.left_out:
            changes = changes._replace(dropped_fields=parsed.dropped_fields(attempt.left_out))
        predicted, most = attempt.decision.predicted, entry.predicted_cached
        if settled is not None:
            most = settled.predicted_cached_tokens
        elif most:
            most = min(most, cacheable_tokens(usage.prompt_tokens, attempt.engine.info.page_tokens))
        if most < entry.predicted_cached:  # the prompt has fewer tokens than was estimated
            entry.predicted_cached, predicted = most, predicted.within(most)
        ending = Ending(
            end.outcome, end.status, self._unix_clock(), account.proxy_s * 1000, account.ttft_ms,
            changes, self._receipt_fields(account, parsed, _NONE if plain else loss, before, attempt.decision, usage),
        )  # fmt: skip
        settle(entry, usage, loss, reported, ending)
        reservation = request.quota
        if reservation is not None:
            used = reservation.used(usage) if end.charged else NO_TOKENS
            on_written = partial(self._row_written, request, reservation, used, entry, on_written)
        self._write(account, entry, on_written)
        self._metrics.settled(entry, usage, loss, predicted, settled, attempt.decision.cache_worker)
        if changes.normalised:
            self._metrics.normalised(changes.normalised)

    def _missed(
        self, account: RequestAccount, attempt: Attempt, usage: Usage, routing: RoutingRequest
    ) -> dict[str, int]:
        """The uncached tokens by loss class, for a turn that found less cached than expected. Also uses what was
        observed of the caches. Empty if the turn's load was released before.
        """
        ticket = account.ticket
        if ticket is None:
            return {}
        worker, seen = ticket.cache_worker, self._router.seen(ticket, usage.prompt_tokens)
        if not attempt.engine.is_sglang and worker.load.capacity.pool_tokens is None:
            seen = replace(seen, forgets=True)
        if account.before is None:
            seen = with_restart(seen, worker.load, account.earlier)
        loss = losses_of(account, routing, usage, attempt, here=self._region, seen=seen)
        self._engines.watching.lost(worker.id, loss, usage.cached_tokens, worker.load.occupancy)
        return loss

    def _receipt_fields(
        self,
        account: RequestAccount,
        parsed: ParsedRequest,
        loss: Mapping[str, int],
        before: SettledTurn | None,
        decision: Decision,
        usage: Usage,
    ) -> bytes:
        """The members that only some receipts have, as JSON. `loss`: empty if no loss needs an explanation."""
        own = parsed.receipt_fields
        if before is not None and keeps_warm(parsed.routing, before):
            own = as_warm(own)
        if _WARM in own and account.entry is not None:
            self._metrics.kept_warm(account.entry.tenant, usage)
        members = [own] if own else []
        if parsed.forwarded_from is not None:
            members += parsed.forwarded()
        if not loss:
            return b",".join(members)
        if "elsewhere" in loss:
            region = msgspec.json.encode(elsewhere_region(before, decision, self._region))
            members.append(b'"elsewhere_region":%b' % region)
        if "evicted" in loss and decision.restarted_tokens > max(usage.cached_tokens, decision.predicted_cached_tokens):
            members.append(b'"evicted_by":"engine_restart"')
        if "moved" in loss and before is not None and self._prices.credit_moved:
            answers = parsed.choices * parsed.prompts
            turn = MovedTurn(parsed.routing, decision, usage, loss["moved"], account.attempts, answers)
            members += self._credit(account, turn, before)
        if "prefix_changed" in loss and account.entry is not None:
            lost_tokens, rates = loss["prefix_changed"], account.entry.rates
            members += member(account.looked, lost_tokens, usage, rates, other_settings=account.other_settings)
        return b",".join(members)

    def _credit(self, account: RequestAccount, turn: MovedTurn, before: SettledTurn) -> list[bytes]:
        """The receipt's member with the credit for tokens that moved to another worker; empty without a credit."""
        if account.entry is None or account.entry.rates is UNCHARGED:
            return []
        tokens = self._credits.grant(turn, before)
        if not tokens:
            return []
        account.has_credit = True
        return [b'"credit":{"tokens":%d,"nanousd":%d}' % (tokens, credit_nanousd(tokens, account.entry.rates))]

    def _row_written(
        self,
        request: LimitedRequest,
        reservation: Reservation,
        used: UsedTokens,
        entry: Entry,
        on_written: Callable[[JournalError | None], None],
        failure: JournalError | None,
    ) -> None:
        """Replace what a request has reserved by what it has used: nothing, if its row cannot be written."""
        if failure is None:
            reservation.spent(entry.price_nanousd, entry.settled_at)
        self._admission.ended(request, used if failure is None else NO_TOKENS)
        on_written(failure)

    def _write(self, account: RequestAccount, entry: Entry, on_written: Callable[[JournalError | None], None]) -> None:
        """Write the row, then the row of its credit, so that no credit is written without its turn."""
        credit = crediting(entry) if account.has_credit else None
        self._ledger.settle(entry, on_written)
        if credit is not None:
            self._ledger.settle(credit, _ignore)

    def reserve(self, account: RequestAccount, routing: RoutingRequest, decision: Decision, now_s: float) -> None:
        """Raise the load of the workers that an attempt is sent to, and note the turn before it."""
        self._note_before(account, routing, decision)
        ticket = account.ticket = self._router.dispatched(routing, decision, now_s)
        if self._announcements is not None:
            self._announcements.announce(self._router.regional_turn(ticket, routing), routing.allowed_regions)

    def _note_before(self, account: RequestAccount, routing: RoutingRequest, decision: Decision) -> None:
        before, looked = self._router.last_settled(routing), account.looked
        if before is None and account.entry is not None and self._router.last_number(routing.lineage) is None:
            account.earlier = self._ledger.earlier_turns.get(account.entry.lineage)
        is_repeated = before is not None and repeats(routing.chain, before)
        if not is_repeated and type(looked) is KnownPrompt:
            turn = looked.as_turn(routing.salt_epoch)
            if repeats(routing.chain, turn):  # it may have gone on since it was looked up
                before, is_repeated = turn, True
        account.before, account.is_repeated = before, is_repeated
        account.other_settings = (
            before is not None
            and is_repeated
            and before.settings != routing.settings
            and decision.cache_worker in before.workers
        )

    def prefilled(self, account: RequestAccount, now_s: float) -> None:
        """Record that the prompt is computed: its tokens no longer count as prefill load."""
        ticket = account.ticket
        if ticket is not None and not ticket.computed:
            self._router.first_token(ticket, now_s)
            self._admission.freed()

    def progress(self, account: RequestAccount, tokens_seen: int) -> None:
        if account.ticket is not None:
            self._router.progress(account.ticket, tokens_seen)

    def abandon(self, account: RequestAccount, now_s: float) -> None:
        """Release the load of an attempt after an error of the proxy itself, unless it was released."""
        ticket, account.ticket = account.ticket, None
        if ticket is not None and ticket.open:
            self._router.failed(ticket, now_s, ())

    def release(self, account: RequestAccount, rid: str, at_fault: Collection[str], now_s: float) -> None:
        """Release the load of an attempt that has failed, unless it was released. `at_fault`: worker ids."""
        ticket, account.ticket = account.ticket, None
        if ticket is None:
            return
        self._router.failed(ticket, now_s, at_fault)
        self._admission.freed()
        # The engine may have stored a part of the prompt. Its KV events show when it evicts that part.
        self._engines.settled(ticket.decision, rid, 0)

    def _settle_ticket(
        self, account: RequestAccount, attempt: Attempt, request: LimitedRequest, usage: Usage, end: End
    ) -> Settled | None:
        """Report to the router how the attempt ended; None if the attempt's load (ticket) was released before,
        or is released now because the engine never ran it.
        """
        ticket, parsed, routing = account.ticket, request.parsed, request.routing
        if ticket is None:
            return None
        if end.client_left and not usage.prompt_tokens and _never_ran(attempt.usage):
            self.release(account, attempt.rid, (), end.now_s)
            return None
        if not routing.expects:
            called_tools = (attempt.answer or attempt.scanner).called_tools
            self._router.working_set.expect(ticket, TOOLS if called_tools else PERSON)
        guessed, reasoning = usage.estimated, usage.reasoning_tokens
        prompt: int | None = usage.prompt_tokens
        cached: int | None = usage.cached_tokens
        completion: int | None = usage.completion_tokens  # without reasoning, which clients do not send back
        if reasoning:
            completion = usage.completion_tokens - reasoning
        if guessed and guessed != _TIERS_GUESSED:
            prompt = None if "prompt_tokens" in guessed else prompt
            cached = None if "cached_tokens" in guessed else cached
            completion = None if "completion_tokens" in guessed else completion
        if parsed.choices > 1 or parsed.prompts > 1:
            # The first of several answers caches the prompt for the others, so the count does not show what was cached
            # before.
            cached = completion = None
        elif account.other_settings:
            cached = None  # a cache that lacks this rendering of the prompt has lost nothing
        streamed = (
            usage.completion_tokens
            if attempt.answer is None and _shows_pace(account, parsed, guessed, client_left=end.client_left)
            else None
        )
        settled = self._router.settled(ticket, routing, end.now_s, prompt, cached, completion, streamed)
        if self._announcements is not None:
            turn = self._router.regional_turn(ticket, routing, prompt, cached, completion)
            self._announcements.announce(turn, routing.allowed_regions)
        account.ticket = None
        self._admission.freed()
        decision = ticket.decision
        self._engines.settled(decision, attempt.rid, usage.prompt_tokens, cached, usage.completion_tokens)
        if account.looked is not None and end.charged and end.outcome == "completed":
            parsed.prefix_breaks.remember(routing, parsed.messages, account.looked, usage, decision, parsed.agent)
        return settled


def _shows_pace(account: RequestAccount, parsed: ParsedRequest, guessed: Collection[str], *, client_left: bool) -> bool:
    """Whether the stream shows an engine's token rate: one engine sent it all, and its client read it fast enough."""
    return (
        not (client_left or account.read_slowly or parsed.several or "completion_tokens" in guessed)
        and account.entry is not None
        and len(account.entry.rids) == 1
    )


def _counted(attempt: Attempt, parsed: ParsedRequest) -> tuple[Usage, dict[str, Any] | bytes | None]:
    """The reported usage. Of several answers, only the tokens that were cached before the first count as cached."""
    usage, reported = attempt.account()
    if parsed.choices == 1 or not attempt.engine.shares_answers:
        return usage, reported
    found = before_answers(usage, attempt.decision.predicted, attempt.engine.info.page_tokens)
    if found is not usage and isinstance(reported, bytes):
        reported = msgspec.json.decode(reported)
    return found, reported


def _with_expected(
    usage: Usage, reported: Mapping[str, Any] | bytes | None, attempt: Attempt, routing: RoutingRequest, end: End
) -> Usage:
    """The usage, with the numbers that placement expected if no engine has counted the prompt of a request that ran.

    If the client has left and the engine reports 0 tokens, the 0 is kept: the request was aborted before it ran.
    """
    if "prompt_tokens" not in usage.estimated:
        return usage
    if end.client_left and _never_ran(reported):
        return usage
    completion_tokens = 0
    decision = attempt.decision
    if attempt.answer is not None:
        completion_tokens = attempt.answer.text_bytes() * decision.prompt_tokens_est // (routing.chain.total_bytes or 1)
    return with_expected(usage, decision.prompt_tokens_est, decision.predicted, completion_tokens)


def _never_ran(reported: Mapping[str, Any] | bytes | None) -> bool:
    """Whether an engine reports that it has aborted a request that waited in its queue."""
    return isinstance(reported, dict) and reported.get("prompt_tokens") == reported.get("completion_tokens") == 0


def _ignore(_failure: JournalError | None) -> None:
    """Do nothing, since no client waits for the row."""
