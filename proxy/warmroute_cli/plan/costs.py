"""Computes what tokens cost on a plan: the GPUs' price, divided among the traffic's input, cached and output tokens.

    cost/s   = GPUs * USD an hour / 3600
    weights  = seconds of a GPU for one token: computed (prefill), fetched from host memory (cached), decoded (output)
    price    = cost/s * (1 + margin) * weight / sum of tokens/s * weight, over the three kinds

At these prices, the traffic earns exactly the cost of the GPUs and the margin. Less traffic earns less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_UP, Decimal
from typing import Final

from msgspec.structs import replace as sooner

from warmroute_backend.plan.choose import average_load
from warmroute_backend.plan.deployment import Plan, Price, Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.request import PlanRequest
from warmroute_cli.plan.inputs import AVERAGE, average_trace
from warmroute_cli.plan.search import PlayedPlan, Search
from warmroute_cli.plan.sized_page import front
from warmroute_cli.plan.sizing import Sizing, engine_costs, simulate, speeds
from warmroute_cli.plan.targets import Targets
from warmroute_lab.replay.trace import Trace

_MILLION: Final = 1_000_000
_DIGITS: Final = Decimal("0.0001")


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """USD per million tokens, and the figures behind them. `usd_per_s`: the cost of all GPUs."""

    input_usd: Decimal
    cached_usd: Decimal
    output_usd: Decimal
    usd_per_s: float
    margin: float
    tokens_per_s_gpu: float
    """All tokens of this traffic, including cached ones, per second and GPU."""

    def as_dict(self) -> dict[str, object]:
        """Plain values for JSON: prices as decimal text."""
        return {
            "input": str(self.input_usd),
            "cached": str(self.cached_usd),
            "output": str(self.output_usd),
            "usd_per_hour": round(self.usd_per_s * 3600, 4),
            "margin": self.margin,
            "tokens_per_s_gpu": round(self.tokens_per_s_gpu, 1),
        }

    @property
    def of_plan(self) -> Price:
        why = f"USD per million tokens: the cost of its traffic, and {self.margin:.0%}"
        return Price(str(self.input_usd), str(self.cached_usd), str(self.output_usd), why)


def prices(plan: Plan, request: PlanRequest, sizing: Sizing, gpu_hour_usd: float, margin: float) -> TokenPrices:
    """The prices at which a plan's traffic pays for its GPUs. `margin`: the profit, as a share of the GPUs' cost.
    Raises PlanError if the GPUs cannot serve the traffic: the prices would count on tokens that are never computed."""
    traffic = request.traffic
    assert traffic is not None
    if sizing.saturated:
        raise PlanError(
            "these GPUs do not serve this traffic, so it has no prices.", ["more GPUs", "fewer --requests-per-s"]
        )
    load = average_load(request)
    usd_per_s = plan.cluster.gpus * gpu_hour_usd / 3600
    prefill, decode = plan.engines[0], plan.engines[-1]
    costs = engine_costs(plan, prefill, load)
    # A decoded token costs its share of a step, and `running` sequences share the step that takes `token_s`.
    token_s = sizing.token_p50_s or speeds(plan, load, traffic.requests_per_s).token_s
    ranks = sum(engine.ranks for engine in plan.engines if engine.role != "prefill")
    running = max(1.0, traffic.requests_per_s * load.output_tokens * token_s / ranks)
    weights = (
        prefill.shape.attention_tp / costs.prefill_tokens_per_s,
        prefill.shape.attention_tp * costs.host_load_s_per_token,
        decode.shape.attention_tp * token_s / running,
    )
    rates = _rates(traffic, sizing)
    unit = usd_per_s * (1 + margin) / sum(rate * weight for rate, weight in zip(rates, weights, strict=True))
    input_usd, cached_usd, output_usd = (
        Decimal(unit * weight * _MILLION).quantize(_DIGITS, rounding=ROUND_UP) for weight in weights
    )
    return TokenPrices(input_usd, cached_usd, output_usd, usd_per_s, margin, sum(rates) / plan.cluster.gpus)


def _rates(traffic: Traffic, sizing: Sizing) -> tuple[float, float, float]:
    tokens = traffic.requests_per_s * traffic.input_tokens
    return tokens * (1 - sizing.hit), tokens * sizing.hit, traffic.requests_per_s * traffic.output_tokens


def section_of_prices(found: TokenPrices) -> str:
    more = f" and {found.margin:.0%} more" if found.margin else ""
    return "\n".join(
        (
            f"Prices (USD per million tokens, at which this traffic pays ${found.usd_per_s * 3600:,.2f} an hour{more})",
            f"input {found.input_usd}   cached {found.cached_usd}   output {found.output_usd}",
            f"{found.tokens_per_s_gpu:,.0f} tokens/s and GPU, cached ones too; at less traffic a token costs more",
        )
    )


CLOSE: Final = 1.05
"""The search for the goodput (the maximum number of requests per second within the targets) ends once the lowest rate
that misses a target is within this factor of the highest rate that misses no target."""
MOST_PLAYS: Final = 14
MOST_PLANS: Final = 3


@dataclass(frozen=True, slots=True)
class Goodput:
    """The goodput of one plan. `beyond`: the targets that it misses at the lowest simulated rate above the goodput."""

    division: str
    requests_per_s: float
    tokens_per_s_gpu: float
    """Answer tokens per second that each GPU generates at `requests_per_s`."""
    beyond: str


def by_goodput(search: Search, traffic: Traffic, trace: Trace, targets: Targets) -> list[Goodput]:
    """Move the plan with the highest goodput to the front of `search.played`.

    Returns the goodputs of at most `MOST_PLANS` plans, the highest first. These plans are the best plan of the search,
    and others that no plan beats in both tokens/s per GPU and time per token (`front`).
    """
    best = search.best
    asked = [best, *(each for each in front(search) if each is not best)][:MOST_PLANS]
    found = [(goodput(each, traffic, trace, targets), each) for each in asked]
    found.sort(key=lambda pair: -pair[0].requests_per_s)
    best = found[0][1]
    search.played.remove(best)
    search.played.insert(0, best)
    return [each for each, _ in found]


def goodput(found: PlayedPlan, traffic: Traffic, trace: Trace, targets: Targets) -> Goodput:
    """The goodput of a plan that the search has simulated at the rate of the traffic."""
    good, bad, beyond = (0.0, 1.0, found.missed) if found.missed else (1.0, 0.0, ())
    for _ in range(MOST_PLAYS):
        if good and bad and bad <= CLOSE * good:
            break
        times = 2 * good if not bad else bad / 2 if not good else (good * bad) ** 0.5
        missed = _missed(found, traffic, trace, targets, times)
        if missed:
            bad, beyond = times, missed
        else:
            good = times
    rate = good * traffic.requests_per_s
    tokens = rate * traffic.output_tokens / found.plan.cluster.gpus
    return Goodput(found.sizing.division, rate, tokens, ", ".join(beyond))


def _missed(found: PlayedPlan, traffic: Traffic, trace: Trace, targets: Targets, times: float) -> tuple[str, ...]:
    """The targets that a plan misses with `times` the traffic."""
    try:
        return tuple(targets.missed(simulate(found.plan, found.request, faster(trace, traffic, times))))
    except PlanError as error:
        return (str(error),)


def faster(trace: Trace, traffic: Traffic, times: float) -> Trace:
    """The trace with `times` the requests per second."""
    if trace.name == AVERAGE:
        return average_trace(replace(traffic, requests_per_s=traffic.requests_per_s * times))
    begun = [each if each.after is not None else sooner(each, at_s=each.at_s / times) for each in trace.requests]
    return replace(trace, requests=begun)


def section_of_goodput(found: Sequence[Goodput], targets: Targets) -> str:
    of_what = "within its targets" if targets else "before a queue grows"
    lines = [f"Goodput: the most requests/s {of_what}"]
    for each in found:
        rate, tokens = f"{each.requests_per_s:.3g} requests/s", f"{each.tokens_per_s_gpu:.3g} tokens/s/GPU"
        lines.append(f"  {each.division}: {rate}, {tokens}" + (f"; beyond: {each.beyond}" if each.beyond else ""))
    return "\n".join(lines)
