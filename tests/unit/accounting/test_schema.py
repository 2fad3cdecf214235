"""The file of the ledger, opened by several processes of a proxy at once."""

from pathlib import Path
from threading import Barrier, Thread

from warmroute_proxy.server.ledger.schema import connect

OPENERS = 4
FILES = 150


def test_a_new_file_is_opened_by_several_at_once(tmp_path: Path) -> None:
    """SQLite said "database is locked" to 11 of 1,200, and the proxy did not start."""
    failed: list[Exception] = []

    def open_it(path: Path, together: Barrier) -> None:
        together.wait()
        try:
            connect(path).close()
        except Exception as error:
            failed.append(error)

    for number in range(FILES):
        together = Barrier(OPENERS)
        openers = [Thread(target=open_it, args=(tmp_path / f"{number}.sqlite", together)) for _ in range(OPENERS)]
        for each in openers:
            each.start()
        for each in openers:
            each.join()
    assert failed == []
