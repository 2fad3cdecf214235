"""What all tests share: how hypothesis searches, limits in time, and the real SGLang for those that ask for it."""

import inspect
import os
import signal
import sys
import tempfile
from pathlib import Path

import httpx
import pytest
import pytest_timeout  # type: ignore[import-untyped]

from tests import search
from tests.machine import seconds
from tests.subjects import patience

search.register()

# httpx gives up after 5 s where it is told nothing else; most calls of tests tell it nothing.
for _part in ("connect", "read", "write", "pool"):
    setattr(inspect.signature(httpx.Client).parameters["timeout"].default, _part, seconds(20))

# A shell's job in the background ignores SIGINT, and so would all that tests start and then interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Where Python is told to keep no bytecode, each of the hundreds of processes that tests start would compile all that it
# imports: a third of its start. So it is kept, away from the sources.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")


# A fleet that its developer runs, or another process of tests, is none that a test's command finds.
_STATE = tempfile.TemporaryDirectory(prefix="wr.")
os.environ["XDG_STATE_HOME"] = _STATE.name


def pytest_collection_finish() -> None:
    """The clients that tests have imported give up to connect after 5 s, too."""
    for name in ("openai", "anthropic"):
        if name in sys.modules:
            sys.modules[name].DEFAULT_TIMEOUT.connect = seconds(20)


@pytest.fixture(autouse=True)
def deadlines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadlines of the product that a test is about stay, by its marker `real_deadlines`."""
    if marker := request.node.get_closest_marker("real_deadlines"):
        monkeypatch.setenv(patience.SETTING, patience.real(marker.args))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool | None:
    """A test's limit is for an idle machine of the reference's speed (`tests/machine.py`).

    Stretched by no more than ten, since a run in which many tests hang has a limit, too.
    """
    stretched = settings._replace(timeout=seconds(settings.timeout, 10.0))
    return bool(pytest_timeout.pytest_timeout_set_timer(item, stretched))


pytest_plugins = ["tests.subjects.sglang"]
