#!/usr/bin/env python3
"""Draw the pictures of the docs, light and dark in one file, from the tables below. `--check` only compares.

scripts/pictures.py             writes docs/images/architecture.svg, turn.svg and regions.svg
"""

import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

IMAGES: Final = Path(__file__).resolve().parent.parent / "docs" / "images"
STYLE: Final = """\
svg { color-scheme: light dark; font: 14px system-ui, "DejaVu Sans", sans-serif }
.paper { fill: #ffffff } .box { fill: #f6f8fa; stroke: #8c959f } .own { fill: #fff1e5; stroke: #d4571c }
.title { font-weight: 600 } text { fill: #1f2328 } .small { font-size: 13px; fill: #59636e }
.line { stroke: #59636e; fill: none; stroke-width: 1.5 } .dashed { stroke-dasharray: 5 4 } .head { fill: #59636e }
@media (prefers-color-scheme: dark) {
  .paper { fill: #1b1f24 } .box { fill: #262c34; stroke: #6e7681 } .own { fill: #3a2417; stroke: #f0743e }
  text { fill: #f0f3f6 } .small { fill: #b1bac4 } .line { stroke: #b1bac4 } .head { fill: #b1bac4 }
}"""


class Box(NamedTuple):
    """A box with a title and lines below it. `own`: a part of warmroute."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    own: bool = False


class Arrow(NamedTuple):
    """A line from point to point, with a label above its middle. `dashed`: what is optional, or a signal."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    dashed: bool = False


ARCHITECTURE: Final = (
    Box(16, 60, 170, 84, "Agents", ("Claude Code, Codex,", "LangChain, any client")),
    Box(16, 176, 170, 84, "Your code", ("with the SDK: session", "keys, checked receipts"), own=True),
    Box(266, 36, 200, 248, "warmroute proxy", (
        "authenticate the tenant", "read session and size", "place by cost in seconds", "admit, or queue fairly",
        "dispatch with a cache salt", "relay the stream", "settle price and receipt",
    ), own=True),
    Box(546, 36, 178, 66, "SGLang", ("aggregated",)),
    Box(546, 128, 178, 66, "SGLang", ("prefill and decode apart",)),
    Box(546, 220, 178, 66, "Other servers", ("vLLM, providers",)),
    Box(16, 352, 170, 66, "Other regions", ("their own proxies",), own=True),
    Box(206, 352, 150, 66, "Journal, SQLite", ("always",)),
    Box(366, 352, 170, 66, "PostgreSQL, Redis", ("several proxies",)),
    Box(546, 352, 178, 66, "Prometheus, OTLP", ("metrics, traces",)),
    Arrow(((186, 102), (266, 102)), "HTTP"),
    Arrow(((186, 218), (266, 218)), "HTTP"),
    Arrow(((466, 62), (546, 62)), "HTTP"),
    Arrow(((466, 146), (546, 146))),
    Arrow(((466, 253), (546, 253))),
    Arrow(((546, 92), (466, 92)), "KV events", dashed=True),
    Arrow(((546, 180), (466, 180)), "KV events", dashed=True),
    Arrow(((286, 284), (286, 318), (101, 318), (101, 352)), "forward"),
    Arrow(((306, 284), (306, 352))),
    Arrow(((400, 284), (400, 352)), dashed=True),
    Arrow(((670, 352), (670, 312), (452, 312), (452, 284)), "scrapes", dashed=True),
    Arrow(((430, 284), (430, 334), (600, 334), (600, 352)), "spans", dashed=True),
)  # fmt: skip
REGIONS: Final = (
    Box(290, 14, 160, 62, "Client", ("one name for all",)),
    Box(16, 144, 208, 66, "east: balancer", ("two proxies",)),
    Box(266, 144, 208, 66, "west: balancer", ("two proxies",)),
    Box(516, 144, 208, 66, "north: balancer", ("two proxies",)),
    Box(16, 252, 208, 62, "Engines", ("nothing of this session",)),
    Box(266, 252, 208, 62, "Engines", ("its KV: the home",), own=True),
    Box(516, 252, 208, 62, "Engines", ("nothing of this session",)),
    Box(16, 348, 208, 62, "PostgreSQL", ("rows of all regions",)),
    Box(266, 348, 208, 62, "Redis", ("limits of this region",)),
    Box(516, 348, 208, 62, "Redis", ("limits of this region",)),
    Arrow(((330, 76), (120, 144)), "1 DNS: near"),
    Arrow(((224, 166), (266, 166)), "2"),
    Arrow(((370, 210), (370, 252))),
    Arrow(((266, 194), (224, 194)), dashed=True),
    Arrow(((474, 178), (516, 178)), dashed=True),
    Arrow(((440, 144), (440, 112), (600, 112), (600, 144)), "3 announce", dashed=True),
    Arrow(((300, 314), (300, 331), (120, 331), (120, 348)), dashed=True),
)
LANES: Final = (("Client", 100), ("Proxy", 370), ("Engine", 640))
TURN: Final = (
    ("Client", "Proxy", "request with a session key", ""),
    ("Proxy", "Proxy", "1  authenticate; 2  read model, session, size", ""),
    (
        "Proxy",
        "Proxy",
        "3  place: the lowest cost in seconds",
        "network + queue + prefill + decode + transfer + others",
    ),
    ("Proxy", "Proxy", "4  admit: reserve tokens and money; or wait", ""),
    ("Proxy", "Engine", "5  dispatch, salted by tenant", "prefill and decode at once"),
    ("Engine", "Client", "6  relay the stream", "its usage is read on the way"),
    ("Proxy", "Proxy", "7  settle: usage, price, a durable row", "the prediction is compared with the report"),
    ("Proxy", "Client", "8  receipt; the SDK checks it", ""),
)


