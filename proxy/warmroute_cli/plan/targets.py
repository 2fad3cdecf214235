"""Targets of a plan under its traffic: TTFT, and the time per token after the first."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

from warmroute_cli.plan.sizing import Sizing

WAIT_S: Final = 10.0
"""The limit of the TTFT at p90 if it has no target. If the TTFT is above this limit, and above twice that of a request
alone, the plan does not keep up."""


UNCERTAIN_PROMPT: Final = 0.24
UNCERTAIN_STEP: Final = 0.39
"""Relative errors of the roofline for prompts and for decode steps: 8 of 10 published speeds are within them. No speed
was used to fit the constants that predict it (docs/benchmarks/plans.md)."""


@dataclass(frozen=True, slots=True)
class Targets:
    """The maximum TTFT and the maximum time per token in seconds, by percentile of requests; None: no limit."""

    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    ttft_p99_s: float | None = None
    token_p50_s: float | None = None
    token_p90_s: float | None = None
    token_p99_s: float | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in asdict(self).values())

    @property
    def least_ttft_s(self) -> float | None:
        return min((each for each in (self.ttft_p50_s, self.ttft_p90_s, self.ttft_p99_s) if each), default=None)

    @property
    def least_token_s(self) -> float | None:
        return min((each for each in (self.token_p50_s, self.token_p90_s, self.token_p99_s) if each), default=None)

    def missed(self, sizing: Sizing) -> Iterator[str]:
        if sizing.saturated:
            yield "a queue grows"
        for name, limit in asdict(self).items():
            found = getattr(sizing, name)
            if limit is not None and found > limit:
                yield f"{_words(name)} {shown(found, name)} > {shown(limit, name)}"
        if self.least_ttft_s is None and sizing.ttft_p90_s > max(WAIT_S, 2 * sizing.alone_s):
            yield f"TTFT p90 {sizing.ttft_p90_s:.1f} s"

    def reached(self, sizing: Sizing) -> str:
        """`yes`, `no`, or `maybe` if the answer depends on the roofline's error."""
        if sizing.saturated:
            return "no"
        slow, fast = (any(self.missed(_scaled(sizing, sign))) for sign in (1, -1))
        return "maybe" if slow != fast else "no" if slow else "yes"


def _scaled(sizing: Sizing, sign: int) -> Sizing:
    """The times at the upper (`sign` 1) or lower (-1) end of the roofline's error."""
    times = {}
    for name in asdict(Targets()):
        band = UNCERTAIN_STEP if name.startswith("token") else UNCERTAIN_PROMPT
        times[name] = getattr(sizing, name) * (1 + band) ** sign
    return replace(sizing, **times)


def shown(value_s: float, name: str) -> str:
    return f"{value_s * 1000:.1f} ms" if name.startswith("token") else f"{value_s:.1f} s"


def _words(name: str) -> str:
    what, percentile, _ = name.split("_")
    return f"{'TTFT' if what == 'ttft' else 'time per token'} {percentile}"
