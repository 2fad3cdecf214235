"""The figures of a run, from its findings: pure. Times are of clients on this machine, and no verdict is by them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from warmroute.contract.receipt import cached_tokens

from .audit import calm_turns
from .run import Asked, Findings

UNCACHED_NANOUSD: Final = 500
"""What a prompt token costs more where it is not cached, at the prices of the runs."""

_COLD: Final = ("elsewhere", "evicted", "moved")


def measured(found: Findings) -> dict[str, Any]:
    """All of them, as JSON takes them."""
    calm = [asked for asked in found.tried if not asked.during]
    pairs = list(calm_turns(found))
    return {
        "seed": found.seed,
        "wall_s": round(found.wall_s, 1),
        "tries": len(found.tried),
        "whole": sum(asked.seen.end == "whole" for asked in found.tried),
        "calm": _of(calm),
        "calm_errors": dict(Counter(_error(asked) for asked in calm if asked.seen.end != "whole")),
        "at_home": round(sum(one.seen.home == two.seen.home for _, one, two in pairs) / (len(pairs) or 1), 4),
        "faults": [_of_fault(found, number) for number in range(len(found.recoveries))],
    }


def _error(asked: Asked) -> str:
    """What a client got, and of which tenant and at which region: some may be served in one region alone."""
    return f"{asked.seen.status} {asked.seen.detail} ({asked.turn.tenant} at {asked.region})"


def _of(tried: Iterable[Asked]) -> dict[str, Any]:
    whole = [asked for asked in tried if asked.seen.end == "whole" and asked.seen.usage is not None]
    usages = [asked.seen.usage or {} for asked in whole]
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    forwarded = [asked for asked in whole if "forwarded" in (asked.seen.usage or {})["warmroute"]]
    here = [asked for asked in whole if "forwarded" not in (asked.seen.usage or {})["warmroute"]]
    return {
        "turns": len(whole),
        "hit": round(sum(map(cached_tokens, usages)) / (prompt or 1), 4),
        "prompt_tokens": prompt,
        "forwarded": len(forwarded),
        "here_ms": _times_ms(here),
        "forwarded_ms": _times_ms(forwarded),
    }


def _times_ms(tried: Sequence[Asked]) -> dict[str, float]:
    """Percentiles of what clients waited for whole answers."""
    times = sorted((asked.ended_s - asked.began_s) * 1000 for asked in tried)
    if not times:
        return {}
    return {f"p{part}": round(times[min(len(times) - 1, len(times) * part // 100)], 1) for part in (50, 99)}


def _of_fault(found: Findings, number: int) -> dict[str, Any]:
    """One fault: how long, what it cost while it lasted (fail-over), and from its end to the next one (failback)."""
    recovery = found.recoveries[number]
    later = [each.began_at for each in found.recoveries[number + 1 :]]
    end = later[0] if later else len(found.tried)
    during = found.tried[recovery.began_at : recovery.healed_at]
    after = found.tried[recovery.healed_at : end]
    return {
        "fault": recovery.fault,
        "lasted_s": round(recovery.lasted_s, 1),
        "whole_s": round(recovery.whole_s, 1),
        "errors": sum(asked.seen.end != "whole" for asked in [*during, *after]),
        "failover_usd": _cold_usd(during),
        "failback_usd": _cold_usd(after),
        "turns": len(during) + len(after),
        "turns_during": len(during),
    }


def _cold_usd(tried: Iterable[Asked]) -> float:
    """What prompts cost more because what was known of them was cached nowhere near, or not any more."""
    tokens = 0
    for asked in tried:
        receipt = (asked.seen.usage or {}).get("warmroute", {})
        loss = receipt.get("loss", {})
        tokens += sum(loss.get(name, 0) for name in _COLD) + (loss.get("cold", 0) if asked.turn.number else 0)
    return round(tokens * UNCACHED_NANOUSD / 1e9, 6)
