"""The command `warmroute lint TRANSCRIPT...`. Exit codes: 0 done, 1 a check failed, 2 a file cannot be read."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any, Final

from warmroute.files.given import UnreadableFile
from warmroute.files.printable import number_of, printable
from warmroute.guard.causes import WORDS, Cause
from warmroute.lint.analysis import MAX_LINE_CHARS, Analysis, Session, Turn, analysed
from warmroute.lint.transcript import Recorded, TranscriptError, recorded

MAX_SESSION_CHARS: Final = 24
_HEAD: Final = ("session", "cause", "turns", "tokens lost", "USD lost", "first at")


def text_of(analysis: Analysis, most: int) -> str:
    """A table of causes, their remedies, and the hit ratio. Only names make lines longer than `most` characters."""
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
    lines += ["", *_changed_lines(analysis, most)]
    for cause in dict.fromkeys(total.cause for total in causes):
        lines += _wrapped(f"{cause}: {WORDS[cause].meaning}. To change: {WORDS[cause].fix}.", most)
    lines += _compaction_lines(analysis)
    kind = "cached" if analysis.is_recorded else "cached or repeated"
    lines += _wrapped(
        f"{analysis.extent}, {analysis.prompt_tokens:,} prompt tokens, "
        f"{analysis.cached_tokens:,} {kind} ({analysis.hit_ratio:.1%})",
        most,
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


def _wrapped(text: str, most: int) -> list[str]:
    return wrap(text, most, break_long_words=False, break_on_hyphens=False)


def _around(line: str, other: str, most: int) -> str:
    """The part of a line that fits in `most` characters and shows its first difference from another line."""
    if len(line) <= most:
        return line
    pairs = enumerate(zip(line, other, strict=False))
    same = next((at for at, (one, another) in pairs if one != another), min(len(line), len(other)))
    begin = max(0, same - most // 4) if same >= most // 2 else 0
    shown = f"{'...' if begin else ''}{line[begin:]}"
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def _changed_lines(analysis: Analysis, most: int) -> list[str]:
    """The changed lines of each cause's first turn in each session."""
    found: list[str] = []
    for session in analysis.sessions:
        shown = set()
        for turn in session.turns:
            if turn.cause is not None and turn.cause not in shown and (turn.before or turn.now):
                shown.add(turn.cause)
                found += [
                    f"{_short(session.name)} #{turn.number} {turn.where}, line {turn.line}:",
                    f"  - {_around(turn.before, turn.now, most - 4)}",
                    f"  + {_around(turn.now, turn.before, most - 4)}",
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


MAX_BARS: Final = 400
"""The maximum number of turns of a session that the page draws, counted from the first. The table counts all turns."""

_HEIGHT_PX: Final = 120

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2230; --dim: #667; --paper: #fff; --rule: #dde;
  --cached: #2f9e6e; --lost: #d6453d; --new: #b8c0d0; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ef; --dim: #99a; --paper: #15181f; --rule: #333a48;
  --new: #4a5468; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .3rem; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; } th, td { text-align: left; padding: .3rem .7rem .3rem 0;
  border-bottom: 1px solid var(--rule); vertical-align: top; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.dim { color: var(--dim); } .scroll { overflow-x: auto; }
.line { display: flex; align-items: flex-end; gap: 3px; border-bottom: 1px solid var(--rule); }
.turn { flex: 1 0 12px; max-width: 36px; display: flex; flex-direction: column; }
.turn i { display: block; } .cached { background: var(--cached); } .lost { background: var(--lost); }
.new { background: var(--new); } .numbers { display: flex; gap: 3px; }
.numbers span { flex: 1 0 12px; max-width: 36px; text-align: center; font-size: 11px; color: var(--dim); }
.numbers .bad { color: var(--lost); font-weight: 700; }
.key span { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 1em; vertical-align: -1px; }
code { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def page_of(analysis: Analysis) -> str:
    kind = "cached" if analysis.is_recorded else "cached, or repeated if nothing was recorded"
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>warmroute lint</title><style>{_STYLE}</style></head><body><h1>What broke the prefix</h1>"
        f"<p>{analysis.extent}, {analysis.prompt_tokens:,} prompt tokens, "
        f"<b>{analysis.hit_ratio:.1%}</b> {kind}.</p>"
    )
    key = (
        '<p class="key dim">Prompt tokens of each turn: <span class="new"></span>new'
        '<span class="lost"></span>lost<span class="cached"></span>cached</p>'
    )
    return "\n".join([head, _causes(analysis), key, *map(_session, analysis.sessions), "</body></html>\n"])


def _causes(analysis: Analysis) -> str:
    rows = [
        f"<tr><td>{escape(total.session)}<td><b>{total.cause}</b>"
        f'<br><span class="dim">{escape(WORDS[total.cause].meaning)}.'
        f" {escape(_capital(WORDS[total.cause].fix))}.</span>"
        f'<td class="number">{total.turns}<td class="number">{total.tokens:,}'
        f'<td class="number">{"-" if total.usd is None else f"{total.usd:.4f}"}'
        f"<td>#{total.number} {escape(total.where)}"
        for total in analysis.causes()
    ]
    if not rows:
        return "<p>No turn breaks the prefix of its session.</p>"
    head = '<tr><th>session<th>cause<th class="number">turns<th class="number">tokens lost<th class="number">USD lost'
    return f'<div class="scroll"><table>{head}<th>first at{"".join(rows)}</table></div>'


def _session(session: Session) -> str:
    turns = session.turns[:MAX_BARS]
    highest = max(turn.prompt_tokens for turn in turns)
    bars = "".join(_bar(turn, highest) for turn in turns)
    numbers = "".join(
        f'<span class="bad">{turn.number}</span>' if turn.cause else f"<span>{turn.number}</span>" for turn in turns
    )
    left_out = f" The first {MAX_BARS} of {len(session.turns)} turns." if len(session.turns) > MAX_BARS else ""
    breaks = "".join(_break(turn) for turn in turns if turn.cause)
    return (
        f"<h2>{escape(session.name)}</h2><p class='dim'>{len(session.turns)} turns, at most {highest:,} tokens."
        f'{left_out}</p><div class="scroll"><div class="line">{bars}</div><div class="numbers">{numbers}</div></div>'
        f"{breaks}"
    )


def _bar(turn: Turn, highest: int) -> str:
    title = f"#{turn.number}: {turn.prompt_tokens:,} tokens, {turn.cached_tokens:,} cached, {turn.lost_tokens:,} lost"
    title += f", {turn.cause} at {turn.where}" if turn.cause else ""
    stack = (("new", turn.new_tokens), ("lost", turn.lost_tokens), ("cached", turn.cached_tokens))
    return (
        f'<div class="turn" title="{escape(title)}">'
        + "".join(
            f'<i class="{name}" style="height:{tokens / highest * _HEIGHT_PX:.1f}px"></i>'
            for name, tokens in stack
            if tokens
        )
        + "</div>"
    )


def _break(turn: Turn) -> str:
    where = f"{turn.where}, line {turn.line}" if turn.line else turn.where
    lines = f"<br><code>- {escape(turn.before)}\n+ {escape(turn.now)}</code>" if turn.before or turn.now else ""
    return f"<p>#{turn.number} <b>{turn.cause}</b> {escape(where)}, {turn.lost_tokens:,} tokens lost{lines}</p>"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz")
MAX_MESSAGE_CHARS = 1_000


def run(arguments: argparse.Namespace) -> int:
    """Lint the files. Returns the exit code."""
    try:
        analysis = analysed(_requests(arguments.transcript), show_text=arguments.show_text)
        if arguments.html is not None:
            arguments.html.write_text(page_of(analysis), encoding="utf-8")
    except (TranscriptError, UnreadableFile, OSError) as error:
        print(printable(f"warmroute lint: {error}"[:MAX_MESSAGE_CHARS]), file=sys.stderr)
        return 2
    print(json.dumps(json_of(analysis), indent=1) if arguments.json else text_of(analysis, _width()))
    failures = _failures(analysis, arguments.fail_under, arguments.fail_on)
    for failure in failures:
        print(f"warmroute lint: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _width() -> int:
    """The width of the terminal, or a fixed width for a file or a pipe. `COLUMNS` overrides either."""
    return max(40, get_terminal_size((MAX_LINE_CHARS + 4, 24)).columns)


def _failures(analysis: Analysis, fail_under: float | None, fail_on: tuple[Cause, ...]) -> list[str]:
    found = []
    if fail_under is not None and analysis.hit_ratio < fail_under:
        found.append(f"{analysis.hit_ratio:.1%} cached is under {fail_under:.1%}")
    counts = analysis.counts()
    found += [f"{cause} in {number_of(counts[cause], 'turn')}" for cause in fail_on if counts[cause]]
    return found


def _requests(paths: list[Path]) -> Iterator[Recorded]:
    for path in paths:
        if path.is_dir():
            files = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIXES))
            if not files:
                raise TranscriptError(f"{path}: no file in it ends with {', '.join(SUFFIXES)}")
            for each in files:
                yield from recorded(each)
        else:
            yield from recorded(path)
