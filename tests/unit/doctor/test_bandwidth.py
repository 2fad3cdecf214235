"""Measurements by `ib_write_bw` and `all_reduce_perf`: scripts of these names print outputs that were published.

The first is of a card with 200 Gbit/s (ROCm's documentation of cluster networking), the second of two A100 with
`NCCL_DEBUG=INFO`, whose lines come between the rows.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.subjects.processes import until
from tests.unit.doctor.node import GPUS, tree
from tests.unit.plan.plans import kind

from warmroute_backend.doctor import bandwidth
from warmroute_backend.doctor.bandwidth import nccl_gb_s, of_cards, of_links, rdma_gbit_s
from warmroute_backend.doctor.facts import Gpus, Level, Rdma
from warmroute_backend.doctor.host import read_rdma

pytestmark = pytest.mark.full

RDMA = """\
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             204.12             203.85            0.388818
Conflicting CPU frequency values detected: 1500.000000 != 3300.016000. CPU Frequency is not max.
 1048576    5000             204.57             204.57            0.024387
---------------------------------------------------------------------------------------
"""
NCCL = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
    134217728      33554432     float     sum      -1    857.6  156.51  156.51      0    819.6  163.76  163.76      0
    268435456      67108864     float     sum      -1   1445.2  185.74  185.74      0   1441.9  186.17  186.17      0
    536870912     134217728     float     sum      -1   2789.9  192.43  192.43      0   2793.6  192.18  192.18      0
3767c65d25c4:880:880 [1] NCCL INFO comm 0x55ba65abd9d0 rank 0 nranks 2 cudaDev 0 busId a4000 - Destroy COMPLETE
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 179.465
#
"""
NO_DEVICE = "Couldn't get context for the device\nUnable to open the device\n"
Scripts = Callable[..., None]


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripts:
    """Programs of these names in PATH, each with what it prints."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(**printed: str) -> None:
        for name, text in printed.items():
            words = 'printf "* Waiting for client to connect... *\\n"\n' if name == "ib_write_bw" else ""
            (folder / name).write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/ran\n{words}/bin/cat <<"EOF"\n{text}EOF\n')
            (folder / name).chmod(0o755)

    return write


def test_rows_of_both_programs() -> None:
    assert rdma_gbit_s(RDMA) == 204.57
    assert rdma_gbit_s(NO_DEVICE) is None
    assert nccl_gb_s(NCCL) == (192.43, True)
    assert nccl_gb_s(NCCL.replace("values : 0 OK", "values : 3 FAILED")) == (192.43, False)
    assert nccl_gb_s("Test NCCL failure common.cu:958 'unhandled cuda error'") is None


def cards(tmp_path: Path, gbit_s: int) -> tuple[Rdma, ...]:
    return read_rdma(tree(tmp_path, active=2, rate=f"{gbit_s} Gb/sec (4X HDR)"))


def test_each_active_card_writes_to_itself_or_to_a_peer(tmp_path: Path, scripts: Scripts) -> None:
    scripts(ib_write_bw=RDMA)
    found = list(of_cards(cards(tmp_path, 200), ""))
    assert [finding.text for finding in found] == [f"mlx5_{card} writes 205 Gbit/s to itself" for card in range(2)]
    assert {finding.level for finding in found} == {Level.OK}
    ran = (tmp_path / "ran").read_text().splitlines()
    assert len(ran) == 4, "a server and a client for each"
    assert all("-d mlx5_" in line and "--report_gbits" in line for line in ran)

    assert next(finding.text for finding in of_cards(cards(tmp_path, 200), "node-1")).endswith("to node-1")
    assert (tmp_path / "ran").read_text().splitlines()[-1].endswith(" node-1")


def test_half_the_rate_of_a_link_is_a_warning_and_an_error_is_said(tmp_path: Path, scripts: Scripts) -> None:
    scripts(ib_write_bw=RDMA)
    slow = next(of_cards(cards(tmp_path, 400), ""))
    assert (slow.level, slow.text) == (Level.WARNING, "mlx5_0 writes 205 Gbit/s to itself, and its link has 400")
    scripts(ib_write_bw=NO_DEVICE)
    broken = next(of_cards(cards(tmp_path, 400), ""))
    assert broken.text == "mlx5_0 cannot write to itself: Unable to open the device"


SILENT_SERVER = f"""\
#!{sys.executable}
import socket, sys, time
port = int(sys.argv[sys.argv.index("-p") + 1])
if sys.argv[-1] == "127.0.0.1":
    socket.create_connection(("127.0.0.1", port))
    print({RDMA!r})
