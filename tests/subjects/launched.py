"""A plan on ports that are free, and `warmroute launch` run on it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import httpx

from tests.machine import seconds
from tests.subjects import patient
from tests.subjects.copies import ran
from tests.subjects.ports import free_ports
from tests.subjects.processes import until
from tests.subjects.stopped import Stopped
from warmroute_backend.launch.identity import MARK
from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.plan_file import written
from warmroute_backend.plan.request import PlanRequest
from warmroute_backend.ports import Ports
from warmroute_cli import state

COMMAND: Final = [sys.executable, "-m", "warmroute_cli.main", "launch"]
PATIENT: Final = [sys.executable, "-m", patient.MODULE, *COMMAND[3:]]
MODEL: Final = "gpt-oss-120b"


def pair_plan(**options: Any) -> Plan:
    """Prefill and decode on one node, HiCache with a file tier, each on free ports."""
    defaults: dict[str, Any] = {"split": (4, 4), "hicache": True, "storage": "file", "speculation": False}
    plan = make_plan(PlanRequest(known_model(MODEL), parse_cluster("8xH100"), **{**defaults, **options}))
    engines = [replace(engine, ports=Ports(*free_ports(5))) for engine in plan.engines]
    return replace(plan, engines=tuple(engines))


class Launched(Stopped):
    """A launch in a folder. What still runs at the end of a `with` is stopped; nothing may be left then."""

    def __init__(self, folder: Path, plan: Plan | None = None, *options: str, engine: str = "embedded") -> None:
        self.folder = folder
        self.plan = folder / "plan.toml"
        self.state_dir = folder / "state"
        self.engine = engine
        self.port, self.admin_port = free_ports(2)
        self.options = options
        self.launcher: subprocess.Popen[str] | None = None
        self.output = folder / "launch.out"
        self.write(plan or pair_plan())

    def stop(self) -> None:
        if self.launcher is not None:
            self.kill()
        self.act("stop")
        left = self.left()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left

    def write(self, plan: Plan) -> None:
        self.plan.write_text(written(plan, MODEL))

    def words(self) -> list[str]:
        options = ["--engine", self.engine, "--state-dir", str(self.state_dir), *self.options]
        return [str(self.plan), *options, "--port", str(self.port), "--admin-port", str(self.admin_port)]

    def start(self) -> "Launched":
        """Start a launcher; it is not waited for."""
        with self.output.open("a") as output:
            self.launcher = self.started(output)
        return self

    def started(self, output: IO[str] | int) -> "subprocess.Popen[str]":
        """A launcher that writes there."""
        words = [*PATIENT, *self.words()]
        environment = patient.environment()
        return subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, text=True, cwd=self.folder, env=environment
        )

    def wait_up(self, timeout_s: float = 60.0) -> "Launched":
        until(lambda: self.all_ready() or self.has_ended(), "everything serves", timeout_s)
        assert not self.has_ended(), self.output.read_text()
        return self

    def refused(self) -> str:
        """What a launcher that ends at once says; exit status 2."""
        done = ran([*COMMAND, *self.words()], self.folder)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr

    def act(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *words, "--state-dir", str(self.state_dir)]
        return ran(command, self.folder, timeout_s=100)

    def status(self) -> dict[str, dict[str, Any]]:
        """By name of a process; empty where nothing was launched."""
        done = self.act("status", "--json")
        return {each["name"]: each for each in json.loads(done.stdout)["processes"]} if done.stdout else {}

    def states(self) -> dict[str, str]:
        """Straight from the state file, which is cheap to poll."""
        try:
            entries = json.loads((self.state_dir / "state.json").read_text())["entries"]
        except (OSError, ValueError):
            return {}
        return {name: str(entry["state"]) for name, entry in entries.items()}

    def all_ready(self) -> bool:
        found = self.states()
        return len(found) > 1 and set(found.values()) == {"ready"}

    def has_ended(self) -> bool:
        return self.launcher is not None and self.launcher.poll() is not None

    def pids(self) -> dict[str, int]:
        return {name: row["pid"] for name, row in self.status().items()}

    def left(self) -> Sequence[int]:
        """The processes that carry the mark of a launch in this folder."""
        path = self.state_dir / "state.json"
        if not path.exists():
            return []
        mark = f"{MARK}={json.loads(path.read_text())['launch_id']}/".encode()
        return [pid for pid in _pids() if mark in _environ(pid)]

    def ask(self, messages: str | list[dict[str, str]], **fields: Any) -> httpx.Response:
        """A turn, of one message where that is a text."""
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        body = {"model": MODEL, "max_tokens": 2, "messages": said, **fields}
        headers = {"authorization": f"Bearer {state.api_key(self.state_dir)}"}
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        return httpx.post(url, json=body, headers=headers, timeout=seconds(200))

    def usage(self, messages: str | list[dict[str, str]], **fields: Any) -> dict[str, Any]:
        """That of a turn, which is served."""
        answer = self.ask(messages, **fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["usage"]
        return found

    def flush(self) -> None:
        """Empty prefill's device and host; files stay. SGLang refuses while it works."""
        url = self.status()["prefill-0"]["url"]
        until(lambda: httpx.post(f"{url}/flush_cache", timeout=seconds(30)).status_code == 200, "it is idle")

    def kill(self) -> None:
        """The launcher alone, as a crash would."""
        assert self.launcher is not None
        self.launcher.kill()
        self.launcher.wait()


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
