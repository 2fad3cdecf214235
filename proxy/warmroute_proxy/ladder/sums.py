"""Adds up turns of the ladder, over all turns and by a key such as the model.

Limits: `MAX_GROUPS` groups are kept; turns of further groups are added to the group `REST`.
"""

from collections.abc import Mapping
from typing import Any, Final

from warmroute.contract.money import usd
from warmroute_proxy.ladder.steps import MEANINGS, PROMPT, STEPS, wins
from warmroute_proxy.ladder.turn import LadderTurn

MAX_GROUPS: Final = 100_000
REST: Final = "(all others)"


class LadderSums:
    """The sums of some turns."""

    __slots__ = (
        "billed_nanousd", "billed_rows", "known_rows", "list_nanousd", "lost", "off_nanousd", "off_rows",
        "price_nanousd", "prompt_tokens", "rated_rows", "rows", "saved_nanousd", "turns", "whole_nanousd",
    )  # fmt: skip

    def __init__(self) -> None:
        self.turns = 0
        self.prompt_tokens = 0
        self.list_nanousd = 0
        self.price_nanousd = 0
        self.whole_nanousd = 0
        """The price if all prompt tokens had been cached."""
        self.lost: dict[tuple[str, str], tuple[int, int]] = {}
        """Step and cause -> tokens and nanodollars."""
        self.rows = 0
        """Rows of all kinds: turns, rows that take turns back, and rows without a turn, such as credits."""
        self.known_rows = dict.fromkeys(STEPS, 0)
        """Step -> how many rows have a source that knows the step."""
        self.rated_rows = 0
        self.billed_rows = 0
        self.billed_nanousd = 0
        self.saved_nanousd = 0
        """List price minus price, summed over the rows whose billed amount is known."""
        self.off_rows = 0
        """Rows whose price does not follow from their counts and rates; `off_nanousd` sums the absolute differences."""
        self.off_nanousd = 0

    @property
    def known(self) -> frozenset[str]:
        """The steps that are known for at least one row; without rows, all steps."""
        return frozenset(step for step, rows in self.known_rows.items() if rows or not self.rows)

    @property
    def is_rated(self) -> bool:
        """Whether at least one row has known rates; without rows, True."""
        return self.rated_rows > 0 or not self.rows

    @property
    def is_billed(self) -> bool:
        """Whether the billed amount of every row is known."""
        return self.billed_rows == self.rows

    def add(self, turn: LadderTurn) -> None:
        self.turns += turn.counts
        self.prompt_tokens += turn.prompt_tokens
        self.list_nanousd += turn.list_nanousd
        self.price_nanousd += turn.price_nanousd
        self.whole_nanousd += turn.price_nanousd - sum(cost.nanousd for cost in turn.costs)
        self.rows += 1
        for step in turn.known:
            self.known_rows[step] += 1
        self.rated_rows += turn.is_rated
        if turn.is_billed:
            self.billed_rows += 1
            self.billed_nanousd += turn.price_nanousd
            self.saved_nanousd += turn.list_nanousd - turn.price_nanousd
        self.off_rows += bool(turn.off_nanousd)
        self.off_nanousd += abs(turn.off_nanousd)
        for step, cause, tokens, nanousd in turn.costs:
            before_tokens, before_nanousd = self.lost.get((step, cause), (0, 0))
            self.lost[step, cause] = before_tokens + tokens, before_nanousd + nanousd

    def levels(self) -> dict[str, tuple[int, int]]:
        """Step -> cached tokens and price in nanodollars, from the prompt down."""
        tokens, nanousd = self.prompt_tokens, self.whole_nanousd
        found = {PROMPT: (tokens, nanousd)}
        for step in STEPS:
            for (at, _), (lost_tokens, lost_nanousd) in self.lost.items():
                if at == step:
                    tokens, nanousd = tokens - lost_tokens, nanousd + lost_nanousd
            found[step] = tokens, nanousd
        return found

    def causes(self, step: str) -> dict[str, tuple[int, int]]:
        """Cause -> tokens and nanodollars lost between the step before and this step, the most expensive first."""
        found = {cause: lost for (at, cause), lost in self.lost.items() if at == step and lost != (0, 0)}
        return dict(sorted(found.items(), key=lambda each: (-each[1][1], -each[1][0], each[0])))

    def by_cause(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for (_, cause), (tokens, nanousd) in self.lost.items():
            before = found.get(cause, (0, 0))
            found[cause] = before[0] + tokens, before[1] + nanousd
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON. The tokens of unknown steps are null, and so are prices without rates."""
        levels, steps = self.levels(), []
        before = levels[PROMPT]
        for step in (PROMPT, *STEPS):
            tokens, nanousd = levels[step]
            known = step == PROMPT or step in self.known
            row: dict[str, Any] = {"step": step, "tokens": tokens if known else None}
            is_priced = self.billed_rows > 0 if step == STEPS[-1] and self.rows else known and self.is_rated
            row |= {"price_nanousd": nanousd if is_priced else None}
            if step != PROMPT:
                row["known_rows"] = self.known_rows[step]
                row |= {"lost_tokens": before[0] - tokens, "lost_nanousd": nanousd - before[1]}
                row["causes"] = [
                    {"cause": cause, "tokens": lost[0], "nanousd": lost[1], "meaning": MEANINGS[cause]}
                    for cause, lost in self.causes(step).items()
                ]
            steps.append(row)
            before = levels[step]
        won = [
            {"remedy": win.remedy.name, "tokens": win.tokens, "nanousd": win.nanousd, "how": win.remedy.how}
            for win in wins(self.by_cause())
        ]
        return {
            "turns": self.turns,
            "prompt_tokens": self.prompt_tokens,
            "rows": self.rows,
            "is_billed": self.is_billed,
            "billed_rows": self.billed_rows,
            "billed_nanousd": self.billed_nanousd,
            "rated_rows": self.rated_rows,
            "list_nanousd": self.list_nanousd,
            "price_nanousd": self.price_nanousd,
            "price_usd": usd(self.price_nanousd),
            "steps": steps,
            "would_win_back": won,
        }


class Ladder:
    """The sums of all turns, and of each group."""

    def __init__(self, by: str | None = None) -> None:
        """`by`: the key that groups turns; None: no groups."""
        self.by = by
        self.all = LadderSums()
        self.groups: dict[str, LadderSums] = {}

    def add(self, turn: LadderTurn) -> None:
        self.all.add(turn)
        if self.by is None:
            return
        key = turn.keys.get(self.by, "")
        if key not in self.groups and len(self.groups) >= MAX_GROUPS:
            key = REST
        self.groups.setdefault(key, LadderSums()).add(turn)

    def dearest(self) -> list[tuple[str, LadderSums]]:
        return sorted(self.groups.items(), key=lambda each: (-each[1].price_nanousd, -each[1].prompt_tokens, each[0]))

    def as_dict(self, source: Mapping[str, Any], most: int) -> dict[str, Any]:
        """Plain values for JSON, with the `most` most expensive groups. `source`: what the turns were read from."""
        found: dict[str, Any] = {"v": 1, "source": dict(source), "by": self.by, **self.all.as_dict()}
        groups = self.dearest()
        found["groups"] = [{"key": key, **sums.as_dict()} for key, sums in groups[:most]]
        found["groups_left_out"] = max(0, len(groups) - most)
        return found
