"""Actions of `warmroute launch` on processes that run or have run: status, start, stop, restart, starts, logs."""

import argparse
import json
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from warmroute_backend.launch import state_file
from warmroute_backend.launch.identity import boot_id, is_alive, signal_process
from warmroute_backend.launch.launcher import Launcher, Limits
from warmroute_backend.launch.process import left_running
from warmroute_backend.launch.program import LaunchError
from warmroute_backend.launch.start_log import PHASES, tail
from warmroute_backend.launch.state_file import Entry, Record, load, locked, save
from warmroute_backend.launch.states import ALIVE, Backoff, State
from warmroute_cli.api import Api, ApiError
from warmroute_proxy.server.base.secrets import SecretError


class ProxyDrains:
    """Drains engines through one proxy. All methods raise OSError if the proxy does not answer."""

    def __init__(self, admin_url: str, admin_key: Callable[[], str]) -> None:
        """`admin_key` returns the current key; it may raise SecretError."""
        self._admin_url = admin_url
        self._admin_key = admin_key

    def drain(self, engine: str) -> bool:
        found = self._ask(engine, "GET")
        since = found["draining_since"]
        if isinstance(since, dict) and "operator" in since:
            return False
        self._ask(engine, "POST")
        return True

    def is_drained(self, engine: str) -> bool:
        found = self._ask(engine, "GET")
        return bool(found["drained"]) or found["state"] == "down"

    def undrain(self, engine: str) -> None:
        self._ask(engine, "DELETE")

    def _ask(self, engine: str, method: str) -> dict[str, object]:
        try:
            api = Api(self._admin_url, self._admin_key())
            found: dict[str, object] = api.ask(f"/admin/engines/{quote(engine, safe='')}/drain", method=method)
        except (ApiError, SecretError) as error:
            raise OSError(str(error)) from None
        return found


class NoDrains:
    """Replaces `ProxyDrains` on a node without a proxy: each drain fails."""

    def drain(self, engine: str) -> bool:
        raise OSError(f"this launcher has no proxy whose admin port it may ask: `warmroute engines drain {engine}`")

    def is_drained(self, engine: str) -> bool:
        """Not called, since `drain` fails."""
        del engine
        return True

    def undrain(self, engine: str) -> None:
        """Not called, since `drain` fails."""
        del engine


POLL_S: Final = 0.2


def status(arguments: argparse.Namespace) -> int:
    """Print each process. Exit status 0: all serve; 1: some do not, or no launcher supervises them."""
    record = _record(arguments.state_dir)
    watched = _is_watched(record)
    rows = [_row(record, entry) for entry in record.entries.values()]
    if arguments.json:
        document = {"plan": record.plan, "engine": record.engine, "node": record.node, "launcher": watched}
        document["troubles"] = record.troubles
        print(json.dumps({**document, "processes": rows}, indent=2))
    else:
        pid = f"launcher {record.launcher.pid}" if watched else "no launcher runs: `warmroute launch PLAN` takes over"
        print(f"{record.plan}, node {record.node}, --engine {record.engine}; {pid}")
        for trouble in record.troubles if watched else ():
            print(trouble)
        for row in rows:
            since = "" if row["ready_s"] is None else f"for {row['ready_s']:.0f} s"
            pid = f"pid {row['pid']}" if row["pid"] else ""
            print(f"{row['name']:<18} {row['state']:<12} {since:<14} {pid:<13} {row['url']}")
            for finding in row["findings"]:
                print(f"    {finding}")
    return 0 if watched and all(row["state"] == State.READY for row in rows) else 1


def stop(arguments: argparse.Namespace) -> int:
    """Stop all processes through their launcher; if the launcher does not run, stop them directly."""
    record = _record(arguments.state_dir)
    deadline_s = time.monotonic() + arguments.wait
    if _is_same_boot(record) and signal_process(record.launcher, signal.SIGTERM):
        while is_alive(record.launcher):
            if time.monotonic() > deadline_s:
                raise LaunchError(
                    f"the launcher, pid {record.launcher.pid}, still stops; see `warmroute launch status`"
                )
            time.sleep(POLL_S)
        record = _record(arguments.state_dir)
    with locked(arguments.state_dir, "a launcher has begun to run here meanwhile"):
        left = left_running(record) if _is_same_boot(record) else []

        def save_record() -> None:
            save(arguments.state_dir, record)

        Launcher(left, arguments.state_dir, NoDrains(), Limits(Backoff()), save_record, print).stop()
        for process in left:
            process.end_leftovers()
        for entry in record.entries.values():
            entry.state = State.STOPPED
        save_record()
    print("nothing runs")
    return 0


