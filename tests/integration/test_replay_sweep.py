"""A sweep of `warmroute replay` runs in processes of its own, and ends them with itself."""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine import seconds
from tests.subjects.processes import until

pytestmark = pytest.mark.full


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_is_ended_leaves_no_process(tmp_path: Path, ending: signal.Signals) -> None:
    trace = tmp_path / "long.jsonl"
    row = {"input_length": 51200, "output_length": 2000, "hash_ids": list(range(100))}
    trace.write_text("".join(json.dumps({"timestamp": at, **row}) + "\n" for at in range(4000)))
    program = "import sys; from warmroute_cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "replay", str(trace), "--sweep"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True) as sweep:
        until(lambda: len(_busy(sweep.pid)) > 1, "runs in processes of their own")
        sweep.send_signal(ending)
        assert sweep.wait(seconds(20)) != 0
    until(lambda: not _busy(sweep.pid), "the end of all runs")


def _busy(session: int) -> list[str]:
    """Processes of a session that have used a second of CPU time."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z" and int(fields[11]) > 100:
                found.append(stat.parent.name)
    return found
