"""Measures how fast network cards and NVLink move data, by perftest and nccl-tests.

The programs are `ib_write_bw` and `all_reduce_perf`. They occupy the cards and some GB of each GPU for seconds, so the
doctor runs them only if asked.

Without a peer, a node writes from each card to itself, which tests the card and its slot but not the cable. With a peer
(another host that runs `ib_write_bw -d CARD`), the node writes over the fabric.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

from warmroute_backend.doctor.facts import Finding, Gpus, Level, Rdma
from warmroute_backend.launch.readiness import is_listening
from warmroute_backend.plan.deployment import Plan

RDMA: Final = "ib_write_bw"
NCCL: Final = "all_reduce_perf"
MESSAGE_BYTES: Final = 1 << 20
ITERATIONS: Final = 5_000
RDMA_TIMEOUT_S: Final = 30.0
NCCL_TIMEOUT_S: Final = 180.0
RATE_SHARE: Final = 0.85
"""The least share of a link's rate without a warning. Headers and congestion cost a few percent; a card in a slot of
half its width loses half.
"""
NVLINK_SHARE: Final = 0.6
"""The least share of NVLink's rate in one direction without a warning: NCCL's ring reaches 370 of 450 GB/s on an H100
(NVIDIA/nccl-tests#212).
"""
MAX_CARDS: Final = 16
MAX_CHARS: Final = 1 << 20
LISTEN_POLL_S: Final = 0.05

_RDMA_ROW: Final = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)(?:\s+[\d.]+)?\s*$", re.MULTILINE)
_NCCL_ROW: Final = re.compile(
    r"^\s*\d+\s+\d+\s+\w+\s+\w+(?:\s+-?\d+)?"
    r"\s+[\d.]+\s+[\d.]+\s+(?P<out_of_place>[\d.]+)\s+\S+"
    r"\s+[\d.]+\s+[\d.]+\s+(?P<in_place>[\d.]+)\s+\S+\s*$",
    re.MULTILINE,
)


def rdma_gbit_s(text: str) -> float | None:
    """The average rate of the last message size in the output of `ib_write_bw --report_gbits`; None if it has
    no rows.
    """
    rows = _RDMA_ROW.findall(text.partition("BW average[Gb/sec]")[2])
    return float(rows[-1]) if rows else None


def nccl_gb_s(text: str) -> tuple[float, bool] | None:
    """The best bus bandwidth of all sizes, and whether all values were right; None if the output has no rows."""
    rows = _NCCL_ROW.findall(text)
    if not rows:
        return None
    return max(float(rate) for row in rows for rate in row), "# Out of bounds values : 0 OK" in text


def of_cards(ports: Sequence[Rdma], peer: str) -> Iterator[Finding]:
    """Measure a write from each active card to `peer`, a host that runs the server of `ib_write_bw`. If `peer` is
    empty, this node writes to itself.
    """
    active = [port for port in ports if port.is_active][:MAX_CARDS]
    if active and shutil.which(RDMA) is None:
        yield Finding(Level.NOTE, "RDMA", f"there is no {RDMA} to measure with", "install perftest")
        return
    to = peer or "itself"
    for port in active:
        rate = _written(port, peer)
        if isinstance(rate, str):
            yield Finding(
                Level.WARNING, "RDMA", f"{port.device} cannot write to {to}: {rate}", f"{RDMA} -d {port.device}"
            )
            continue
        text = f"{port.device} writes {rate:.0f} Gbit/s to {to}"
        if port.gbit_s is not None and rate < RATE_SHARE * port.gbit_s:
            todo = "the slot's width (lspci -vv, LnkSta), the cable, ACS, the MTU"
            yield Finding(Level.WARNING, "RDMA", f"{text}, and its link has {port.gbit_s:g}", todo)
        else:
            yield Finding(Level.OK, "RDMA", text)


def of_links(gpus: Gpus, plan: Plan | None) -> Iterator[Finding]:
    count = len(gpus.devices)
    if count < 2:
        return
    if shutil.which(NCCL) is None:
        yield Finding(
            Level.NOTE, "NCCL", f"there is no {NCCL} to measure with", "github.com/NVIDIA/nccl-tests, in PATH"
        )
        return
    done = _ran((NCCL, "-b", "64M", "-e", "1G", "-f", "2", "-g", str(count)), NCCL_TIMEOUT_S)
    found = nccl_gb_s(done)
    if found is None:
        yield Finding(
            Level.PROBLEM,
            "NCCL",
            f"{count} GPUs do not reduce: {_last_line(done)}",
            f"NCCL_DEBUG=INFO {NCCL} -g {count}",
        )
        return
    rate, is_right = found
    text = f"{count} GPUs reduce at {rate:.0f} GB/s each"
    if not is_right:
        yield Finding(Level.PROBLEM, "NCCL", f"{text}, and to wrong values", "nvidia-smi -q -d ECC,PAGE_RETIREMENT")
        return
    link = 0.0 if plan is None else plan.cluster.gpu.link_gb_s
    if rate < NVLINK_SHARE * link:
        todo = "nvidia-smi nvlink -s; systemctl status nvidia-fabricmanager"
        yield Finding(Level.WARNING, "NCCL", f"{text}, and NVLink has {link:g}", todo)
    else:
        yield Finding(Level.OK, "NCCL", text)


def _written(port: Rdma, peer: str) -> float | str:
    """The rate in Gbit/s, or the reason why no rate was measured."""
    command = [RDMA, "-d", port.device, "-i", str(port.port), "-F", "--report_gbits"]
    command += ["-s", str(MESSAGE_BYTES), "-n", str(ITERATIONS)]
    if peer:
        text = _ran((*command, peer), RDMA_TIMEOUT_S)
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            at = free.getsockname()[1]
        command += ["-p", str(at)]
        try:
            with _started(command, 2 * RDMA_TIMEOUT_S) as server:
                _wait_until_it_listens(server, at)
                text = _ran((*command, "127.0.0.1"), RDMA_TIMEOUT_S)
        except OSError as error:
            return f"{RDMA}: {error.strerror}"
    rate = rdma_gbit_s(text)
    return _last_line(text) if rate is None else rate


def _wait_until_it_listens(server: subprocess.Popen[str], port: int) -> None:
    """Wait until `server` listens, has ended or is late. The server would mistake a test connection for its client, so
    this function reads the system's list of sockets. The server's output cannot be used: it stays buffered.
    """
    deadline_s = time.monotonic() + RDMA_TIMEOUT_S
    while server.poll() is None and not is_listening(port) and time.monotonic() < deadline_s:
        time.sleep(LISTEN_POLL_S)


def _ran(command: Sequence[str], timeout_s: float) -> str:
    """The first `MAX_CHARS` of a command's output, or a sentence that says why there is no output."""
    begun_s = time.monotonic()
    try:
        with _started(command, timeout_s) as program:
            assert program.stdout is not None
            text = program.stdout.read(MAX_CHARS)
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    return text if time.monotonic() - begun_s < timeout_s else f"no end after {timeout_s:.0f} s"


@contextlib.contextmanager
def _started(command: Sequence[str], timeout_s: float) -> Iterator[subprocess.Popen[str]]:
    """Run a program, which is ended with its children after the block or after `timeout_s`. Raises: OSError."""
    with subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as program:
        late = threading.Timer(timeout_s, _end, (program,))
        late.start()
        try:
            yield program
        finally:
            late.cancel()
            _end(program)


def _end(program: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it says nothing"
