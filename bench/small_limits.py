"""Starts warmroute with small limits, so that its bounded maps and SQLite's caches fill up in seconds.

With the real limits the maps take hours to fill, which would hide a leak. A limit that this file no longer finds in the
code is an error, so that this file follows the code. Probes of engines wait for long, since the engines run in the
process of the load, which may be delayed. It is started as a process: `python small_limits.py proxy --config FILE`.
"""

import sqlite3
import sys
from types import ModuleType
from typing import Any, Final

from warmroute_cli.main import main
from warmroute_proxy.core.cache import affinity, index, occupancy, residents, return_times
from warmroute_proxy.core.load import suspects
from warmroute_proxy.core.placement import credit, forks, histories, working_set
from warmroute_proxy.core.prompt import fingerprint
from warmroute_proxy.core.queue import programs, refused_sessions
from warmroute_proxy.server import authentication
from warmroute_proxy.server.base import secrets
from warmroute_proxy.server.engines import probing
from warmroute_proxy.server.http import header_lines
from warmroute_proxy.server.intake import body_fields, caller, known_body
from warmroute_proxy.server.request import idempotency, open_requests

PATIENT_S: Final = 600.0
CACHE_KIB: Final = 64
"""Of each connection to SQLite; by default, it has 2 MB, which rows fill for a hundred thousand requests."""


def _lower(module: ModuleType, name: str, value: float) -> None:
    if not value < getattr(module, name):
        raise ValueError(f"{module.__name__}.{name} is {getattr(module, name)}, not above {value}")
    setattr(module, name, value)


def _lower_defaults(function: Any, *values: int) -> None:
    assert len(function.__defaults__) == len(values), function
    function.__defaults__ = values


_connect: Final = sqlite3.connect


def _with_small_cache(*args: Any, **options: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = _connect(*args, **options)
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return connection


if __name__ == "__main__":
    sqlite3.connect = _with_small_cache  # type: ignore[assignment]
    _lower(secrets, "MAX_CACHED", 500)
    _lower(authentication, "MAX_CACHED", 500)
    _lower(open_requests, "MAX_DECISIONS", 100)
    _lower(idempotency, "MAX_KEYS", 500)
    _lower(idempotency, "REMEMBER_KEY_S", 10.0)
    _lower(body_fields, "MAX_PLANS", 50)
    _lower(caller, "MAX_CALLERS", 100)
    _lower(refused_sessions, "MAX_KEPT", 100)
    _lower(suspects, "MAX_SUSPECTS", 100)
    _lower(working_set, "MAX_HOMES", 500)
    _lower(header_lines, "MAX_LINES", 200)
    _lower(fingerprint, "MAX_KEPT_TOOLS", 50)
    _lower_defaults(index.PrefixIndex.__init__, 8, 128)
    _lower_defaults(affinity.Affinity.__init__, 500)
    _lower_defaults(occupancy.Occupancy.__init__, 250)
    _lower_defaults(known_body.KnownBodies.__init__, 1_048_576, 16_384, 1_048_576)
    _lower_defaults(residents.Residents.__init__, 500)
    _lower_defaults(return_times.ReturnTimes.__init__, 500)
    _lower_defaults(programs.Roots.__init__, 500)
    _lower_defaults(forks.Forks.__init__, 100)
    _lower_defaults(credit.Credits.__init__, 500)
    _lower_defaults(histories.Histories.__init__, 500)
    probing.ANSWER_S = PATIENT_S
    sys.exit(main())
