"""Runs steps in parallel, each after the steps that it names, and keeps the output of each."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from scripts.tiers import counting
from scripts.tiers.counting import Counter
from scripts.tiers.steps import COMPILED, Step

from warmroute_backend.sglang.installation import CHECKOUT_VARIABLE

RUN_LIMIT_S: Final = 5100.0
"""The time that all steps together may take, since CI ends a run after 90 minutes. A step that would begin later is not
run, and fails."""

GRACE_S: Final = 20.0
_BACKGROUND_TRACEBACK: Final = "Traceback (most recent call last)"


class Result(Enum):
    """The state of a step."""

    WAITS = "waits"
    RUNS = "runs"
    OK = "ok"
    FAILED = "FAILED"
    CUT = "FAILED, cut at its limit"
    TRACEBACK = "FAILED: its output has a traceback, though every test passed"


@dataclass
class Running:
    """One step of a run."""

    step: Step
    log: Path
    counter: Counter
    result: Result = Result.WAITS
    began_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    over: threading.Event = field(default_factory=threading.Event)


class Run:
    """All steps of one call of `scripts/test`."""

    def __init__(
        self, steps: Iterable[Step], folder: Path, on_end: Callable[[Running], None], limit_s: float = RUN_LIMIT_S
    ) -> None:
        self.steps = {step.name: self._made(step, folder) for step in steps}
        self._folder = folder
        self._on_end = on_end
        self._until_s = time.monotonic() + limit_s
        self._children: set[int] = set()
        self._stopped = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start a thread for each step. The thread waits for the steps that must end before."""
        for running in self.steps.values():
            threading.Thread(target=self._run, args=(running,), daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for at most `timeout_s`. Returns whether all steps have ended."""
        until_s = time.monotonic() + timeout_s
        return all(each.over.wait(max(0.0, until_s - time.monotonic())) for each in self.steps.values())

    def stop(self) -> None:
        """Ask all running steps to end, and start no further step."""
        self._stopped = True
        for pid in tuple(self._children):
            signal_group(pid, signal.SIGTERM)

    @property
    def failed(self) -> list[Running]:
        return [each for each in self.steps.values() if each.result not in (Result.OK, Result.WAITS, Result.RUNS)]

    def _made(self, step: Step, folder: Path) -> Running:
        name = step.name.replace(" ", "-")
        return Running(step, folder / f"{name}.log", Counter(folder / f"{name}.counts"))

    def _run(self, running: Running) -> None:
        for name in running.step.after:
            self.steps[name].over.wait()
        running.began_s = time.monotonic()
        limit_s = min(running.step.limit_s, self._until_s - running.began_s)
        if self._stopped or limit_s <= 0:
            running.result = Result.CUT
        else:
            running.result = Result.RUNS
            running.result = self._result(running, limit_s)
        running.wall_s = time.monotonic() - running.began_s
        running.counter.read()
        with self._lock:
            self._on_end(running)
        running.over.set()

    def _result(self, running: Running, limit_s: float) -> Result:
        with running.log.open("wb") as log, tempfile.TemporaryDirectory(dir=self._folder, prefix="t") as own:
            # A separate folder of temporary files, since a pytest that ends deletes older folders of other runs.
            settings = {
                "PYTEST_DEBUG_TEMPROOT": own,
                "PYTEST_ADDOPTS": f"-p {counting.__name__}",
                counting.FILE_SETTING: str(running.counter.path),
            }
            if running.step.compiled:
                # Packages outside of the checkout need a variable to find the SGLang that is installed in the checkout.
                settings |= {"PYTHONPATH": str(Path(COMPILED).resolve()), CHECKOUT_VARIABLE: str(Path.cwd())}
            child = subprocess.Popen(
                running.step.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **settings},
                start_new_session=True,
            )
            self._children.add(child.pid)
            cut = threading.Event()
            guard = threading.Timer(limit_s, _end, (child.pid, cut))
            guard.start()
            _, status, used = os.wait4(child.pid, 0)
            guard.cancel()
            self._children.discard(child.pid)
            child.returncode = os.waitstatus_to_exitcode(status)
            running.cpu_s = used.ru_utime + used.ru_stime
        if cut.is_set():
            return Result.CUT
        if child.returncode:
            return Result.FAILED
        is_pytest = running.counter.path.stat().st_size > 0
        if is_pytest and _BACKGROUND_TRACEBACK in running.log.read_text(errors="replace"):
            return Result.TRACEBACK
        return Result.OK


def _end(pid: int, cut: threading.Event) -> None:
    """Ask a step that hangs to end, and kill it after `GRACE_S`."""
    cut.set()
    signal_group(pid, signal.SIGTERM)
    threading.Timer(GRACE_S, lambda: signal_group(pid, signal.SIGKILL)).start()


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the processes of a process group, if any still runs."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
