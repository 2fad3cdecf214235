"""Reads settings of a tenant from words like `tokens_per_minute=100000` and `models=["a", "b"]`. Pure."""

import tomllib
from collections.abc import Sequence
from typing import Any


class WrongSetting(ValueError):
    """A word that is not a setting."""


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Settings by their keys; None where no value is given. Raises: WrongSetting.

    A value is TOML. A text that is not TOML is a string, so that shells need no further quotes.
    """
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key.isidentifier():
            raise WrongSetting(f"{word!r} is not a setting like tokens_per_minute=100000")
        if key in found:
            raise WrongSetting(f"{key} is given twice")
        found[key] = _value(text) if text else None
    return found


def _value(text: str) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text
