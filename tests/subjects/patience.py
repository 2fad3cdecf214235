"""Deadlines of the product as tests have them: ones that no machine reaches, but for the tests that are about one.

A deadline bounds how long the product waits for an engine, a store or another process. On a machine that is slow, it
would pass where the test expects an answer. So each process that `tests/subjects/copies.py` makes has `FAR_S` in their
place. A test that is about a deadline names the module whose deadlines stay as they are.
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Final

FAR_S: Final = 900.0

DEADLINES: Final[Mapping[str, tuple[str, ...]]] = {
    "warmroute_proxy.server.dialects.token_counts": ("TIMEOUT_S",),
    "warmroute_proxy.server.engines.probing": ("GONE_S",),
    "warmroute_proxy.server.ledger.all_rows": ("MAX_S",),
    "warmroute_proxy.server.control.fleet_usage": ("PEER_TIMEOUT_S",),
    "warmroute_proxy.server.reload.orders": ("AGREE_S",),
    "warmroute_proxy.server.request.attempt": ("PARTNER_WAIT_S", "TRAILER_S"),
    "warmroute_proxy.server.request.deadlines": ("LOST_IDLE_S",),
    "warmroute_proxy.server.request.inference_request": ("LEFT_WAIT_S",),
}
"""Module: its deadlines."""

SETTING: Final = "WARMROUTE_TEST_REAL_DEADLINES"
"""An environment variable: modules, with commas, whose deadlines stay."""


def real(*modules: str) -> dict[str, str]:
    """The environment of a copy in which these modules keep their deadlines."""
    assert set(modules) <= set(DEADLINES), modules
    return {SETTING: ",".join(modules)}


def wait() -> None:
    """Put the deadlines of this process far away."""
    stay = os.environ.get(SETTING, "").split(",")
    for module, names in DEADLINES.items():
        if module not in stay:
            for name in names:
                _set(module, name)


def _set(module: str, name: str) -> None:
    loaded = import_module(module)
    assert isinstance(getattr(loaded, name), float), f"{module}.{name}"
    setattr(loaded, name, FAR_S)
