"""A network namespace for each region, a line between each two, and how those lines break.

All of them are made in the network and mount namespace of the calling process, which is one of its own: `reentered`
starts a command so. They end with the last process in them, also where that is killed, and no packet leaves them.

    clients 10.99.0.1 --- each region 10.99.N.1 --- each other region

A line is a veth pair, whose ends are named by where they lead to. A region is reached by its own address alone, so it
has the same name for all.
"""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CLIENTS: Final = "clients"
RUN_DIR: Final = Path("/run/netns")
_ASKS: Final = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], *[each.encode() for each in sys.argv[2:]])
sys.stdout.buffer.write(urllib.request.urlopen(request, timeout=30).read())
"""
_CLONE_NEWNET: Final = 0x40000000
_NEEDED: Final = {
    "ip": "iproute2",
    "nft": "nftables",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}


def missing() -> str:
    """What this machine lacks, in one line; empty: nothing."""
    if os.geteuid() != 0:
        return "regions as network namespaces need root"
    lacking = sorted({package for program, package in _NEEDED.items() if shutil.which(program) is None})
    if lacking:
        return f"regions as network namespaces need {', '.join(lacking)}: run scripts/stores install"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], check=False, capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"this kernel makes no namespaces: {tried.stderr.strip()}"


def reentered(command: Sequence[str]) -> list[str]:
    """The command line that runs a command in namespaces of its own, where nothing of the machine's network is."""
    return ["unshare", "--net", "--mount", *command]


class Network:
    """The namespaces of a run and the lines between them."""

    def __init__(self, regions: Sequence[str]) -> None:
        self.regions = tuple(regions)
        self._numbers = {CLIENTS: 0} | {region: number for number, region in enumerate(regions, 1)}

    def make(self) -> None:
        """All of it."""
        _run("mount", "-t", "tmpfs", "tmpfs", str(_made(RUN_DIR)))
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "address", "add", f"{self.address(CLIENTS)}/32", "dev", "lo")
        for region in self.regions:
            _run("ip", "netns", "add", region)
            self._in(region, "ip", "link", "set", "lo", "up")
            self._in(region, "ip", "address", "add", f"{self.address(region)}/32", "dev", "lo")
        for number, region in enumerate(self.regions):
            for other in (CLIENTS, *self.regions[:number]):
                self._join(region, other)
        for region in self.regions:
            self._in(region, "nft", "add", "table", "inet", "lines")
            chain = "{ type filter hook input priority 0; }"
            self._in(region, "nft", "add", "chain", "inet", "lines", "in", chain)

    def address(self, place: str) -> str:
        """Of a region, or of the clients."""
        return f"10.99.{self._numbers[place]}.1"

    def enter(self, place: str) -> list[str]:
        """What stands before a command that runs there."""
        return [] if place == CLIENTS else ["nsenter", f"--net={RUN_DIR / place}"]

    # What breaks

    def set_line(self, region: str, other: str, *, up: bool) -> None:
        """Take the end of a line in `region` down, or put it up again. Who sends there is told that there is no way;
        who sends at the other end is told nothing.
        """
        self._in(region, "ip", "link", "set", other, "up" if up else "down")
        if up:  # its routes went with it
            self._route(region, other)

    def drop(self, region: str, other: str, percent: int) -> None:
        """Lose so many packets of those that come from `region` to `other`; 100: all of that direction."""
        chosen = [] if percent == 100 else ["numgen", "random", "mod", "100", "<", str(percent)]
        self._in(other, "nft", "add", "rule", "inet", "lines", "in", "iifname", region, *chosen, "drop")

    def drop_nothing(self) -> None:
        """All packets pass again."""
        for region in self.regions:
            self._in(region, "nft", "flush", "chain", "inet", "lines", "in")

    # Inside

    def _join(self, region: str, other: str) -> None:
        place = [] if other == CLIENTS else ["netns", other]
        _run("ip", "link", "add", other, "netns", region, "type", "veth", "peer", "name", region, *place)
        self.set_line(region, other, up=True)
        self.set_line(other, region, up=True)

    def _route(self, here: str, there: str) -> None:
        to, by = f"{self.address(there)}/32", self.address(here)
        self._in(here, "ip", "route", "replace", to, "dev", there, "src", by)

    def _in(self, place: str, *command: str) -> None:
        _run(*self.enter(place), *command)


def asked_inside(enter: Sequence[str], url: str, body: str = "") -> bytes | None:
    """What answers at a URL in the place that `enter` leads to; None where that is not 200."""
    command = [*enter, sys.executable, "-S", "-c", _ASKS, url, *([body] if body else [])]
    asked = subprocess.run(command, check=False, capture_output=True)
    return None if asked.returncode else asked.stdout


def move_thread_to(region: str) -> None:
    """Put the calling thread into the namespace of a region."""
    with (RUN_DIR / region).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"this thread cannot enter {region}")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
