"""Deadlines of the product as tests have them: ones that no machine reaches, but for the tests that are about one.

A deadline bounds how long the product waits for an engine, a store or another process. On a machine that is slow, it
would pass where the test expects an answer. So each process that `tests/subjects/copies.py` makes has `FAR_S` in their
place. `@pytest.mark.real_deadlines("probing")` is for a test that is about one: that module keeps its deadlines; with
`"GONE_S"` it keeps that one alone.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import Field
from importlib import import_module
from typing import Any, Final

from warmroute_proxy.server.base.config import Limits

FAR_S: Final = 900.0

DEADLINES: Final[Mapping[str, tuple[str, ...]]] = {
    "warmroute_proxy.server.dialects.token_counts": ("TIMEOUT_S",),
    "warmroute_proxy.server.engines.probing": ("ANSWER_S", "GONE_S", "ROUND_S"),
    "warmroute_proxy.server.ledger.all_rows": ("MAX_S",),
    "warmroute_proxy.server.ledger.journal": ("STALLED_S",),
    "warmroute_proxy.server.control.fleet_usage": ("PEER_TIMEOUT_S",),
    "warmroute_proxy.server.regions.peers": ("ANSWER_S",),
    "warmroute_proxy.server.reload.orders": ("AGREE_S",),
    "warmroute_proxy.server.request.attempt": ("PARTNER_WAIT_S", "TRAILER_S"),
    "warmroute_proxy.server.request.deadlines": ("LOST_IDLE_S",),
    "warmroute_proxy.server.request.inference_request": ("LEFT_WAIT_S",),
    "warmroute_proxy.server.stores.budgets": ("ASK_S",),
    "warmroute_proxy.server.stores.store_thread": ("QUESTION_S",),
}
"""Module: its deadlines."""

DEFAULT: Final = "connect_timeout_s"
"""A deadline of [limits], far away where a config does not set it."""

SETTING: Final = "WARMROUTE_TEST_REAL_DEADLINES"
"""An environment variable: what stays, with commas: last names of modules, names of deadlines, or `DEFAULT`."""


def real(names: Sequence[str]) -> str:
    """The value of `SETTING` for these modules and deadlines."""
    modules = {module.rpartition(".")[2] for module in DEADLINES}
    assert set(names) <= {DEFAULT}.union(modules, *DEADLINES.values()), names
    return ",".join(names)


def wait() -> None:
    """Put the deadlines of this process far away."""
    stay = os.environ.get(SETTING, "").split(",")
    for module, names in DEADLINES.items():
        for name in names:
            if not {module.rpartition(".")[2], name} & {*stay}:
                _set(module, name)
    if DEFAULT not in stay:
        _set_default()


def _set(module: str, name: str) -> None:
    loaded = import_module(module)
    assert isinstance(getattr(loaded, name), float), f"{module}.{name}"
    setattr(loaded, name, FAR_S)


def _set_default() -> None:
    """What a file does not set is read from the fields, and what is made without one has the other default."""
    fields_of_class: Mapping[str, Field[Any]] = Limits.__dataclass_fields__
    fields_of_class[DEFAULT].default = FAR_S
    values = dict(zip(fields_of_class, Limits.__init__.__defaults__ or (), strict=True))
    Limits.__init__.__defaults__ = tuple((values | {DEFAULT: FAR_S}).values())
