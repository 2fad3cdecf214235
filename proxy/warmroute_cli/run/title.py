"""Shows turns, hit ratio and cost in the terminal's title while a program runs.

If stdout and stderr of the program go to files, nothing else writes to the terminal. Then the terminal's last line
shows the text instead of the title.
"""

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from warmroute.contract.money import usd
from warmroute_cli.api import Api, ApiError

EVERY_S: Final = 2.0
ASK_S: Final = 2.0


class Marks(NamedTuple):
    """Escape sequences that show text in one place: written at the start, before and after each text, at the end."""

    first: str
    before: str
    after: str
    at_end: str


TITLE: Final = Marks("\x1b[22;0t", "\x1b]0;", "\x07", "\x1b[23;0t")  # xterm pushes the title, and pops it at the end
LAST_LINE: Final = Marks("", "\r", "\x1b[K", "\r\x1b[K")


def marks() -> Marks:
    """The last line if stdout and stderr, which the program inherits, go to files; else the title."""
    return LAST_LINE if all(map(_is_file, (1, 2))) else TITLE


def _is_file(descriptor: int) -> bool:
    """Whether an output goes to a file or to `/dev/null`. False for a pipe: its reader may write to the terminal."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(descriptor))


def text_of(sums: Mapping[str, Any]) -> str:
    """The text to show, such as `warmroute: turn 12, hit 87.3%, 0.0123 USD`."""
    hit = sums["hit_ratio"]
    share = f", hit {hit:.1%}" if hit is not None else ""
    return f"warmroute: turn {sums['turns']:,}{share}, {usd(sums['price_nanousd'])} USD"


@contextlib.contextmanager
def shown(api: Api, since_s: float) -> Iterator[None]:
    """Within this context, show the turns if there is a terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        yield
        return
    ended, where = threading.Event(), marks()

    def show(text: str) -> None:
        _write(terminal, f"{where.before}{text[: _columns(terminal) - 1]}{where.after}")

    thread = threading.Thread(target=keep_showing, args=(api, since_s, show, ended.wait), daemon=True)
    _write(terminal, where.first)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * ASK_S)
        _write(terminal, where.at_end)
        if not thread.is_alive():
            os.close(terminal)


def keep_showing(api: Api, since_s: float, write: Callable[[str], None], wait: Callable[[float], bool]) -> None:
    """Write the turns whenever they change, until `wait` returns that the program has ended."""
    before = ""
    while not wait(EVERY_S):
        try:
            sums = api.ask("/usage", {"by": "session", "since": f"{since_s:.3f}"}, timeout_s=ASK_S)
        except ApiError:
            continue
        text = text_of(sums)
        if sums["turns"] and text != before:
            write(text)
            before = text


def _columns(terminal: int) -> int:
    try:
        return os.get_terminal_size(terminal).columns or 80
    except OSError:
        return 80


def _write(terminal: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(terminal, text.encode())
