"""The figures of a demo on real SGLang: each turn as SGLang counted it, beside what the proxy had predicted.

The *prediction error* of a turn is (predicted - reported cached tokens) / prompt tokens: above zero where the proxy
expected more than there was.
"""

from collections.abc import Mapping
from typing import Any

from warmroute.contract import receipt as receipts
from warmroute_lab.demo.audit import ClientTurn
from warmroute_lab.demo.results import Pass, broken_sums, percentile


def summarize(one: Pass, engine_prompt_tokens: int, engine_cached_tokens: int) -> dict[str, Any]:
    """All numbers of the run; `engine_*` are what SGLang's counters grew by."""
    turns = [_turn(turn) for turn in one.turns if turn.usage is not None]
    prompt, cached = (sum(turn[name] for turn in turns) for name in ("prompt_tokens", "cached_tokens"))
    errors = [turn["prediction_error"] for turn in turns]
    return {
        "engine": "sglang",
        "mode": "prefill and decode over NIXL on a CPU",
        "requests": len(one.turns),
        "completed": sum(turn.error is None for turn in one.turns),
        "receipts": len(turns),
        "ledger_rows": len(one.rows),
        "invariant_violations": len(one.violations),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "hit_ratio": cached / prompt if prompt else 0.0,
        "estimated": sorted({name for turn in turns for name in turn["estimated"]}),
        "engine_counters": {"prompt_tokens": engine_prompt_tokens, "cached_tokens": engine_cached_tokens},
        "prediction_error": {
            "p50": percentile(errors, 0.5, 5),
            "p95": percentile(errors, 0.95, 5),
            "absolute_p50": percentile([abs(error) for error in errors], 0.5, 5),
            "absolute_p95": percentile([abs(error) for error in errors], 0.95, 5),
        },
        "turns": turns,
    }


def _turn(turn: ClientTurn) -> dict[str, Any]:
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


def failures(summary: Mapping[str, Any]) -> list[str]:
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


def metric_sum(text: str, name: str) -> float:
    """The sum of all series of a metric in a Prometheus page; 0.0 where there is none."""
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    )
