"""Conditions on order: an engine whose reports look as those of one in trouble, for tests of what watches it.

`POST /engine/conditions` with `{"show": ["retraction_storm"]}` shows those named, and no others; `[]` ends them all.
SGLang has no such path. Names are those of the proxy's conditions; what an engine in that state reports:

    accept_length_falls_after_hits  a low accept length, and prompts of which half came from the host
    pd_transfers_fail_or_are_slow   transfers that fail
    retraction_storm                requests that are retracted
    pd_side_starves                 a queue of requests
    predicted_hits_are_not_reported answers that report no cached tokens

Totals grow with each reading of `/metrics`.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from warmroute_lab.engine.http.errors import Refusal

HIDDEN_HITS: Final = "predicted_hits_are_not_reported"
ACCEPT_LENGTH: Final = 3.0
"""Of drafts, where the engine has a speculative algorithm and shows nothing else."""

_VALUES: Final[Mapping[str, Mapping[str, float]]] = {
    "accept_length_falls_after_hits": {"spec_accept_length": 1.2},
    "pd_transfers_fail_or_are_slow": {},
    "retraction_storm": {},
    "pd_side_starves": {"num_queue_reqs": 12.0},
    HIDDEN_HITS: {},
}
_EACH_READING: Final[Mapping[str, Mapping[str, float]]] = {
    "accept_length_falls_after_hits": {"prompt_tokens_total": 1_000_000, "cached_tokens_total:host": 500_000},
    "pd_transfers_fail_or_are_slow": {"num_transfer_failed_reqs_total": 5},
    "retraction_storm": {"num_retracted_requests_total": 20},
}


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """One order."""

    show: list[str]


class Shown:
    """The conditions that an engine shows, and what it has added to its totals for them."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._added: dict[str, float] = {}

    def order(self, body: bytes) -> None:
        """Show the conditions of an order; `Refusal` says what is wrong with it."""
        try:
            names = msgspec.json.decode(body, type=Order).show
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Refusal(400, f"no order of conditions: {error}") from None
        unknown = [name for name in names if name not in _VALUES]
        if unknown:
            raise Refusal(400, f"no condition {unknown[0]!r}; there are {', '.join(_VALUES)}")
        self.names = frozenset(names)

    def read(self) -> None:
        """Somebody reads the totals: they grow."""
        for name in self.names:
            for family, more in _EACH_READING.get(name, {}).items():
                self._added[family] = self._added.get(family, 0.0) + more

    def value(self, family: str, modelled: float) -> float:
        found = [_VALUES[name][family] for name in sorted(self.names) if family in _VALUES[name]]
        return found[0] if found else modelled

    def total(self, family: str, modelled: float) -> float:
        """What is reported for a total. Once raised it stays: totals never fall."""
        return modelled + self._added.get(family, 0.0)
