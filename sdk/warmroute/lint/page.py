"""An analysis as one HTML page: the table of causes, and a timeline of each session. It loads nothing from outside."""

from html import escape
from typing import Final

from warmroute.guard.causes import WORDS
from warmroute.lint.analysis import Analysis, Session, Turn

MAX_BARS: Final = 400
"""Turns of a session that are drawn: the first ones. The table counts all."""

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
    kind = "cached" if analysis.is_recorded else "cached, or repeated where nothing was recorded"
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
