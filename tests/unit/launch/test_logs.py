"""Logs that are rotated while a process writes to them."""

from pathlib import Path

from warmroute_backend.launch.start_log import KEPT_LOGS, TAIL_BYTES, end_of, rotate, tail


def test_a_log_that_is_open_goes_on_in_the_empty_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    with log.open("ab", buffering=0) as file:
        for number in range(KEPT_LOGS + 2):
            file.write(f"{number}\n".encode() * 10)
            assert rotate(log, 10)
            assert log.stat().st_size == 0
        file.write(b"the end\n")
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["a.log", *[f"a.log.{number}" for number in range(1, KEPT_LOGS + 1)]]
    assert (tmp_path / "a.log.1").read_text().startswith(f"{KEPT_LOGS + 1}\n")
    assert log.read_text() == "the end\n"
    assert not rotate(log, 10)


def test_a_tail_splits_bars_and_begins_where_it_is_told(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"old\nbar 1%\rbar 2%\r\nnew\n\n")
    assert tail(log, 10) == ["old", "bar 1%", "bar 2%", "new"]
    assert tail(log, 2) == ["bar 2%", "new"]
    assert tail(log, 10, 4) == ["bar 1%", "bar 2%", "new"]
    assert tail(log, 10, 10_000) == ["old", "bar 1%", "bar 2%", "new"], "it was rotated since"
    assert tail(tmp_path / "none.log", 10) == []
    assert end_of(tmp_path / "none.log") == 0


def test_a_tail_reads_a_bounded_part(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 100 + b"\n" + b"y" * TAIL_BYTES)
    assert tail(log, 10) == ["y" * TAIL_BYTES]