else:
    time.sleep(0.3)
    listener = socket.create_server(("", port))
    sys.stdout.write("* Waiting for client to connect... *")
    listener.accept()
    time.sleep(600)
"""
"""What it writes stays in its buffer, as that of `ib_write_bw` does in a pipe."""


@pytest.mark.timeout(60)
def test_a_server_that_says_nothing_is_found_once_it_listens(tmp_path: Path, scripts: Scripts) -> None:
    scripts(ib_write_bw="")
    (tmp_path / "bin" / "ib_write_bw").write_text(SILENT_SERVER)
    assert [finding.level for finding in of_cards(cards(tmp_path, 200), "")] == [Level.OK] * 2


@pytest.mark.timeout(60)
def test_programs_without_an_end_are_ended_with_what_they_started(
    tmp_path: Path, scripts: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts(ib_write_bw="", all_reduce_perf="")
    for name in ("ib_write_bw", "all_reduce_perf"):
        script = f"#!/bin/sh\n/bin/sleep 600 &\necho $$ $! >> {tmp_path}/pids\nprintf '\\377'\nwait\n"
        (tmp_path / "bin" / name).write_text(script)
    monkeypatch.setattr(bandwidth, "RDMA_TIMEOUT_S", seconds(2))
    monkeypatch.setattr(bandwidth, "NCCL_TIMEOUT_S", seconds(2))
    found = [*of_cards(cards(tmp_path, 200)[:1], ""), *of_links(GPUS, None)]
    assert ["no end after" in finding.text for finding in found] == [True] * 2
    pids = (tmp_path / "pids").read_text().split()
    until(lambda: not any(runs(pid) for pid in pids), "all have ended")


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_links_of_gpus_against_those_of_the_plan(scripts: Scripts) -> None:
    scripts(all_reduce_perf=NCCL)
    plan = kind("inside a node")
    (alone,) = of_links(GPUS, None)
    assert (alone.level, alone.text) == (Level.OK, "8 GPUs reduce at 192 GB/s each")
    (slow,) = of_links(GPUS, plan)
    assert (slow.level, slow.text) == (Level.WARNING, "8 GPUs reduce at 192 GB/s each, and NVLink has 450")
    scripts(all_reduce_perf=NCCL.replace("values : 0 OK", "values : 3 FAILED"))
    assert [finding.level for finding in of_links(GPUS, plan)] == [Level.PROBLEM]
    scripts(all_reduce_perf="Test NCCL failure common.cu:958 'unhandled cuda error'\n")
    (failed,) = of_links(GPUS, plan)
    assert (failed.level, failed.text) == (
        Level.PROBLEM,
        "8 GPUs do not reduce: Test NCCL failure common.cu:958 'unhandled cuda error'",
    )


def test_nothing_is_measured_without_cards_gpus_or_programs(tmp_path: Path, scripts: Scripts) -> None:
    del scripts
    assert list(of_cards((), "")) == []
    assert list(of_links(Gpus(problem="none"), None)) == []
    assert list(of_links(replace(GPUS, devices=GPUS.devices[:1]), None)) == []
    notes = [*of_cards(cards(tmp_path, 200), ""), *of_links(GPUS, None)]
    assert [(note.level, note.todo) for note in notes] == [
        (Level.NOTE, "install perftest"),
        (Level.NOTE, "github.com/NVIDIA/nccl-tests, in PATH"),
    ]
