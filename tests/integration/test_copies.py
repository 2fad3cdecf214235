"""What tests start as a copy is a process as good as one that Python starts anew."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.machine import seconds
from tests.subjects.copies import Copy, OtherCopy
from warmroute_cli.processes import stop_all

pytestmark = pytest.mark.full

ENGINE = [sys.executable, "-m", "warmroute_lab.engine", "--port", "0", "--bootstrap-port", "0"]


def test_three_others_in_a_row_hash_strings_each_in_its_own_way(tmp_path: Path) -> None:
    made = [OtherCopy("o", ENGINE, tmp_path) for _ in range(3)] + [Copy("c", ENGINE, tmp_path)]
    assert len({Path(f"/proc/{each.pid}/stat").read_text().split()[3] for each in made}) == 4  # their origins
    stop_all(made, seconds(20.0))


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    code = f"""
import os, signal, time
from pathlib import Path
from tests.subjects.copies import Copy
made = Copy("c", {ENGINE!r}, Path({str(tmp_path)!r}))
made.listening(time.monotonic() + {seconds(20)})
print(made.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, check=False
    )
    assert said.returncode == -signal.SIGKILL
    pid, deadline = int(said.stdout), time.monotonic() + seconds(20)
    while runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process lives; a zombie that nobody waits for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False
