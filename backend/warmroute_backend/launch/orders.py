"""What operators order of a running launcher: files in the state directory, which it takes away when it follows them.

`restart NAME` makes `orders/NAME.restart`. A file needs no port and no protocol, and an order survives a launcher that
is killed before it has seen it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

FOLDER: Final = "orders"
_RESTART: Final = ".restart"
MAX_ORDERS: Final = 64


def give_restart(state_dir: Path, name: str) -> None:
    """Order a restart. Raises: OSError."""
    folder = state_dir / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / f"{name}{_RESTART}").touch()


def take(state_dir: Path) -> Iterator[str]:
    """The names that are to be restarted; each order is given once."""
    folder = state_dir / FOLDER
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir())[:MAX_ORDERS]:
        path.unlink(missing_ok=True)
        if path.name.endswith(_RESTART):
            yield path.name.removesuffix(_RESTART)
