"""Writes the section of a plan's page about its traffic: the plans that were compared, and how fast they are."""

from typing import Final

from warmroute_backend.plan.measured import table
from warmroute_cli.plan.search import PlayedPlan, Search
from warmroute_cli.plan.sizing import Sizing
from warmroute_cli.plan.targets import Targets

SHOWN: Final = 8
"""The maximum number of plans in the table. The chosen plan is first."""

REMEDIES: Final = {
    "computing prompts": ("more GPUs", "more prompts cached, with --storage mooncake"),
    "decoding": ("more GPUs", "--objective throughput"),
    "memory for KV": ("more GPUs", "--kv-dtype fp8_e4m3", "fewer or shorter requests"),
}
_HEADS: Final = ("on the same GPUs", "hit", "TTFT s", "ms/token", "answer s", "busy", "KV", "tokens/s/GPU", "reaches")


def section(search: Search, targets: Targets) -> str:
    """The table of plans, then sentences on plans not played, the best plan's bottleneck, and what would change the
    choice."""
    best = search.best
    fastest = front(search)
    rows = [_row(each, targets, marked=each in fastest) for each in search.played[:SHOWN]]
    lines = [
        "Traffic (p90, of a queueing model, to compare plans; * = no other has more tokens/s/GPU and fewer ms/token)",
        table(_HEADS, rows),
    ]
    if len(search.played) > SHOWN:
        lines.append(f"{len(search.played) - SHOWN} more were played and are worse.")
    lines += [f"{count} not played: {reason}." for reason, count in sorted(search.ruled_out.items())]
    lines.append(f"bottleneck: {best.sizing.bottleneck}, {best.sizing.busiest:.0%} used")
    lines += _what_changes(search, targets)
    return "\n".join(lines)


def front(search: Search) -> list[PlayedPlan]:
    """The plans that keep up and that no other plan beats in both tokens/s per GPU and time per token."""
    able = [each for each in search.played if not each.sizing.saturated]
    return [each for each in able if not any(_beats(other.sizing, each.sizing) for other in able)]


def _beats(one: Sizing, other: Sizing) -> bool:
    more, faster = one.tokens_per_s_gpu - other.tokens_per_s_gpu, other.token_p90_s - one.token_p90_s
    return more >= 0 and faster >= 0 and (more > 0 or faster > 0)


def _row(found: PlayedPlan, targets: Targets, *, marked: bool) -> tuple[str, ...]:
    each = found.sizing
    return (
        each.division + " *" * marked,
        f"{each.hit:.2f}",
        f"{each.ttft_p90_s:.2f}",
        f"{each.token_p90_s * 1000:.1f}",
        f"{each.answer_p90_s:.1f}",
        f"{max(each.prefill_utilisation, each.decode_utilisation):.0%}",
        f"{each.kv_utilisation:.0%}" if each.kv_utilisation <= 1 else "> 100%",
        f"{each.tokens_per_s_gpu:,.0f}",
        targets.reached(each) if each.played == 1 else f"no, cut at {each.played:.0%}",
    )


def _what_changes(search: Search, targets: Targets) -> list[str]:
    best = search.best
    sizing = best.sizing
    lines = []
    if best.missed:
        lines.append(f"No plan of these GPUs reaches it: {', '.join(best.missed)}.")
        lines.append(f"remedies: {'; '.join(REMEDIES[sizing.bottleneck])}")
    if sizing.saturated:
        lines.append("This traffic is more than the GPUs serve: a queue grows as long as it lasts.")
    elif not best.missed:
        if sizing.kv_utilisation > 1:
            lines.append("At times requests wait for memory.")
        times = 1 / max(sizing.busiest, 1e-9)
        lines.append(f"It is full at {times:.1f} times this traffic." if times > 1.05 else "This traffic fills it.")
    if targets and not best.missed:
        lines += _nearest(search)
    return lines


def _nearest(search: Search) -> list[str]:
    """A line with the fastest plan that keeps up but misses targets, if it answers faster than the chosen plan."""
    better = [
        each
        for each in search.played[1:]
        if each.missed and not each.sizing.saturated and each.sizing.answer_p90_s < search.best.sizing.answer_p90_s
    ]
    if not better:
        return []
    nearest = min(better, key=lambda each: each.sizing.answer_p90_s)
    return [f"Without {', '.join(nearest.missed)}: {nearest.sizing.division}."]
