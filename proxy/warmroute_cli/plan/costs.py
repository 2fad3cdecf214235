"""What tokens cost on a plan: the price of its GPUs, divided among input, cached and output tokens of its traffic.

    cost/s   = GPUs * USD an hour / 3600
    weights  = seconds of a GPU for one token: computed (prefill), fetched from host memory (cached), decoded (output)
    price    = cost/s * (1 + margin) * weight / sum of tokens/s * weight, over the three kinds

So that this traffic, at this rate, earns exactly what the GPUs cost and the margin. At less traffic it earns less.
"""

from dataclasses import dataclass
from decimal import ROUND_UP, Decimal
from typing import Final

from warmroute_backend.plan.choose import average_load
from warmroute_backend.plan.deployment import Plan, Price, Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.request import PlanRequest
from warmroute_cli.plan.sizing import Sizing, engine_costs, speeds

_MILLION: Final = 1_000_000
_DIGITS: Final = Decimal("0.0001")


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """USD per million tokens, and what they are at. `usd_per_s`: what all GPUs cost."""

    input_usd: Decimal
    cached_usd: Decimal
    output_usd: Decimal
    usd_per_s: float
    margin: float
    tokens_per_s_gpu: float
    """Of all tokens, cached ones too, at this traffic."""

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
    """The prices at which a plan's traffic pays for its GPUs. `margin`: a share that is added. Raises PlanError where
    the GPUs do not serve the traffic: its tokens would then be sold and not made."""
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
    # A decoded token takes its share of a step; the time per token that was played is of as many sequences as ran.
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


def section(found: TokenPrices) -> str:
    more = f" and {found.margin:.0%} more" if found.margin else ""
    return "\n".join(
        (
            f"Prices (USD per million tokens, at which this traffic pays ${found.usd_per_s * 3600:,.2f} an hour{more})",
            f"input {found.input_usd}   cached {found.cached_usd}   output {found.output_usd}",
            f"{found.tokens_per_s_gpu:,.0f} tokens/s and GPU, cached ones too; at less traffic a token costs more",
        )
    )
