"""Describes a prompt in tokens, and how much of it each worker has cached."""

from warmroute_proxy.core.base.compiled import Frozen
from warmroute_proxy.core.cache.index import Match
from warmroute_proxy.core.cache.settled_turn import SettledTurn
from warmroute_proxy.core.cache.tiers import MIN_FETCH_TOKENS, NOTHING_HELD, Held
from warmroute_proxy.core.placement.choices import WorkerState
from warmroute_proxy.core.placement.forks import Fork


class MatchedPrompt(Frozen, frozen=True):
    """The size of a prompt, estimated by the learned ratio of bytes to tokens, and what the prefix index knows of it.

    `last_turn`: the turn that the prompt continues. `restarted_bytes`: how much of the prompt was in caches that were
    lost with their engines. `head_bytes`: the longest prefix (the head) that any worker has, if other prompts may
    branch off after it. `fork`: the prompts that have just done so (`forks`).
    """

    tokens: int
    bytes_per_token: float
    match: Match
    last_turn: SettledTurn | None = None
    restarted_bytes: int = 0
    head_bytes: int = 0
    fork: Fork | None = None

    def with_answer(self, worker: WorkerState, matched: int, held: Held) -> Held:
        """What a worker holds, including the last turn's answer if exactly the last turn's prompt is matched at this
        worker.

        An aggregated worker keeps the answer that it has generated, and the prompt repeats that answer. The index does
        not know this answer: no prompt has contained it before.
        """
        turn, target = self.last_turn, worker.worker
        if turn is None or matched != turn.prompt_bytes or target is None or worker.role != "aggregated":
            return held
        if not turn.completion_tokens or worker.tiered or worker.id not in turn.workers:
            return held
        tokens = held.device + turn.completion_tokens
        return Held(tokens - tokens % target.page_tokens, 0, 0)

    def tokens_of(self, prefix_bytes: int) -> int:
        """Tokens of a prefix; never all tokens of the prompt, because an engine computes at least the last one."""
        found, most = int(prefix_bytes / self.bytes_per_token), self.tokens - 1
        return found if found < most else most  # noqa: FURB136 - min() takes three times as long

    def held(self, worker: WorkerState, matched: dict[int, int]) -> tuple[int, Held]:
        """How much of the prompt a worker has: bytes in all, and tokens by tier. `matched`: slot -> bytes."""
        device_bytes = matched.get(worker.slot, 0)
        host_bytes = max(device_bytes, matched.get(worker.host_slot, 0))
        all_bytes = max(host_bytes, matched.get(worker.store_slot, 0))
        if not all_bytes:
            return 0, NOTHING_HELD
        device = self.tokens_of(device_bytes)
        host = device if host_bytes == device_bytes else self.tokens_of(host_bytes)
        storage = host if all_bytes == host_bytes else self.tokens_of(all_bytes)
        if storage - host < MIN_FETCH_TOKENS:
            all_bytes, storage = host_bytes, host
        return all_bytes, Held(device, host - device, storage - host)
