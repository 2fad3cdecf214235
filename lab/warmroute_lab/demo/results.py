"""The numbers of a demo's `--json`, from the logs of its passes, and the conditions that these numbers must meet.

A demo plays the same turns in two passes: `off` places them by round robin, `on` by warmroute's cost.

The *TTFT* of a turn is the sum of three times: the virtual time of the engine that streamed the answer (decode or
aggregated), the proxy's time on the wall clock, and the round trip between the regions if the turn was forwarded.
Virtual time does not depend on the speed of the machine. No other figure mixes virtual and wall-clock time.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warmroute.contract import receipt as receipts
from warmroute_lab.demo.audit import BILLED_ROLES, ClientTurn, Finished, Row, Violation
from warmroute_lab.demo.ideal import Ideal

ALLOWED_GAP = 0.01
"""The hit ratio may be this much below the *session* ideal (`ideal.py`)."""


@dataclass(frozen=True, slots=True)
class Pass:
    turns: Sequence[ClientTurn]
    rows: Sequence[Row]
    finished: Sequence[Finished]
    violations: Sequence[Violation]

    def of(self, harness: str) -> "Pass":
        """The turns of one harness (a program that runs an agent), with their rows and violations. `finished` keeps the
        requests of all harnesses.
        """
        turns = [turn for turn in self.turns if turn.harness == harness]
        ids = {turn.receipt_id for turn in turns}
        rows = [row for row in self.rows if row["id"] in ids]
        violations = [violation for violation in self.violations if violation.harness == harness]
        return Pass(turns, rows, self.finished, violations)


def summarize(
    off: Pass, on: Pass, ideal: Mapping[str, Ideal], rtt_ms: float, harnesses: Iterable[str] = ()
) -> dict[str, Any]:
    """The numbers of a demo, and of each of `harnesses`. `ideal`: turn label -> its ideal."""
    summary: dict[str, Any] = {
        **_counts(off, on),
        "hit_ratio": {"off": hit_ratio(off.turns), "on": hit_ratio(on.turns), **_ideal_ratios(on.turns, ideal)},
        "ttft_ms": {"off": _percentiles(ttfts_ms(off, rtt_ms)), "on": _percentiles(ttfts_ms(on, rtt_ms))},
        "cost_nanousd": {
            "list": sum(row["list_nanousd"] for row in on.rows),
            "charged": sum(row["price_nanousd"] for row in on.rows),
        },
    }
    parts = {name: summarize(off.of(name), on.of(name), ideal, rtt_ms) for name in harnesses}
    return summary | {"by_harness": parts} if parts else summary


def summarize_sglang(one: Pass, engine: Mapping[str, int]) -> dict[str, Any]:
    """The numbers of a pass on real SGLang. `engine`: the growth of SGLang's counters during the pass.

    The *prediction error* of a turn is (predicted - reported cached tokens) / prompt tokens: above zero if the proxy
    expected more cached tokens than SGLang reports.
    """
    turns = [_sglang_turn(turn) for turn in one.turns if _has_receipt(turn)]
    prompt, cached = (sum(turn[name] for turn in turns) for name in ("prompt_tokens", "cached_tokens"))
    errors = [turn["prediction_error"] for turn in turns]
    return {
        "engine": "sglang",
        "mode": "prefill and decode over NIXL on a CPU",
        **_counts(one),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "hit_ratio": cached / prompt if prompt else 0.0,
        "estimated": sorted({name for turn in turns for name in turn["estimated"]}),
        "engine_counters": dict(engine),
        "prediction_error": {
            "p50": percentile(errors, 0.5, 5),
            "p95": percentile(errors, 0.95, 5),
            "absolute_p50": percentile([abs(error) for error in errors], 0.5, 5),
            "absolute_p95": percentile([abs(error) for error in errors], 0.95, 5),
        },
        "turns": turns,
    }


def _sglang_turn(turn: ClientTurn) -> dict[str, Any]:
    usage = turn.usage or {}
    receipt = usage["warmroute"]
    prompt, cached = usage["prompt_tokens"], receipts.cached_tokens(usage)
    predicted = receipt["predicted_cached"]
    return {
        "turn": turn.label,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "predicted_cached": predicted,
        "prediction_error": (predicted - cached) / prompt if prompt else 0.0,
        "cached": dict(receipt["cached"]),
        "loss": {name: tokens for name, tokens in receipt["loss"].items() if tokens},
        "estimated": list(receipt["estimated"]),
    }


def _counts(*passes: Pass) -> dict[str, int]:
    turns = [turn for one in passes for turn in one.turns]
    return {
        "requests": len(turns),
        "completed": sum(turn.error is None for turn in turns),
        "receipts": sum(map(_has_receipt, turns)),
        "ledger_rows": sum(len(one.rows) for one in passes),
        "invariant_violations": sum(len(one.violations) for one in passes),
    }


def hit_ratio(turns: Iterable[ClientTurn]) -> float:
    prompt, cached = token_sums(turns)
    return cached / prompt if prompt else 0.0


def token_sums(turns: Iterable[ClientTurn]) -> tuple[int, int]:
    """Prompt tokens and cached tokens, as the receipts state them."""
    usages = [turn.usage for turn in turns if turn.usage is not None]
    return sum(usage["prompt_tokens"] for usage in usages), sum(map(receipts.cached_tokens, usages))


def ttfts_ms(one: Pass, rtt_ms: float) -> list[float]:
    """The time to the first token of every row whose engine is known."""
    virtual = {entry["rid"]: entry["ttft_virtual_ms"] for entry in one.finished if entry["role"] in BILLED_ROLES}
    return [
        virtual[row["rids"][-1]] + row["proxy_ms"] + (rtt_ms if row["forwarded_from"] else 0.0)
        for row in one.rows
        if row["rids"] and virtual.get(row["rids"][-1]) is not None and row["proxy_ms"] is not None
    ]


def failures(summary: Mapping[str, Any]) -> list[str]:
    found = broken_sums(summary)
    cost = summary["cost_nanousd"]
    if cost["charged"] >= cost["list"]:
        found.append(f"The charged {cost['charged']} nanodollars are not below the list price of {cost['list']}.")
    for name, figures in {"all harnesses": summary, **summary["by_harness"]}.items():
        ratio = figures["hit_ratio"]
        if ratio["on"] < ratio["ideal_session"] - ALLOWED_GAP:
            found.append(
                f"The hit ratio of {name} is {ratio['on']:.1%}, more than a point below the ideal of "
                f"{ratio['ideal_session']:.1%}."
            )
    return found


def failures_on_sglang(summary: Mapping[str, Any]) -> list[str]:
    found = broken_sums(summary)
    if summary["estimated"]:
        found.append(f"SGLang did not report {', '.join(summary['estimated'])}.")
    engine = summary["engine_counters"]
    for name, tokens in engine.items():
        if tokens != summary[name]:
            found.append(f"The receipts have {summary[name]:,} {name.replace('_', ' ')}, SGLang counted {tokens:,}.")
    if not summary["cached_tokens"]:
        found.append("SGLang found nothing in its cache.")
    return found


def broken_sums(summary: Mapping[str, Any]) -> list[str]:
    """A sentence for each failure: turns, receipts or rows that are missing, and violated invariants."""
    found = []
    if len({summary[name] for name in ("requests", "completed", "receipts", "ledger_rows")}) != 1:
        found.append(
            f"{summary['requests']} requests, {summary['completed']} completed, {summary['receipts']} receipts and "
            f"{summary['ledger_rows']} ledger rows should be the same number."
        )
    if summary["invariant_violations"]:
        found.append(f"{summary['invariant_violations']} invariants were violated.")
    return found


def _has_receipt(turn: ClientTurn) -> bool:
    return turn.receipt_id is not None and "warmroute" in (turn.usage or {})


def _ideal_ratios(turns: Sequence[ClientTurn], ideal: Mapping[str, Ideal]) -> dict[str, float]:
    prompt, _ = token_sums(turns)
    found = [ideal[turn.label] for turn in turns if turn.usage is not None]
    return {
        "ideal_session": sum(one.session for one in found) / prompt if prompt else 0.0,
        "ideal_shared": sum(one.shared for one in found) / prompt if prompt else 0.0,
    }


def _percentiles(values: list[float]) -> dict[str, float | None]:
    return {"p50": percentile(values, 0.5, 3), "p90": percentile(values, 0.9, 3)}


def percentile(values: Sequence[float], share: float, digits: int) -> float | None:
    """The percentile by nearest rank; None without values."""
    if not values:
        return None
    return round(sorted(values)[math.ceil(share * len(values)) - 1], digits)
