"""`warmroute launch --engine sglang-cpu`: a pair with HiCache (host and file tiers) on the real SGLang, and an agent's
session through it."""

import os
import signal
from pathlib import Path

import pytest

from tests.subjects.launched import Launched
from tests.subjects.processes import until
from warmroute.contract import receipt as contract_receipt
from warmroute_backend.sglang.command import PAGE_TOKENS, POOL_TOKENS
from warmroute_backend.sglang.server import START_TIMEOUT_S

pytestmark = pytest.mark.timeout(900)
SYSTEM = "You are a careful assistant, and you say what you have not checked. " * 40
FILLER = "word " * 2_400


class Session:
    """An agent's session: each turn repeats the ones before."""

    def __init__(self, launched: Launched, name: str) -> None:
        self._launched = launched
        self._messages: list[dict[str, str]] = [{"role": "system", "content": f"{name}. {SYSTEM}"}]

    def turn(self, text: str) -> dict[str, int]:
        """The cached tokens of one turn by tier, from its receipt."""
        self._messages.append({"role": "user", "content": text})
        usage = self._launched.usage(self._messages)
        assert contract_receipt.check(usage) == []
        self._messages.append({"role": "assistant", "content": "noted"})
        found: dict[str, int] = usage["warmroute"]["cached"]
        return found


def fill(launched: Launched, count: int) -> None:
    """Prompts of others, which push what was there out of the device."""
    for number in range(count):
        launched.usage(f"{number} {FILLER}")


def pages(launched: Launched) -> int:
    return sum(path.is_file() for path in (launched.state_dir / "hicache").rglob("*"))


@pytest.mark.real_deadlines("attempt", "inference_request")  # while decode is dead
def test_a_pair_with_hicache_serves_a_session_and_outlives_kills(tmp_path: Path) -> None:
    with Launched(tmp_path, engine="sglang-cpu") as launched:
        launched.start().wait_up(START_TIMEOUT_S * 2)
        assert [row["findings"] for row in launched.status().values()] == [[], [], []]
        assert f"max_total_num_tokens={POOL_TOKENS}" in launched.act("logs", "prefill-0", "--lines", "500").stdout

        session = Session(launched, "A session")
        assert session.turn("Begin.") == {"device": 0, "host": 0, "storage": 0}
        device = session.turn("Go on.")
        assert device["device"] > 256
        assert device["host"] == device["storage"] == 0

        fill(launched, 6)
        host = session.turn("What was that?")
        assert host["host"] > 0
        assert host["storage"] == 0

        until(lambda: pages(launched) >= device["device"] // PAGE_TOKENS, "its pages are in files", 60)
        launched.flush()
        storage = session.turn("And before?")
        assert storage["storage"] >= device["device"]
        assert storage["device"] == storage["host"] == 0

        before = launched.pids()
        os.kill(before["decode-0"], signal.SIGKILL)
        assert launched.ask("Are you there?").status_code in {200, 502, 503, 504}
        until(lambda: launched.pids()["decode-0"] not in {before["decode-0"], None}, "another decode engine", 60)
        launched.wait_up(START_TIMEOUT_S)
        until(lambda: launched.ask("And now?").status_code == 200, "it serves", 60)
        assert session.turn("Still there?")["device"] > 256

        before = launched.pids()
        launched.kill()
        launched.start()
        until(lambda: launched.act("status").returncode == 0, "the new launcher looks after them", 60)
        assert launched.pids() == before
        assert session.turn("And you?")["device"] > 256

        assert launched.act("stop").returncode == 0
        assert not launched.left()
        assert set(launched.pids().values()) == {None}
