"""The error for a plan that cannot be made: one sentence, and requests that would work instead."""

from collections.abc import Iterable
from difflib import get_close_matches

NAMES_SHOWN = 4


class PlanError(ValueError):
    """A plan that cannot be made. `alternatives`: requests that would work, the nearest first."""

    def __init__(self, sentence: str, alternatives: Iterable[str] = ()) -> None:
        self.sentence = sentence
        self.alternatives = tuple(alternatives)
        tail = f" Possible: {'; '.join(self.alternatives)}." if self.alternatives else ""
        super().__init__(sentence + tail)


def unknown(kind: str, name: str, known: Iterable[str]) -> PlanError:
    """The error for a name that is not in a table, with the nearest known names, or all names if none is near."""
    names = sorted(known)
    near = get_close_matches(name.lower(), [each.lower() for each in names], NAMES_SHOWN, 0.4)
    shown = [each for each in names if each.lower() in near] or names
    rest = f"; `warmroute plan --list` lists all {len(names)}" if len(shown) < len(names) else ""
    return PlanError(f"there is no {kind} {name!r}; known are {', '.join(shown)}{rest}.")
