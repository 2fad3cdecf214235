#!/usr/bin/env python3
"""Draws the pictures of the docs from the tables in this file. Each picture has a light and a dark style.

scripts/pictures.py             writes docs/images/architecture.svg, turn.svg and regions.svg
scripts/pictures.py --check     only compares the files with what would be written
"""

import sys
from collections.abc import Iterable, Iterator
from html import escape
from itertools import pairwise
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
    """A box with a title and lines below the title. `own`: whether it is a part of warmroute."""

    x: int
    y: int
    width: int
    height: int
    title: str
    lines: tuple[str, ...] = ()
    own: bool = False


class Arrow(NamedTuple):
    """A line from point to point, with a label above its middle. `dashed`: whether it is optional, or a signal."""

    points: tuple[tuple[int, int], ...]
    label: str = ""
    dashed: bool = False


WIDTH: Final = 560
"""The width of a picture, narrow enough for a phone to show the whole picture with readable words."""

ARCHITECTURE: Final = (
    Box(8, 56, 150, 84, "Agents", ("Claude Code, Codex,", "LangChain, others")),
    Box(8, 172, 150, 84, "Your code", ("with the SDK: keys,", "checked receipts"), own=True),
    Box(212, 36, 150, 248, "warmroute proxy", (
        "authenticate", "read session and size", "place by cost", "admit, or queue fairly",
        "dispatch, with a salt", "relay the stream", "settle the receipt",
    ), own=True),
    Box(440, 36, 112, 66, "SGLang", ("aggregated",)),
    Box(440, 128, 112, 66, "SGLang", ("prefill, decode",)),
    Box(440, 220, 112, 66, "Others", ("vLLM, provider",)),
    Box(8, 352, 124, 66, "Other regions", ("their proxies",), own=True),
    Box(148, 352, 124, 66, "SQLite", ("journal, ledger",)),
    Box(288, 352, 136, 66, "Shared stores", ("PostgreSQL, Redis",)),
    Box(440, 352, 112, 66, "Monitoring", ("metrics, traces",)),
    Arrow(((158, 98), (212, 98)), "HTTP"),
    Arrow(((158, 214), (212, 214)), "HTTP"),
    Arrow(((362, 58), (440, 58)), "HTTP"),
    Arrow(((362, 150), (440, 150))),
    Arrow(((362, 253), (440, 253))),
    Arrow(((440, 90), (362, 90)), "KV events", dashed=True),
    Arrow(((440, 184), (362, 184)), "KV events", dashed=True),
    Arrow(((226, 284), (226, 318), (70, 318), (70, 352)), "forward"),
    Arrow(((242, 284), (242, 352))),
    Arrow(((312, 284), (312, 352)), dashed=True),
    Arrow(((520, 352), (520, 310), (350, 310), (350, 284)), "scrapes", dashed=True),
    Arrow(((334, 284), (334, 336), (476, 336), (476, 352)), "spans", dashed=True),
)  # fmt: skip
REGIONS: Final = (
    Box(210, 14, 140, 62, "Client", ("one name for all",)),
    Box(8, 132, 136, 66, "east", ("two proxies",)),
    Box(212, 132, 136, 66, "west: the home", ("two proxies",), own=True),
    Box(416, 132, 136, 66, "north", ("two proxies",)),
    Box(8, 272, 136, 62, "Engines", ("without its KV",)),
    Box(212, 272, 136, 62, "Engines", ("with its KV",), own=True),
    Box(416, 272, 136, 62, "Engines", ("without its KV",)),
    Arrow(((210, 45), (76, 45), (76, 132)), "1 DNS: a near one"),
    Arrow(((144, 152), (212, 152)), "2 turn"),
    Arrow(((212, 184), (144, 184)), "answer"),
    Arrow(((280, 198), (280, 272))),
    Arrow(((232, 198), (232, 238), (76, 238), (76, 198)), "3 announce", dashed=True),
    Arrow(((328, 198), (328, 238), (484, 238), (484, 198)), "3 announce", dashed=True),
)  # fmt: skip
LANES: Final = (("Client", 66), ("Proxy", 280), ("Engine", 494))
TURN: Final = (
    ("Client", "Proxy", "request, session key", ""),
    ("Proxy", "Proxy", "1  authenticate; 2  read model, session, size", ""),
    (
        "Proxy",
        "Proxy",
        "3  place: the lowest cost in seconds",
        "network + queue + prefill + decode + transfer + others",
    ),
    ("Proxy", "Proxy", "4  admit: reserve tokens and money; or wait", ""),
    ("Proxy", "Engine", "5  dispatch, with a salt", "prefill and decode at once"),
    ("Engine", "Client", "6  relay the stream", "its usage is read on the way"),
    ("Proxy", "Proxy", "7  settle: usage, price, a durable row", "the prediction is compared with the report"),
    ("Proxy", "Client", "8  receipt, checked", ""),
)


def drawn(width: int, height: int, title: str, marks: Iterable[str]) -> str:
    """The text of an SVG file: a style, a background, an arrowhead, and the `marks` (SVG elements)."""
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


def text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="middle">{escape(words)}</text>'


def boxed(box: Box) -> Iterator[str]:
    kind = "own" if box.own else "box"
    yield f'<rect class="{kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6"/>'
    middle = box.x + box.width / 2
    yield text(middle, box.y + 26, box.title, "title")
    step = (box.height - 40) / max(1, len(box.lines)) if len(box.lines) > 2 else 20
    for number, line in enumerate(box.lines):
        yield text(middle, box.y + 48 + number * step, line, "small")


def lined(arrow: Arrow) -> Iterator[str]:
    path = "M" + "L".join(f"{x} {y}" for x, y in arrow.points)
    kind = "line dashed" if arrow.dashed else "line"
    yield f'<path class="{kind}" d="{path}" marker-end="url(#to)"/>'
    if arrow.label:
        (x, y), (to_x, to_y) = min(pairwise(arrow.points), key=lambda each: (each[0][1] != each[1][1], 0))
        yield text((x + to_x) / 2, (y + to_y) / 2 - 6, arrow.label, "small")


def connected(height: int, title: str, parts: Iterable[Box | Arrow]) -> str:
    """A picture of boxes and arrows."""
    marks = [mark for each in parts for mark in (boxed(each) if isinstance(each, Box) else lined(each))]
    return drawn(WIDTH, height, title, marks)


def turn() -> str:
    """The picture of a turn's steps, from top to bottom."""
    step, top = 58, 78
    places = dict(LANES)
    bottom = top + step * len(TURN)
    marks: list[str] = []
    for name, x in LANES:
        marks.append(f'<path class="line dashed" d="M{x} 52L{x} {bottom - 14}"/>')
        marks += boxed(Box(x - 58, 14, 116, 38, name, own=name == "Proxy"))
    for number, (start, end, words, more) in enumerate(TURN):
        y = top + number * step
        if start == end:
            x = places[start]
            marks.append(f'<rect class="own" x="{x - 198}" y="{y}" width="396" height="44" rx="6"/>')
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
    return drawn(WIDTH, bottom, "The life of a turn", marks)


def main() -> int:
    stale = False
    pictures = {
        "architecture": connected(436, "The parts of warmroute", ARCHITECTURE),
        "turn": turn(),
        "regions": connected(348, "A turn between regions", REGIONS),
    }
    for name, picture in pictures.items():
        path = IMAGES / f"{name}.svg"
        if "--check" in sys.argv[1:]:
            stale |= not path.exists() or path.read_text() != picture
        else:
            path.write_text(picture)
    return int(stale)


if __name__ == "__main__":
    sys.exit(main())
