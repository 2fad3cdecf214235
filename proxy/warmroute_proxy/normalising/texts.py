"""Applies normalising rules to the texts of one prompt. Records which rules changed a text or, if off, would have."""

from typing import Final

import msgspec
from msgspec import Raw

from warmroute_proxy.normalising.rules import RULES, Rule

_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode
_RULES_BY_ROLE: Final = {role: tuple(rule for rule in RULES if role in rule.roles) for role in ("system", "user")}
_NO_RULES: Final[tuple[Rule, ...]] = ()


class Texts:
    """Cleans the texts of one prompt. `applied`: rules that changed a text. `off`: rules that would have, if on."""

    __slots__ = ("applied", "off", "on")

    def __init__(self, on: frozenset[str]) -> None:
        """`on`: the names of the rules that are on."""
        self.on = on
        self.applied: set[str] = set()
        self.off: set[str] = set()

    def clean(self, raw: Raw, role: str) -> Raw | None:
        """Clean a JSON text from a message of this role; None if nothing is left of it."""
        for rule in _RULES_BY_ROLE.get(role, _NO_RULES):
            if rule.marker in bytes(memoryview(raw)[: rule.reach_bytes]):
                cleaned = self._without(raw, rule)
                if cleaned is None:
                    return None
                raw = cleaned
        return raw

    def scope(self) -> tuple[frozenset[str], frozenset[str]]:
        """The `applied` and `off` rules so far, for `add`."""
        return frozenset(self.applied), frozenset(self.off)

    def add(self, applied: frozenset[str], off: frozenset[str]) -> None:
        """Add what rules did to another text of the prompt."""
        self.applied |= applied
        self.off |= off

    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The rules of `applied` and of `off`, as receipts name them."""
        return tuple(sorted(self.applied)), tuple(sorted(self.off))

    def _without(self, raw: Raw, rule: Rule) -> Raw | None:
        try:
            text = _decode_text(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return raw  # a later parser says what is wrong
        cleaned = rule.without(text)
        if len(cleaned) == len(text):
            return raw
        if rule.name not in self.on:
            self.off.add(rule.name)
            return raw
        self.applied.add(rule.name)
        return Raw(_encode(cleaned)) if cleaned else None