def start(arguments: argparse.Namespace) -> int:
    """Give a launcher that waits for it the order to start all nodes, once all their launchers answer."""
    record = _record(arguments.state_dir)
    waits = any(entry.state is State.WAITING for entry in record.entries.values())
    if not _is_watched(record) or not waits:
        raise LaunchError("no launcher waits here: start `warmroute launch PLAN --nodes-port N --wait-for-start`")
    state_file.give_start(arguments.state_dir)
    print("ordered: all nodes start once all their launchers answer")
    return 0


def restart(arguments: argparse.Namespace) -> int:
    """Restart one process, and wait until it serves again. Exit status 1: it does not serve."""
    entry = _entry(arguments)
    if entry.kind == "weights" and entry.state in ALIVE:
        raise LaunchError(f"{entry.name} keeps the weights of an engine that runs: `warmroute launch stop` ends both")
    before = entry.starts
    if not _is_watched(_record(arguments.state_dir)):
        raise LaunchError("no launcher runs here: start `warmroute launch PLAN`, which finds processes that still run")
    state_file.give_restart(arguments.state_dir, arguments.name)
    deadline_s = time.monotonic() + arguments.wait
    while time.monotonic() < deadline_s:
        entry = _entry(arguments)
        if entry.starts > before and entry.state is State.READY:
            print(f"{entry.name}: ready")
            return 0
        if entry.starts > before and entry.state is State.FAILED:
            print(f"{entry.name}: {entry.last_words}")
            return 1
        time.sleep(POLL_S)
    print(f"{entry.name}: {entry.state}")
    return 1


def starts(arguments: argparse.Namespace) -> int:
    """Print how many seconds each phase of the newest starts took."""
    record = _record(arguments.state_dir)
    found = [(entry.name, each) for entry in record.entries.values() for each in entry.start_records]
    if arguments.json:
        print(json.dumps({"starts": [{"name": name, **asdict(each)} for name, each in found]}, indent=2))
        return 0
    print(f"{record.plan}, node {record.node}, --engine {record.engine}; seconds")
    print(f"{'':<18} {'started':<20} {'weights from':<13} {'total':>8}", *(f"{phase:>16}" for phase in PHASES))
    for name, each in found:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.at_s))
        parts = [f"{each.phases_s[phase]:>16.1f}" if phase in each.phases_s else f"{'-':>16}" for phase in PHASES]
        print(f"{name:<18} {at:<20} {each.source:<13} {each.total_s:>8.1f}", *parts)
    return 0


def logs(arguments: argparse.Namespace) -> int:
    """Print the end of a log; with `--follow`, new lines too."""
    log = Path(_entry(arguments).log)
    if not log.exists():
        raise LaunchError(f"{log} is not there: {arguments.name} was not started yet")
    for line in tail(log, arguments.lines):
        print(line)
    if arguments.follow:
        _follow(log)
    return 0


def names(state_dir: Path) -> list[str]:
    """The names of the processes in the launch record; empty if there is no record."""
    record = load(state_dir)
    return [] if record is None else list(record.entries)


def _follow(log: Path) -> None:
    at = log.stat().st_size
    while True:
        size = log.stat().st_size
        if size < at:  # the log was rotated
            at = 0
        if size > at:
            with log.open("rb") as file:
                file.seek(at)
                content = file.read(size - at)
            at = size
            print(content.decode("utf-8", "replace"), end="", flush=True)
        time.sleep(POLL_S)


def _row(record: Record, entry: Entry) -> dict[str, Any]:
    alive = entry.identity is not None and _is_same_boot(record) and is_alive(entry.identity)
    state = "ended" if entry.state in ALIVE and not alive else str(entry.state)
    return {
        "name": entry.name,
        "kind": entry.kind,
        "state": state,
        "pid": entry.identity.pid if alive and entry.identity else None,
        "url": entry.url,
        "log": entry.log,
        "starts": entry.starts,
        "ready_s": time.time() - entry.ready_s if state == State.READY and entry.ready_s else None,
        "findings": entry.findings,
        "last_words": entry.last_words,
    }


def _record(state_dir: Path) -> Record:
    record = load(state_dir)
    if record is None:
        raise LaunchError(f"nothing was launched in {state_dir}: give its --state-dir, or `warmroute launch PLAN`")
    return record


def _entry(arguments: argparse.Namespace) -> Entry:
    record = _record(arguments.state_dir)
    found = record.entries.get(arguments.name)
    if found is None:
        raise LaunchError(f"there is no process {arguments.name!r} here; there are: {', '.join(record.entries)}")
    return found


def _is_same_boot(record: Record) -> bool:
    return record.boot_id == boot_id()


def _is_watched(record: Record) -> bool:
    return _is_same_boot(record) and is_alive(record.launcher)
