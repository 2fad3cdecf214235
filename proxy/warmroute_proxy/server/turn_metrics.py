"""The counters of settled turns, held rather than looked up: a turn raises a dozen of them."""

from collections.abc import Mapping
from typing import Final

from warmroute_proxy.core.decision import Decision
from warmroute_proxy.core.entry import Entry
from warmroute_proxy.core.router import Settled
from warmroute_proxy.core.usage import Usage
from warmroute_proxy.server.metrics import Counter, Metrics

_TIERS: Final = ("device", "host", "storage")


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
        self._device, self._host, self._storage = (counter(cached, (("tier", tier),)) for tier in _TIERS)
        self._on_device, self._on_host, self._in_storage = (counter(predicted, (("tier", tier),)) for tier in _TIERS)

    def settled(self, entry: Entry, usage: Usage, loss: Mapping[str, int]) -> None:
        """Count a turn, its tokens and its price."""
        outcome = entry.outcome or ""
        turns = self._turns.get(outcome)
        if turns is None:
            turns = self._turns[outcome] = self._metrics.counter("warmroute_turns_total", (("outcome", outcome),))
        turns[0] += 1
        self._prompt[0] += usage.prompt_tokens
        self._completion[0] += usage.completion_tokens
        self._device[0] += usage.device
        self._host[0] += usage.host
        self._storage[0] += usage.storage
        self._list[0] += entry.list_nanousd
        self._price[0] += entry.price_nanousd
        for name, tokens in loss.items():
            lost = self._loss.get(name)
            if lost is None:
                lost = self._loss[name] = self._metrics.counter("warmroute_loss_tokens_total", (("class", name),))
            lost[0] += tokens

    def interrupted(self, turns: int = 1) -> None:
        """Count turns that an error of ours, or the death of a process, has ended."""
        if turns:
            self._metrics.counter("warmroute_turns_total", (("outcome", "interrupted"),))[0] += turns

    def predicted(self, decision: Decision, settled: Settled, usage: Usage) -> None:
        """Count what was predicted to be cached, and by how much that was wrong."""
        if settled.error_tokens is None or usage.prompt_tokens <= 0:
            return
        device, host, storage = decision.predicted
        self._on_device[0] += device
        self._on_host[0] += host
        self._in_storage[0] += storage
        error = settled.error_tokens / usage.prompt_tokens
        metrics = self._metrics
        metrics.prediction_error.observe(abs(error))
        metrics.overprediction.observe(max(0.0, error))
        metrics.underprediction.observe(-error if error < 0.0 else 0.0)
