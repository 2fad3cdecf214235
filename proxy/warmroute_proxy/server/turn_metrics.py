"""The counters of settled turns, held rather than looked up: a turn raises a dozen of them."""

from collections.abc import Mapping

from warmroute.contract.receipt import TIERS
from warmroute_proxy.core.account import Usage
from warmroute_proxy.core.entry import Entry
from warmroute_proxy.core.router import Settled
from warmroute_proxy.core.tiers import Held
from warmroute_proxy.server.metrics import Counter, Metrics


class TurnMetrics:
    """Raises what a settled turn raises."""

    def __init__(self, metrics: Metrics) -> None:
        counter = metrics.counter
        self._metrics = metrics
        self._turns: dict[str, Counter] = {}  # by outcome
        self._loss: dict[str, Counter] = {}  # by class
        self._prompt = counter("warmroute_prompt_tokens_total")
        self._completion = counter("warmroute_completion_tokens_total")
        self._list = counter("warmroute_list_nanousd_total")
        self._price = counter("warmroute_price_nanousd_total")
        cached, predicted = "warmroute_cached_tokens_total", "warmroute_predicted_tokens_total"
        self._cached = tuple([counter(cached, (("tier", tier),)) for tier in TIERS])
        self._predicted = tuple([counter(predicted, (("tier", tier),)) for tier in TIERS])

    def settled(
        self, entry: Entry, usage: Usage, loss: Mapping[str, int], predicted: Held, settled: Settled | None
    ) -> None:
        """Count a turn, its tokens and its price; what was predicted to be cached, and by how much that was wrong."""
        outcome = entry.outcome or ""
        turns = self._turns.get(outcome)
        if turns is None:
            turns = self._turns[outcome] = self._metrics.counter("warmroute_turns_total", (("outcome", outcome),))
        turns[0] += 1
        self._prompt[0] += usage.prompt_tokens
        self._completion[0] += usage.completion_tokens
        self._list[0] += entry.list_nanousd
        self._price[0] += entry.price_nanousd
        if usage.cached_tokens:
            _add(self._cached, usage.device, usage.host, usage.storage)
        for name, tokens in loss.items():
            lost = self._loss.get(name)
            if lost is None:
                lost = self._loss[name] = self._metrics.counter("warmroute_loss_tokens_total", (("class", name),))
            lost[0] += tokens
        if settled is not None and settled.error_tokens is not None and usage.prompt_tokens > 0:
            device, host, storage = predicted
            _add(self._predicted, device, host, storage)
            self._metrics.predicted(settled.error_tokens / usage.prompt_tokens)

    def interrupted(self, turns: int = 1) -> None:
        """Count turns that an error of ours, or the death of a process, has ended."""
        if turns:
            self._metrics.counter("warmroute_turns_total", (("outcome", "interrupted"),))[0] += turns


def _add(counters: tuple[Counter, ...], device: int, host: int, storage: int) -> None:
    """Raise the counters of the three tiers; of most prompts nothing is anywhere but on the device."""
    counters[0][0] += device
    if host or storage:
        counters[1][0] += host
        counters[2][0] += storage
