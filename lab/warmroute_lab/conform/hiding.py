"""Hide keys in all that is shown: in texts, in JSON values, and in the beginnings of longer texts."""

import json
import re
from collections.abc import Iterable
from typing import Any, Final

HIDDEN: Final = "$KEY"
MAX_DEPTH: Final = 64
"""Of JSON that is shown: what is nested deeper is left out."""

LEAST_DIGITS: Final = 8
"""The least digits of a key that hides a number with it; a shorter key would hide counts."""


class Hider:
    """Knows some keys, in the forms in which they stand in texts and in JSON."""

    def __init__(self, keys: Iterable[str]) -> None:
        """`keys`: empty ones are left out."""
        forms = {form for key in keys if key for form in _forms(key)}
        self._forms = sorted(forms, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self._forms)) or r"(?!)")
        self.longest = max([0, *map(len, self._forms)])
        """How much more of a text must be read than is shown, so that a key at its end is seen whole."""

    def text(self, text: str) -> str:
        """A text without keys."""
        return self._any.sub(HIDDEN, text)

    def value(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """A JSON value without keys. `depth`: how much may be nested in it."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict | list) and depth == 0:
            return "(nested too deeply)"
        if isinstance(value, dict):
            return {self.text(str(name)): self.value(each, depth - 1) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each, depth - 1) for each in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return HIDDEN if any(len(form) >= LEAST_DIGITS and form in repr(value) for form in self._forms) else value
        return value

    def beginning(self, text: str, most: int, *, is_cut: bool) -> str:
        """The first characters of a text without keys. `is_cut`: the text went on, and a key may be cut at its end."""
        if is_cut:
            for form in self._forms:
                cut_size = next((size for size in range(len(form) - 1, 0, -1) if text.endswith(form[:size])), 0)
                text = text[: len(text) - cut_size]
        return self.text(text)[:most]


def _forms(key: str) -> set[str]:
    """A key as it is, and as JSON has it."""
    forms = {key, json.dumps(key)[1:-1]}
    return forms | {form.replace("/", "\\/") for form in forms}
