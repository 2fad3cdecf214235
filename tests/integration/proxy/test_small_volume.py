"""A volume fills while turns run: new ones are refused before they are computed, and no row is lost. Needs root."""

import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import PLAIN, ProxyProcess, answer, chat, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole

MIB = 2**20
USAGE = {"prompt_tokens": 500, "completion_tokens": 3, "total_tokens": 503}

pytestmark = [pytest.mark.full, pytest.mark.skipif(os.geteuid() != 0, reason="a file system of its own needs root")]


class Volume:
    """A file system of 64 MiB, and a file that fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def leave(self, free_bytes: int) -> None:
        """Have only so much free, and at no moment more than before, since the proxy may look at any time."""
        found = os.statvfs(self.folder)
        with self._ballast.open("ab") as file:
            os.posix_fallocate(file.fileno(), file.tell(), max(1, found.f_bavail * found.f_frsize - free_bytes))

    def clear(self) -> None:
        self._ballast.unlink(missing_ok=True)


def told(sock: socket.socket) -> tuple[int, bool]:
    """The status, and whether the ledger is the reason."""
    with sock:
        status, _, body = answer(sock)
    return status, "ledger_unavailable" in body


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    folder = tmp_path / "volume"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=True)
    try:
        yield Volume(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_new_turns_are_refused_in_time_and_running_ones_keep_their_rows(volume: Volume) -> None:
    may_end = threading.Event()

    def script(handler: Handler) -> None:
        may_end.wait(seconds(60))
        handler.reply(200, whole(USAGE))

    engine = ScriptedEngine("e0", script)
    proxy = ProxyProcess(volume.folder, [engine.toml()]).start()

    def reasons() -> list[str]:
        found: list[str] = httpx.get(f"{proxy.url}/ready", verify=PLAIN).json()["reasons"]
        return found

    try:
        running = [proxy.send(chat(f"running {number}")) for number in range(8)]
        until(lambda: len(engine.bodies) == 8, "all are at the engine")
        volume.leave(4 * MIB)
        until(lambda: reasons() == ["the volume of state_dir is full"], "the proxy sees it")
        until(lambda: "the ledger: the volume of state_dir is full" in proxy.written(), "the log says it")
        assert told(proxy.send(chat("refused"))) == (503, True)
        assert len(engine.bodies) == 8, "no engine has computed it"
        may_end.set()
        assert [told(sock) for sock in running] == [(200, False)] * 8
        assert len(proxy.rows(expected=8)) == 8
        volume.leave(0)  # as full as it can be
        assert told(proxy.send(chat("refused"))) == (503, True)
        volume.clear()  # or the volume has grown
        until(proxy.is_ready, "it takes turns again")
        until(lambda: "the ledger: the volume of state_dir has space again" in proxy.written(), "the log says so")
        assert told(proxy.send(chat("after"))) == (200, False)
        rows = proxy.rows(expected=9)
        assert [row["outcome"] for row in rows] == ["completed"] * 9
    finally:
        may_end.set()
        proxy.stop()
        engine.stop()
