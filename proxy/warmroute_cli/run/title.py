"""What the turns are, in the title of the terminal, as long as a program runs: its last line is the program's own."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from warmroute.contract.money import usd
from warmroute_cli.api import Api, ApiError

EVERY_S: Final = 2.0
ASK_S: Final = 2.0
_PUSHED: Final = "\x1b[22;0t"  # xterm: the title goes on a stack, and comes back from it
_POPPED: Final = "\x1b[23;0t"


def text_of(sums: Mapping[str, Any]) -> str:
    """Turns, hit and cost, such as `warmroute: turn 12, hit 87.3%, 0.0123 USD`."""
    hit = sums["hit_ratio"]
    share = f", hit {hit:.1%}" if hit is not None else ""
    return f"warmroute: turn {sums['turns']:,}{share}, {usd(sums['price_nanousd'])} USD"


@contextlib.contextmanager
def shown(api: Api, since_s: float) -> Iterator[None]:
    """Show it, where there is a terminal, until this ends."""
    try:
        terminal = os.open("/dev/tty", os.O_WRONLY | os.O_NOCTTY)
    except OSError:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=keep_showing, args=(api, since_s, lambda text: _write(terminal, text), ended.wait), daemon=True
    )
    _write(terminal, _PUSHED)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(2 * ASK_S)
        _write(terminal, _POPPED)
        if not thread.is_alive():
            os.close(terminal)


def keep_showing(api: Api, since_s: float, write: Callable[[str], None], wait: Callable[[float], bool]) -> None:
    """Write the title again whenever the turns are others, until `wait` says that it has ended."""
    before = ""
    while not wait(EVERY_S):
        try:
            sums = api.ask("/usage", {"by": "session", "since": f"{since_s:.3f}"}, timeout_s=ASK_S)
        except ApiError:
            continue
        text = text_of(sums)
        if sums["turns"] and text != before:
            write(f"\x1b]0;{text}\x07")
            before = text


def _write(terminal: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(terminal, text.encode())
