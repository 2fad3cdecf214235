"""The terminal: keys without a return, the alternate screen, its size; all restored at the end."""

import contextlib
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Final

from warmroute_cli.top.screen import Line

ESCAPE_S: Final = 0.05
"""A key like an arrow sends its bytes within this time."""

_KEYS: Final = {"[A": "up", "[B": "down", "[C": "right", "[D": "left"} | {
    "OA": "up", "OB": "down", "OC": "right", "OD": "left"
}  # fmt: skip
_STYLES: Final = {"": "", "bold": "\x1b[1m", "dim": "\x1b[2m", "head": "\x1b[7m", "bad": "\x1b[31m"}
_BEGIN: Final = "\x1b[?1049h\x1b[?25l"
_END: Final = "\x1b[?25h\x1b[?1049l"


class Terminal:
    """The controlling terminal while `opened` lasts."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def size(self) -> tuple[int, int]:
        found = shutil.get_terminal_size()
        return found.columns, found.lines

    def key(self, timeout_s: float) -> str | None:
        """The next key: a character, or `up`, `down`, `left`, `right`; None if none came in time."""
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
    """The alternate screen, and keys without a return."""
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
