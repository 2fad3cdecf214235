"""What must hold of a program's prompts, by what the engines got and what the ledgers say.

A lineage is append-only where each prompt begins with the one before it, without the head of the answer. Where it does
not, the prefix broke, at the byte where the two differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warmroute_lab.demo.ideal import Ideal, Prompt, ideals, prompt_of
from warmroute_lab.engine.model.prompt import ANSWER_HEAD, render
from warmroute_lab.fleet import PAGE_SIZE, REGIONS


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its row and the body that its engine got."""

    row: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def lineage(self) -> str:
        """Which prompt it continues."""
        return str(self.row["lineage"])

    @property
    def losses(self) -> Mapping[str, int]:
        """The tokens that were not cached, by class."""
        found: dict[str, int] = self.row["usage"]["warmroute"]["loss"]
        return found


@dataclass(frozen=True, slots=True)
class Break:
    """A prompt that does not begin with the one before it in its lineage."""

    turn: Turn
    at: int
    before: str
    after: str


def breaks(turns: Sequence[Turn]) -> list[Break]:
    """All of them, in order."""
    newest: dict[str, bytes] = {}
    found = []
    for turn in turns:
        rendered = render(turn.body)
        before = newest.get(turn.lineage, b"").removesuffix(ANSWER_HEAD)
        if not rendered.startswith(before):
            at = next(at for at, (one, other) in enumerate(zip(before, rendered, strict=False)) if one != other)
            found.append(Break(turn, at, _around(before, at), _around(rendered, at)))
        newest[turn.lineage] = rendered
    return found


def changed(turns: Sequence[Turn]) -> list[Turn]:
    """The turns whose prefix broke, by the receipts or by the prompts; also where another lineage begins there."""
    broken = {each.turn.row["id"] for each in breaks(turns)}
    return [turn for turn in turns if turn.row["id"] in broken or "prefix_changed" in turn.losses]


def begun(turns: Sequence[Turn]) -> list[Turn]:
    """The first turns of all lineages but the first: where a conversation that was rewritten begins anew."""
    first = {turn.lineage: turn for turn in reversed(turns)}
    return [turn for turn in first.values() if turn is not turns[0]]


def hit(turns: Sequence[Turn]) -> float:
    """The share of prompt tokens that were cached."""
    prompt, cached = (sum(int(turn.row[name]) for turn in turns) for name in ("prompt_tokens", "cached_tokens"))
    return cached / prompt


def ideal_hit(turns: Sequence[Turn]) -> tuple[float, float]:
    """The share that could have been cached: of each session by itself, and of all turns of the program.

    A program that goes on in another region begins there: it does not say where its session lives, as the SDK does.
    """
    found: list[Ideal] = []
    prompts: list[Prompt] = []
    for region in REGIONS:
        here = [turn for turn in turns if turn.row["region"] == region]
        prompts_here = [prompt_of(str(turn.row["session"]), turn.body, PAGE_SIZE) for turn in here]
        prompts += prompts_here
        found += ideals(prompts_here, PAGE_SIZE)
    tokens = sum(prompt.tokens for prompt in prompts)
    return sum(ideal.session for ideal in found) / tokens, sum(ideal.shared for ideal in found) / tokens


def losses(turns: Sequence[Turn]) -> dict[str, int]:
    """The tokens that were not cached, by class."""
    found: dict[str, int] = {}
    for turn in turns:
        for name, tokens in turn.losses.items():
            found[name] = found.get(name, 0) + tokens
    return found


def _around(rendered: bytes, at: int) -> str:
    return rendered[max(0, at - 60) : at + 60].decode(errors="replace")
