"""The table of docs/reference/harnesses.md: a row for each program, measured by these tests."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from tests.machine import seconds

from .cases import CASES
from .lineages import Turn, hit, ideal_hit, losses
from .play import Played
from .stage import Stage

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "reference" / "harnesses.md"
PINS: Final = ROOT / "scripts" / "integrations_pins"
OF_PINS: Final = "WARMROUTE_PROGRAMS" not in os.environ
"""Whether the pinned programs run, of which the page tells."""

HEAD: Final = ("program", "version", "turns", "lineages", "hit off", "hit on", "ideal", "not cached: tokens by class")
OF_THE_PROXY: Final = ("rid", "cache_salt", "bootstrap_host", "bootstrap_port", "bootstrap_room")
"""What the proxy adds to a body, beside what it asks engines to report."""

_CAUSES: Final = re.compile(r"(?<=<!-- causes -->\n).*?(?=<!-- end of causes -->)", re.DOTALL)
_TABLE: Final = re.compile(r"(?<=<!-- harnesses -->\n).*?(?=<!-- end -->)", re.DOTALL)


def pinned(package: str) -> str:
    """The version that the tests install."""
    node: Mapping[str, str] = json.loads((PINS / "package.json").read_text())["dependencies"]
    if package in node:
        return node[package]
    pins = "\n".join(path.read_text() for path in PINS.rglob("*.txt"))
    return re.findall(rf"^{re.escape(package)}==(.*)$", pins, re.MULTILINE)[0]  # type: ignore[no-any-return]


def row_of(played: Played, off: float) -> list[str]:
    """The cells of a program."""
    turns = played.turns
    lost = sorted(losses(turns).items(), key=lambda loss: -loss[1])
    return [
        played.case.title + (f" (recorded: {played.replayed})" if played.replayed else ""),
        pinned(played.case.package),
        str(len(turns)),
        str(len({turn.lineage for turn in turns})),
        f"{off:.1%}",
        f"{hit(turns):.1%}",
        f"{ideal_hit(turns)[1]:.1%}",
        ", ".join(f"{name} {tokens:,}" for name, tokens in lost),
    ]


def off_hit(stage: Stage, turns: Sequence[Turn]) -> float:
    """The share that is cached when the same requests go round robin, in a fleet whose caches are empty."""
    prompt = cached = 0
    headers = {"authorization": f"Bearer {stage.fleet.api_key}"}
    with httpx.Client(headers=headers, timeout=seconds(60)) as client:
        for turn in turns:
            body: dict[str, Any] = {name: value for name, value in turn.body.items() if name not in OF_THE_PROXY}
            body |= {"stream": False, "stream_options": None}
            url = f"{stage.fleet.proxies[turn.row['region']].base_url}/chat/completions"
            answer = client.post(url, json={name: value for name, value in body.items() if value is not None})
            usage = answer.raise_for_status().json()["usage"]
            prompt += usage["prompt_tokens"]
            cached += (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
    return cached / prompt


def written() -> dict[str, list[str]]:
    """The rows of the page, by the first cell."""
    found = _TABLE.search(PAGE.read_text())
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]
    assert tuple(rows[0]) == HEAD
    return {row[0]: row for row in rows[2:]}


def write(cells: Sequence[str]) -> None:
    """Put a row into the page, in the order of the cases."""
    rows = {**written(), cells[0]: list(cells)}
    order = [case.title for case in CASES.values()]
    lines = [f"| {' | '.join(HEAD)} |", "|---|---|" + "--:|" * 5 + "---|"]
    lines += [f"| {' | '.join(rows[title])} |" for title in order if title in rows]
    PAGE.write_text(_TABLE.sub(lambda _: "\n".join([*lines, ""]), PAGE.read_text()))


def causes() -> dict[str, str]:
    """What the page says that each program loses where its prefix breaks."""
    found = _CAUSES.search(PAGE.read_text())
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()[2:]]
    return {row[0]: row[-1] for row in rows}


def write_cause(title: str, classes: str) -> None:
    """Put what a program was seen to lose into its row."""

    def written_again(table: re.Match[str]) -> str:
        lines = []
        for line in table[0].splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            lines.append(f"| {' | '.join([*cells[:-1], classes])} |" if cells[0] == title else line)
        return "\n".join([*lines, ""])

    PAGE.write_text(_CAUSES.sub(written_again, PAGE.read_text()))
