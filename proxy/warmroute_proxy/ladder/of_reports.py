"""Makes turns of the ladder from lines of other programs' logs.

A log shows only some of the steps. An engine's log has `delivered`; a gateway's has `reported` and `billed`; only a log
with prompts shows `reachable`. A step that the log does not show keeps the level of the step before it, and is not in
`LadderTurn.known`. A difference that the log does not explain is `unexplained`. A cost in the log counts as billed,
even if the rates are unknown.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from warmroute.contract.money import Rates
from warmroute_proxy.ladder.prefixes import Prefixes
from warmroute_proxy.ladder.steps import CAUSES, STEPS, UNEXPLAINED
from warmroute_proxy.ladder.turn import Bill, Cost, LadderTurn, Loss, priced

FREE: Final = Rates(0, 0, 0)
MAX_MODELS: Final = 1_000
TOKENS_OF_PIECE: Final = 16
"""How many tokens a piece of text has, roughly: it converts a cache's size in tokens to pieces."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What one line of a log says. A field is None or empty if the log does not have it.

    `delivered`: cached tokens by the engine's own log; `reported`: by the engine's answer; `predicted`: by the
    gateway's prediction. `loss`: loss class -> tokens, as in receipts of this proxy. `units`: the prompt, as token ids
    or pieces of text. `answer`: the answer's units, if its KV is cached after the prompt. `at`: when the request came
    or ended, as a text that sorts by time.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    delivered: int | None = None
    reported: int | None = None
    predicted: int | None = None
    cost_nanousd: int | None = None
    loss: Mapping[str, int] | None = None
    units: Sequence[int | str] | None = None
    answer: Sequence[int | str] = ()
    levels: Mapping[str, int] | None = None
    """Step -> cached tokens, if the source has counted them itself."""
    worker: str = ""
    at: str = ""
    keys: dict[str, str] = field(default_factory=dict)


class Reports:
    """Makes turns from reports, which must come in the order of their requests."""

    def __init__(self, rates: Mapping[str, Rates], kv_tokens: int | None = None) -> None:
        """`rates`: model -> rates; `""`: other models. `kv_tokens`: the size of a worker's cache; None: no bound."""
        self._rates = rates
        self.unrated: Counter[str] = Counter()
        """Model -> turns without rates. Limits: counts `MAX_MODELS` models, and leaves further models out."""
        self._kv_tokens = kv_tokens
        self._tokens = Prefixes(kv_tokens)
        self._pieces = Prefixes(None if kv_tokens is None else kv_tokens // TOKENS_OF_PIECE, 1)

    @property
    def forgot_pages(self) -> int:
        """Pages of prompts that were dropped because there were too many. Later turns count their text as new."""
        return self._tokens.forgot + self._pieces.forgot

    @property
    def has_many_workers(self) -> bool:
        """Whether there were more workers than `prefixes.MAX_WORKERS`."""
        return self._tokens.has_rest or self._pieces.has_rest

    def turn_of(self, report: Report) -> LadderTurn:
        prompt = max(0, report.prompt_tokens)
        model = report.keys.get("model", "")
        rates = self._rates.get(model, self._rates.get(""))
        if rates is None and (model in self.unrated or len(self.unrated) < MAX_MODELS):
            self.unrated[model] += 1
        bill = Bill(rates or FREE, prompt, max(0, report.completion_tokens))
        levels = self._levels(report, prompt, bill)
        losses = tuple(_losses(report, prompt, levels))
        costs = priced(losses, bill)
        price = bill.price(_lowest(levels, prompt)) if report.cost_nanousd is None else report.cost_nanousd
        rest = price - bill.price(prompt) - sum(cost.nanousd for cost in costs)
        if rest:
            costs = (*costs, Cost("billed", UNEXPLAINED, 0, rest))
        is_billed = report.cost_nanousd is not None or (rates is not None and "billed" in levels)
        whole = price if rates is None else bill.price(0)
        return LadderTurn(
            1, prompt, whole, price, costs, report.keys, frozenset(levels), is_rated=rates is not None,
            is_billed=is_billed,
        )  # fmt: skip

    def _levels(self, report: Report, prompt: int, bill: Bill) -> dict[str, int]:
        """Step -> cached tokens, for the known steps."""
        if report.levels is not None:
            return {step: _within(report.levels[step], prompt) for step in STEPS if step in report.levels}
        found: dict[str, int] = {}
        if report.loss is not None and report.reported is not None:
            found |= _of_classes(report, prompt)
        elif report.units is not None:
            found |= self._of_prompt(report, prompt)
        if report.delivered is not None:
            found["delivered"] = _within(report.delivered, prompt)
        if report.reported is not None:
            found["reported"] = _within(report.reported, prompt)
        elif report.delivered is not None:
            found["reported"] = found["delivered"]
        rates = bill.rates
        if report.cost_nanousd is not None and rates.input > rates.cached:
            saved = bill.price(0) - report.cost_nanousd
            found["billed"] = _within(round(saved * 1000 / (rates.input - rates.cached)), prompt)
        elif "reported" in found and rates is not FREE:
            found["billed"] = found["reported"]
        return found

    def _of_prompt(self, report: Report, prompt: int) -> dict[str, int]:
        units = report.units or ()
        prefixes = self._pieces if units and isinstance(units[0], str) else self._tokens
        seen = prefixes.add(units, report.worker, report.answer)
        scale = prompt / len(units) if units else 0.0
        reachable, held, chosen = (min(int(count * scale), prompt) for count in seen)
        if self._kv_tokens is None and not report.worker:
            return {"reachable": reachable}
        return {"reachable": reachable, "kept": held, "chosen": chosen}


def _of_classes(report: Report, prompt: int) -> dict[str, int]:
    """The steps of a turn whose log line has the loss classes of its receipt."""
    loss = report.loss or {}
    cached = _within(report.reported or 0, prompt)
    moved = sum(loss.get(name, 0) for name in CAUSES["chosen"])
    held = cached + loss.get("unknown", 0) + moved
    found = {"reachable": held + sum(loss.get(name, 0) for name in CAUSES["kept"]), "kept": held}
    if report.predicted is not None:
        found |= {"predicted": report.predicted + moved, "chosen": report.predicted}
    return found | {"delivered": cached}


def _losses(report: Report, prompt: int, levels: Mapping[str, int]) -> Iterator[Loss]:
    before = prompt
    for step, level in levels.items():
        lost, named = before - level, 0
        for cause in CAUSES[step]:
            tokens = (report.loss or {}).get(cause, 0)
            if tokens:
                yield Loss(step, cause, tokens)
                named += tokens
        rest = lost - named
        if rest:
            yield Loss(step, _cause(step, rest, report, levels), rest)
        before = level


def _cause(step: str, tokens: int, report: Report, levels: Mapping[str, int]) -> str:
    if step == "reachable":
        return "new" if levels["reachable"] else "cold"
    if (report.units is not None or report.levels is not None) and step in {"kept", "chosen"}:
        return {"kept": "evicted", "chosen": "moved"}[step]
    if report.loss is not None and report.levels is None and step in {"predicted", "delivered"}:
        return "underpredicted" if (tokens > 0) == (step == "predicted") else "overpredicted"
    return UNEXPLAINED


def _lowest(levels: Mapping[str, int], prompt: int) -> int:
    return [prompt, *levels.values()][-1]


def _within(tokens: int, prompt: int) -> int:
    return min(max(0, tokens), prompt)
