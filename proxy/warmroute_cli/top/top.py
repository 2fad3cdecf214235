"""`warmroute top`: asks the proxies of a fleet, draws the screen, and obeys keys until `q`."""

import contextlib
import os
import queue
import select
import shutil
import sys
import termios
import threading
import time
import tty
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from warmroute_cli.api import Api
from warmroute_cli.asking import admin_apis
from warmroute_cli.tables import width
from warmroute_cli.top.rates import Counters, Rates, Window
from warmroute_cli.top.reading import FleetReading, read
from warmroute_cli.top.screen import Choice, Line, lines, pressed

ESCAPE_S: Final = 0.05
"""An arrow key sends all of its bytes within this time."""

_KEYS: Final = {"[A": "up", "[B": "down", "[C": "right", "[D": "left"} | {
    "OA": "up", "OB": "down", "OC": "right", "OD": "left"
}  # fmt: skip
_STYLES: Final = {"": "", "bold": "\x1b[1m", "dim": "\x1b[2m", "head": "\x1b[7m", "bad": "\x1b[31m"}
_BEGIN: Final = "\x1b[?1049h\x1b[?25l"
_END: Final = "\x1b[?25h\x1b[?1049l"


class Terminal:
    """The controlling terminal, for use inside a `with opened()` block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> tuple[int, int]:
        found = shutil.get_terminal_size()
        return found.columns, found.lines

    def key(self, timeout_s: float) -> str | None:
        """The next key: a character, `up`, `down`, `left`, `right` or `escape`; None if no key came in time."""
        if not select.select([self._fd], [], [], max(0.0, timeout_s))[0]:
            return None
        read = os.read(self._fd, 1)
        if read != b"\x1b":
            return read.decode("latin-1")
        rest, until = b"", time.monotonic() + ESCAPE_S
        while len(rest) < 2 and select.select([self._fd], [], [], max(0.0, until - time.monotonic()))[0]:
            rest += os.read(self._fd, 1)
        return _KEYS.get(rest.decode("latin-1"), "escape")

    def draw(self, lines: Sequence[Line]) -> None:
        """Draw lines from the first one on, and clear what is below."""
        colours = "NO_COLOR" not in os.environ
        shown = [
            f"{_STYLES[style]}{text}\x1b[0m\x1b[K" if colours and style else f"{text}\x1b[K" for text, style in lines
        ]
        sys.stdout.write("\x1b[H" + "\r\n".join(shown) + "\x1b[J")
        sys.stdout.flush()


@contextlib.contextmanager
def opened() -> Iterator[Terminal]:
    """Show the alternate screen, and read each key at once, without waiting for Enter."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        sys.stdout.write(_BEGIN)
        yield Terminal(fd)
    finally:
        sys.stdout.write(_END)
        sys.stdout.flush()
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


LOOK_S: Final = 0.25
"""The interval at which the loop looks for a new reading and for a new size of the terminal."""

LINES_OF_PAGES: Final = 60
QUITS: Final = frozenset({"q", "Q", "\x03", "\x04"})


def run(arguments: Namespace) -> int:
    """Show the fleet, and return the exit code. 0: done; 1: with `--once`, a region did not answer; 2: not shown."""
    admins = admin_apis(arguments)
    if arguments.once:
        return _once(admins, arguments.every)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        print("warmroute top: this is not a terminal; `--once` prints one screen", file=sys.stderr)
        return 2
    with opened() as terminal:
        return _follow(terminal, Readings(admins, arguments.every))


def _once(admins: Mapping[str, Api], every_s: float) -> int:
    """Print one screen from two readings, `every_s` apart. Rates need both readings, with answers of all regions."""
    window = Window()
    before = read(admins)
    window.add(time.monotonic(), before.counters)
    time.sleep(every_s)
    reading = read(admins)
    rates = window.add(time.monotonic(), reading.counters)
    if before.problems or reading.problems:
        rates = Rates(Counters(), 0.0)
        reading = reading._replace(problems=reading.problems or tuple(f"before: {each}" for each in before.problems))
    for line in lines(reading, rates, Choice(), _clock(), (width(), LINES_OF_PAGES)):
        print(line.text)
    return 1 if reading.problems else 0


class Readings:
    """Reads in a thread, so that keys work while a proxy is slow."""

    def __init__(self, admins: Mapping[str, Api], every_s: float) -> None:
        self.paused = threading.Event()
        self._admins = admins
        self._every_s = every_s
        self._found: queue.SimpleQueue[FleetReading] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> "Readings":
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()

    def newest(self) -> FleetReading | None:
        """The newest reading that this method has not returned before; None if there is no such reading."""
        found = None
        while not self._found.empty():
            found = self._found.get()
        return found

    def _ask(self) -> None:
        while not self._ended.is_set():
            if not self.paused.is_set():
                self._found.put(read(self._admins))
            self._ended.wait(self._every_s)


def _follow(terminal: Terminal, readings: Readings) -> int:
    choice, window = Choice(), Window()
    reading, rates = FleetReading(("asking",)), Rates(Counters(), 0.0)
    with readings:
        drawn: object = None
        while True:
            if (found := readings.newest()) is not None:
                reading = found
                if not reading.problems:
                    rates = window.add(time.monotonic(), reading.counters)
            wanted = lines(reading, rates, choice, _clock(), terminal.size())
            if wanted != drawn:
                terminal.draw(wanted)
                drawn = wanted
            key = terminal.key(LOOK_S)
            if key in QUITS:
                return 0
            if key is not None:
                choice = pressed(choice, key, len(reading.engines))
                (readings.paused.set if choice.paused else readings.paused.clear)()


def _clock() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
