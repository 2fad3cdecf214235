"""Floods of all kinds of requests: another tenant's chat waits for a few of them, and not for all that came before it.

The measure is how many answers the flood gets while a chat is under way, since times depend on the machine. During a
chat, requests begin in four iterations of the proxy's event loop. If each of them answered all connections, the chat
would wait for four times as many. All run in one loop (`one_loop`): so the counts do not depend on a busy machine.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.hostile.one_loop import KINDS, REFUSED, connections_of
from tests.machine import seconds

pytestmark = [pytest.mark.full, pytest.mark.timeout(seconds(400))]


BEFORE_NIGHT: Final = {
    "openapi",
    "without a key",
    "models",
    "a session that waits",
    "no messages of Anthropic",
    "counts",
}
"""A view, a refusal and a parser of each sort. The nightly run tries all kinds."""


@cache
def answers_of(folder: Path, kinds: frozenset[str]) -> dict[str, list[int]]:
    """By kind of request, how many answers a flood got during each of some chats, few first."""
    command = [sys.executable, "-m", "tests.hostile.one_loop", str(folder), *sorted(kinds)]
    with (folder / "log").open("w") as log:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True, check=False, env=os.environ)
    assert done.returncode == 0, (folder / "log").read_text()[-2000:]
    counts: dict[str, list[int]] = json.loads(done.stdout.splitlines()[-1])
    return counts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("floods"))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.nightly] * (kind not in BEFORE_NIGHT)) for kind in KINDS]
)
def test_a_chat_waits_for_few_of_a_flood(folder: Path, kind: str) -> None:
    kinds = frozenset(BEFORE_NIGHT if kind in BEFORE_NIGHT else KINDS.keys() - BEFORE_NIGHT)
    found, share = answers_of(folder, kinds)[kind], 3 if kind in REFUSED else 2
    assert found[len(found) // 2] < share * connections_of(kind), found
