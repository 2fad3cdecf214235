"""Launchers of two nodes on one machine: one order starts both, and a lost one is named."""

import contextlib
import http.client
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.integration.launch.test_hangs import Waker, running
from tests.machine import seconds
from tests.subjects.ports import free_ports
from tests.subjects.processes import until
from warmroute_backend.launch import node_reports, state_file
from warmroute_backend.launch.launcher import Launcher, Limits
from warmroute_backend.launch.node_reports import NodeReports
from warmroute_backend.launch.nodes import Report
from warmroute_backend.launch.process import adopt, found_identity
from warmroute_backend.launch.program import Program
from warmroute_backend.launch.states import Backoff, State
from warmroute_cli.launch.actions import NoDrains

pytestmark = pytest.mark.timeout(180)
LOCAL = "127.0.0.1"
SLEEPS = (sys.executable, "-c", "import time; time.sleep(3600)")


class Node:
    """A launcher with a store, on the first node, and an engine."""

    def __init__(self, folder: Path, node: int, ports: list[int], stack: ExitStack) -> None:
        self.folder = folder
        folder.mkdir()
        store = [Program("store", "store", SLEEPS, ready_path="")] if node == 0 else []
        programs = [*store, Program(f"engine-{node}", "aggregated", SLEEPS, ready_path="")]
        adopted = adopt(programs, folder, "plan", "sglang", node, found_identity(os.getpid()))
        self.processes = adopted.processes
        self.lines: list[str] = []
        addresses = [(LOCAL, port) for port in ports]
        self.reports = stack.enter_context(NodeReports(Report(node, "abc", goes=False), addresses, "key", LOCAL))
        self.launcher = Launcher(
            self.processes, folder, NoDrains(), Limits(Backoff()), lambda: None, self.lines.append, self.reports
        )
        stack.enter_context(running(self.launcher))

    def serves(self) -> bool:
        return all(process.state is State.READY for process in self.processes)


def test_one_order_starts_all_nodes_and_a_lost_one_is_named(tmp_path: Path) -> None:
    ports = free_ports(2)
    with ExitStack() as stack:
        first = Node(tmp_path / "0", 0, ports, stack)
        until(lambda: first.launcher.troubles, "the other node is missed")
        assert first.launcher.troubles == [f"node 1 ({LOCAL}): no launcher has answered yet"]
        state_file.give_start(first.folder)
        with ExitStack() as other:
            second = Node(tmp_path / "1", 1, ports, other)
            until(lambda: first.serves() and second.serves(), "both nodes serve", 60)
            assert "all nodes answer" in first.lines
            assert second.processes[0].entry.started_s >= (first.processes[0].entry.ready_s or 0.0), "after the store"
        until(lambda: any("is lost" in line for line in first.lines), "the loss is named", 60)
        assert f"node 1 ({LOCAL}) is lost" in first.launcher.troubles[0]
        assert first.serves(), "what is left goes on"


def test_nothing_starts_without_an_order(tmp_path: Path) -> None:
    ports = free_ports(2)
    with ExitStack() as stack:
        nodes = [Node(tmp_path / str(node), node, ports, stack) for node in range(2)]
        until(lambda: all("all nodes answer" in node.lines for node in nodes), "both answer")
        assert {process.state for node in nodes for process in node.processes} == {State.WAITING}
        state_file.give_start(nodes[1].folder)
        until(lambda: all(node.serves() for node in nodes), "both nodes serve", 60)


def test_a_launcher_that_finds_all_others_at_its_first_look_says_so(tmp_path: Path) -> None:
    with ExitStack() as stack:
        ports = free_ports(2)
        addresses = [(LOCAL, port) for port in ports]
        first = stack.enter_context(NodeReports(Report(0, "abc", goes=False), addresses, "key", LOCAL))
        first.report({}, {}, goes=False)
        second = stack.enter_context(NodeReports(Report(1, "abc", goes=False), addresses, "key", LOCAL))
        until(lambda: not second.troubles(), "the first node answers the second")
        waker, lines = Waker(), list[str]()
        launcher = Launcher([], tmp_path, NoDrains(), Limits(Backoff()), lambda: None, lines.append, second)
        launcher.run(waker, waker.stop)  # type: ignore[arg-type]  # it has what is used of one
        assert lines == ["all nodes answer"]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks late is answered."""
    monkeypatch.setattr(node_reports, "TIMEOUT_S", 900.0)


@contextmanager
def alone() -> Iterator[tuple[NodeReports, int]]:
    """A launcher's reports, and their port."""
    (port,) = free_ports(1)
    with NodeReports(Report(0, "abc", goes=True), [(LOCAL, port)], "key", LOCAL) as nodes:
        yield nodes, port


def asked(port: int, authorization: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(LOCAL, port, timeout=seconds(5))
    connection.request("GET", "/launch", headers={"authorization": authorization})
    answer = connection.getresponse()
    with contextlib.closing(connection):
        return answer.status, answer.read()


def test_an_order_to_start_that_nothing_waits_for_is_not_kept_for_another_launch(tmp_path: Path) -> None:
    adopted = adopt([Program("engine", "aggregated", SLEEPS, ready_path="")], tmp_path, "plan", "sglang", 0,
        found_identity(os.getpid()))  # fmt: skip
    waker, lines = Waker(), list[str]()
    launcher = Launcher(adopted.processes, tmp_path, NoDrains(), Limits(Backoff()), lambda: None, lines.append)
    state_file.give_start(tmp_path)
    launcher.run(waker, waker.stop)  # type: ignore[arg-type]  # it has what is used of one
    assert not state_file.take_start(tmp_path)


@pytest.mark.usefixtures("patient")
def test_a_report_is_given_to_the_key_alone() -> None:
    with alone() as (nodes, port):
        nodes.report({}, {}, goes=False)
        for header, status in (("", 401), ("Bearer other", 401), ("Bearer key", 200)):
            found, body = asked(port, header)
            assert (found, b"abc" in body) == (status, status == 200)


@pytest.mark.usefixtures("patient")
def test_no_node_hears_of_one_that_does_not_yet_say_which_stores_it_runs() -> None:
    with alone() as (nodes, port):
        assert asked(port, "Bearer key") == (404, b"")
        nodes.report({}, {"store": "waiting"}, goes=False)
        assert b'"store": "waiting"' in asked(port, "Bearer key")[1]


@pytest.mark.usefixtures("patient")
def test_clients_that_write_nothing_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reports, "MAX_CONNECTIONS", 4)
    with alone() as (nodes, port), ExitStack() as stack:
        nodes.report({}, {}, goes=False)
        for _ in range(3):
            stack.enter_context(socket.create_connection((LOCAL, port)))
        assert asked(port, "Bearer key")[0] == 200


def test_clients_that_write_slowly_are_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_reports, "MAX_CONNECTIONS", 4)
    with alone() as (nodes, port), ExitStack() as stack:
        nodes.report({}, {}, goes=False)
        slow = [stack.enter_context(socket.create_connection((LOCAL, port))) for _ in range(12)]
        for client in slow:
            client.settimeout(seconds(60))
        until(lambda: all(is_closed(client) for client in slow), "all were closed", 60)
        until(lambda: answers(port), "there is room again")
    assert capfd.readouterr().err == ""


def answers(port: int) -> bool:
    try:
        return asked(port, "Bearer key")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def is_closed(client: socket.socket) -> bool:
    """After one more byte of a header that has no end."""
    try:
        client.sendall(b"x")
        return client.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
