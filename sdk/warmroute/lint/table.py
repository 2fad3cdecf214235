"""An analysis as text for a terminal, and as JSON."""

from collections.abc import Sequence
from typing import Any, Final

from warmroute.guard.causes import WORDS
from warmroute.lint.analysis import Analysis

MAX_SESSION_CHARS: Final = 24
_HEAD: Final = ("session", "cause", "turns", "tokens lost", "USD lost", "first at")


def text_of(analysis: Analysis) -> str:
    """A table of causes with their remedies, and the hit ratio."""
    causes = analysis.causes()
    rows = [
        (
            _short(total.session),
            str(total.cause),
            str(total.turns),
            f"{total.tokens:,}",
            "-" if total.usd is None else f"{total.usd:.4f}",
            f"#{total.number} {total.where}".strip(),
        )
        for total in causes
    ]
    lines = _columns([_HEAD, *rows]) if rows else ["No turn breaks the prefix of its session."]
    lines += ["", *_changed_lines(analysis)]
    for cause in dict.fromkeys(total.cause for total in causes):
        lines.append(f"{cause}: {WORDS[cause].meaning}. To change: {WORDS[cause].fix}.")
    lines += _compaction_lines(analysis)
    kind = "cached" if analysis.is_recorded else "cached or repeated"
    lines.append(
        f"{analysis.extent}, {analysis.prompt_tokens:,} prompt tokens, "
        f"{analysis.cached_tokens:,} {kind} ({analysis.hit_ratio:.1%})"
    )
    return "\n".join(line for at, line in enumerate(lines) if line or at)


def json_of(analysis: Analysis) -> dict[str, Any]:
    """The analysis as JSON; unknown amounts are null."""
    return {
        "v": 1,
        "hit_ratio": round(analysis.hit_ratio, 6),
        "prompt_tokens": analysis.prompt_tokens,
        "cached_tokens": analysis.cached_tokens,
        "is_recorded": analysis.is_recorded,
        "causes": [
            {
                "session": total.session,
                "cause": total.cause,
                "turns": total.turns,
                "tokens_lost": total.tokens,
                "usd_lost": total.usd,
                "first": {"request": total.number, "where": total.where},
                "fix": WORDS[total.cause].fix,
            }
            for total in analysis.causes()
        ],
        "sessions": [
            {
                "session": session.name,
                "turns": [
                    {
                        "request": turn.number,
                        "prompt_tokens": turn.prompt_tokens,
                        "cached_tokens": turn.cached_tokens,
                        "tokens_lost": turn.lost_tokens,
                        "cause": turn.cause,
                        "where": turn.where or None,
                        "line": turn.line,
                        "compacted_tokens": turn.compacted_tokens,
                        "saved_usd_a_turn": turn.saved_usd_a_turn,
                        "before": turn.before or None,
                        "now": turn.now or None,
                    }
                    for turn in session.turns
                ],
            }
            for session in analysis.sessions
        ],
    }


def _compaction_lines(analysis: Analysis) -> list[str]:
    found = []
    for session in analysis.sessions:
        for turn in session.turns:
            if turn.compacted_tokens:
                cost = "" if turn.lost_usd is None else f" ({turn.lost_usd:.4f} USD)"
                saved = "" if turn.saved_usd_a_turn is None else f" ({turn.saved_usd_a_turn:.4f} USD)"
                lost, less = f"{turn.lost_tokens:,} tokens{cost}", f"{turn.compacted_tokens:,} tokens{saved}"
                found.append(f"{_short(session.name)} #{turn.number} is a compaction: {lost} were computed again,")
                found.append(f"  and each turn from there on is {less} shorter.")
    return found


def _changed_lines(analysis: Analysis) -> list[str]:
    found: list[str] = []
    for session in analysis.sessions:
        shown = set()
        for turn in session.turns:
            if turn.cause is not None and turn.cause not in shown and (turn.before or turn.now):
                shown.add(turn.cause)
                found += [
                    f"{_short(session.name)} #{turn.number} {turn.where}, line {turn.line}:",
                    f"  - {turn.before}",
                    f"  + {turn.now}",
                ]
    return [*found, ""] if found else []


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in (2, 3, 4) else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _short(name: str) -> str:
    return name if len(name) <= MAX_SESSION_CHARS else f"{name[: MAX_SESSION_CHARS - 3]}..."