def drawn(width: int, height: int, title: str, marks: Iterable[str]) -> str:
    """The file: its style, a background, an arrowhead, and the marks."""
    shape = 'viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto"'
    marker = f'<marker id="to" {shape}><path class="head" d="M0 0L10 5L0 10z"/></marker>'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(title)}</title>',
        f"<style>{STYLE}</style><defs>{marker}</defs>",
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
        *marks,
        "</svg>\n",
    )
    return "\n".join(parts)


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "middle") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def boxed(box: Box) -> Iterator[str]:
    """A box with its words."""
    kind = "own" if box.own else "box"
    yield f'<rect class="{kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>'
    middle = box.x + box.width / 2
    yield text(middle, box.y + 26, box.title, "title")
    step = (box.height - 40) / max(1, len(box.lines)) if len(box.lines) > 2 else 20
    for number, line in enumerate(box.lines):
        yield text(middle, box.y + 48 + number * step, line, "small")


def lined(arrow: Arrow) -> Iterator[str]:
    """An arrow with its label."""
    path = "M" + "L".join(f"{x} {y}" for x, y in arrow.points)
    kind = "line dashed" if arrow.dashed else "line"
    yield f'<path class="{kind}" d="{path}" marker-end="url(#to)"/>'
    if arrow.label:
        (x, y), (to_x, to_y) = arrow.points[-3:-1] if len(arrow.points) > 2 else arrow.points
        yield text((x + to_x) / 2, (y + to_y) / 2 - 6, arrow.label, "small")


def architecture() -> str:
    """The parts, and what they send each other."""
    marks = [mark for each in ARCHITECTURE for mark in (boxed(each) if isinstance(each, Box) else lined(each))]
    return drawn(740, 436, "The parts of warmroute", marks)


def regions() -> str:
    """A turn that enters at one region and is served in another."""
    marks = [mark for each in REGIONS for mark in (boxed(each) if isinstance(each, Box) else lined(each))]
    return drawn(740, 424, "A turn between regions", marks)


def turn() -> str:
    """The life of a turn, from top to bottom."""
    step, top = 58, 78
    places = dict(LANES)
    bottom = top + step * len(TURN)
    marks: list[str] = []
    for name, x in LANES:
        marks.append(f'<path class="line dashed" d="M{x} 52L{x} {bottom - 14}"/>')
        marks += boxed(Box(x - 62, 14, 124, 38, name, own=name == "Proxy"))
    for number, (start, end, words, more) in enumerate(TURN):
        y = top + number * step
        if start == end:
            x = places[start]
            marks.append(f'<rect class="own" x="{x - 190}" y="{y}" width="380" height="44" rx="6"/>')
            marks.append(text(x, y + (19 if more else 27), words, "title"))
            if more:
                marks.append(text(x, y + 37, more, "small"))
            continue
        marks += lined(Arrow(((places[start], y + 26), (places[end], y + 26))))
        between = {"Client", "Proxy"} if "Client" in (start, end) else {"Proxy", "Engine"}
        middle = sum(places[name] for name in between) / 2
        marks.append(text(middle, y + 20, words, "title"))
        if more:
            marks.append(text(middle, y + 43, more, "small"))
    return drawn(740, bottom, "The life of a turn", marks)


def main() -> int:
    """The command line."""
    stale = False
    for name, picture in (("architecture", architecture()), ("turn", turn()), ("regions", regions())):
        path = IMAGES / f"{name}.svg"
        if "--check" in sys.argv[1:]:
            stale |= not path.exists() or path.read_text() != picture
        else:
            path.write_text(picture)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
