"""Defines the ticket of a dispatched attempt: what the attempt adds to the load of its workers until it ends."""

from typing import Final

from warmroute_proxy.core.cache.occupancy import History
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.core.prompt.chain import Chain

_NONE: Final[list[Chain]] = []


class Ticket:
    """One dispatched attempt, and what it has added to loads. The server does nothing with it but hand it back to the
    router.

    A ticket ends by one call of `settled` or `failed`.

    `from_cut`: the first cut (position in the prompt's chain of hashes) that was not cached. `removals`: the index's
    count of removals at dispatch; while that count stays equal, the index still has all that was added at dispatch.
    `first_s`: when the first token came; `prefilling_s` and `slowdown_s`: the load of the decode worker at that time.
    `shared_bytes`: the part of the prompt that other conversations use, too. `history`: the conversation's history in
    the worker's cache, while the attempt uses it. `used_before`: the number of the conversation's previous use of that
    cache; 0 without a previous use, below 0 until the worker begins to compute the prompt. `tenant`: empty if there is
    only one. `behind`: the chains of the prompts that were under way when this one was sent. `handed_over`: a prefill
    worker has computed the prompt and handed its KV over, so the attempt does not use the history any more.
    `prompt_tokens`: as estimated by placement. `moving_tokens`: how many tokens could be computed in the time in which
    the cached tokens move to the device.
    """

    __slots__ = (
        "_decision",
        "behind",
        "cache_worker",
        "chain",
        "computed",
        "decode_worker",
        "first_s",
        "from_cut",
        "handed_over",
        "history",
        "lineage",
        "moving_tokens",
        "open",
        "prefilling_s",
        "prompt_tokens",
        "removals",
        "resident",
        "sent_s",
        "sequences",
        "shared_bytes",
        "slowdown_s",
        "tenant",
        "uncached",
        "used_before",
    )

    removals: int
    sent_s: float
    behind: list[Chain]
    first_s: float
    prefilling_s: float
    slowdown_s: float

    def __init__(
        self,
        chain: Chain,
        cache_worker: WorkerState,
        decode_worker: WorkerState | None,
        sequences: int,
        from_cut: int,
        prompt_tokens: int,
        cached_tokens: int,
        *,
        decision: Decision | None = None,
    ) -> None:
        self._decision = decision
        self.behind = _NONE
        self.chain = chain
        self.cache_worker = cache_worker
        self.decode_worker = decode_worker
        self.sequences = sequences
        self.from_cut = from_cut
        self.prompt_tokens = prompt_tokens
        self.uncached = prompt_tokens - cached_tokens
        self.resident = prompt_tokens
        self.computed = False
        self.history: History | None = None
        self.handed_over = False
        self.lineage = 0
        self.moving_tokens = 0
        self.tenant = ""
        self.shared_bytes = 0
        self.used_before = -1
        self.open = True

    @property
    def decision(self) -> Decision:
        """The decision that placed the attempt. Not available for attempts of other processes."""
        assert self._decision is not None, "another process has decided"
        return self._decision

    @property
    def at_work(self) -> bool:
        """Whether the worker has begun to compute the prompt, as far as is known."""
        return self.used_before >= 0

    @property
    def own_tokens(self) -> int:
        """Tokens of the prompt that no other conversation uses."""
        return max(0, self.prompt_tokens - self.shared_tokens(self.prompt_tokens))

    def shared_tokens(self, prompt_tokens: int) -> int:
        """How many of `prompt_tokens` are used by other conversations, too."""
        return self.shared_bytes * prompt_tokens // self.chain.ends[-1] if self.shared_bytes else 0

    def workers(self) -> tuple[WorkerState, ...]:
        if self.decode_worker is None or self.decode_worker is self.cache_worker:
            return (self.cache_worker,)
        return (self.cache_worker, self.decode_worker)

    def close(self, now_s: float) -> None:
        """Remove what the attempt has added to loads. Call it only once."""
        assert self.open, "a ticket is settled or failed once"
        self.open = False
        cache_worker, decode_worker = self.cache_worker, self.decode_worker
        load = cache_worker.load
        if not self.computed:
            load.prefill_ended(self, now_s)
        if decode_worker is cache_worker:
            load.add_running(-self.sequences, -self.resident)
            load.departures.observe(now_s - self.sent_s, now_s)
            return
        if decode_worker is not None:
            decode_worker.load.add_running(-self.sequences, -self.resident)
            decode_worker.load.departures.observe(now_s - self.sent_s, now_s)
        if decode_worker is None or not self.computed:
            load.add_running(-self.sequences, 0)
            load.departures.observe(now_s - self.sent_s, now_s)
