"""What operators order of a launcher that runs: files in the state directory, which it takes away when it follows them.

`restart NAME` makes `orders/NAME.restart`, `start` makes `orders/start`. A file needs no port and no protocol, and an
order survives a launcher that is killed before it has seen it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = "orders"
_RESTART: Final = ".restart"
_START: Final = "start"
MAX_ORDERS: Final = 64


def give_restart(state_dir: Path, name: str) -> None:
    """Order a restart. Raises: OSError."""
    folder = state_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"{name}{_RESTART}").touch()


def give_start(state_dir: Path) -> None:
    """Order the start of all nodes. Raises: OSError."""
    folder = state_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / _START).touch()


def take_start(state_dir: Path) -> bool:
    """Whether a start is ordered; it is given once."""
    try:
        (state_dir / FOLDER / _START).unlink()
    except FileNotFoundError:
        return False
    return True


def take(state_dir: Path) -> Iterator[str]:
    """The names that are to be restarted; each order is given once."""
    folder = state_dir / FOLDER
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir())[:MAX_ORDERS]:
        if path.name == _START:
            continue
        path.unlink(missing_ok=True)
        if path.name.endswith(_RESTART):
            yield path.name.removesuffix(_RESTART)
