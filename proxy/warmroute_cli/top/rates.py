"""Computes the increase of counters within the last minute. Pure: times are arguments.

Counters are those of `/metrics`, added up over regions. A restarted proxy counts from 0; a new window begins then.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

WINDOW_S: Final = 60.0
MAX_SAMPLES: Final = 1_000

_ROW: Final = re.compile(r"^(\w+)(?:\{([^}]*)\})? ([-+\d.e]+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


class Row(NamedTuple):
    """One sample of `/metrics`."""

    name: str
    labels: Mapping[str, str]
    value: float


class Counters(NamedTuple):
    """Sums over settled turns, whose usage and price are final. `device`, `host`, `storage`: cached tokens by tier."""

    turns: float = 0.0
    prompt_tokens: float = 0.0
    device: float = 0.0
    host: float = 0.0
    storage: float = 0.0
    list_nanousd: float = 0.0
    price_nanousd: float = 0.0

    @property
    def cached_tokens(self) -> float:
        return self.device + self.host + self.storage

    @property
    def hit_ratio(self) -> float | None:
        """Cached tokens over prompt tokens; None without turns."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None


class Rates(NamedTuple):
    """The increase within the window, which is `seconds` long so far."""

    gained: Counters
    seconds: float

    def a_minute(self, amount: float) -> float | None:
        """An increase within the window, scaled to a minute; None before the second reading."""
        return amount * 60.0 / self.seconds if self.seconds > 0 else None


class Window:
    """The readings of the last minute."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Counters]] = deque(maxlen=MAX_SAMPLES)

    def add(self, now_s: float, counters: Counters) -> Rates:
        """Add a reading. Returns the increase since the first reading in the window."""
        samples = self._samples
        if samples and any(now < before for now, before in zip(counters, samples[-1][1], strict=True)):
            samples.clear()
        samples.append((now_s, counters))
        while len(samples) > 2 and samples[1][0] <= now_s - WINDOW_S:
            samples.popleft()
        began_s, began = samples[0]
        return Rates(Counters(*(now - before for now, before in zip(counters, began, strict=True))), now_s - began_s)


def rows_of(text: str) -> list[Row]:
    return [Row(name, dict(_LABEL.findall(labels)), float(value)) for name, labels, value in _ROW.findall(text)]


def counters_of(rows: Iterable[Row]) -> Counters:
    """The counters in these rows, summed over regions."""
    found = dict.fromkeys(Counters._fields, 0.0)
    for name, labels, value in rows:
        if name == "warmroute_cached_tokens_total" and labels.get("tier") in found:
            found[labels["tier"]] += value
        elif (field := _FIELDS.get(name)) is not None:
            found[field] += value
    return Counters(**found)


_FIELDS: Final = {
    "warmroute_turns_total": "turns",
    "warmroute_prompt_tokens_total": "prompt_tokens",
    "warmroute_list_nanousd_total": "list_nanousd",
    "warmroute_price_nanousd_total": "price_nanousd",
}
