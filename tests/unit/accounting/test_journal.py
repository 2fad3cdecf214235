"""What is in the journal when writing goes wrong."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.machine import seconds

from warmroute_proxy.server.ledger import journal as journal_module
from warmroute_proxy.server.ledger.journal import Journal, JournalError, journal_path, journal_sequences, read_whole


def lines(folder: Path, sequence: int = 1) -> list[bytes]:
    return read_whole(journal_path(folder, sequence), 0, 1 << 20).splitlines()


def short_writes(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    """Lets `os.write` take these many bytes at a time; 0 is a full disk; afterwards all goes well again."""
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if not sizes:
            return real(fd, data)
        size = sizes.pop(0)
        if size == 0:
            raise OSError(28, "No space left on device")
        return real(fd, data[:size])

    monkeypatch.setattr(os, "write", write)


async def test_a_full_disk_is_an_error_and_the_journal_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 1, "process", asyncio.get_running_loop())
    short_writes(monkeypatch, [0, 0])
    with pytest.raises(JournalError, match="No space left"):
        journal.write(b'{"n":1}' + b"\n")
    assert [journal.healthy, journal.healthy] == [False, True]  # each look tries once
    journal.write(b'{"n":2}' + b"\n")
    journal.close()
    assert [line for line in lines(tmp_path) if line] == [b'{"n":2}']


async def test_what_a_full_disk_is_owed_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_module, "MAX_WAITING_BYTES", 16)
    journal = Journal(tmp_path, 1, "process", asyncio.get_running_loop())
    short_writes(monkeypatch, [0])
    with pytest.raises(JournalError):
        journal.write(b"{}\n")
    for number in range(3):
        journal.write_later(b'{"n":%d}\n' % number)
    assert journal.waiting == 2
    assert "1 turns are left to the next start" in caplog.text
    journal.write(b'{"n":9}\n')
    assert journal.waiting == 0
    journal.close()
    assert lines(tmp_path) == [b'{"n":0}', b'{"n":1}', b'{"n":9}']


@pytest.mark.parametrize("kept", [1, 4, 7])
async def test_a_record_that_failed_is_none_however_much_of_it_was_written(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, 1, "process", asyncio.get_running_loop())
    short_writes(monkeypatch, [kept, 0])
    with pytest.raises(JournalError):
        journal.write(b'{"n":1}' + b"\n")
    journal.write(b'{"n":2}' + b"\n")
    journal.close()
    torn, whole = lines(tmp_path)
    assert torn == b'{"n":1}'[:kept] + b"#torn"
    assert whole == b'{"n":2}'


async def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path, 1, "process", asyncio.get_running_loop())
    short_writes(monkeypatch, [3, 2])
    journal.write(b'{"n":1}' + b"\n")
    journal.close()
    assert lines(tmp_path) == [b'{"n":1}']


def test_an_unfinished_last_line_is_not_read_yet(tmp_path: Path) -> None:
    path = journal_path(tmp_path, 1)
    path.write_bytes(b'{"n":1}\n{"n":')
    assert read_whole(path, 0, 1 << 20) == b'{"n":1}\n'
    with path.open("ab") as file:
        file.write(b"2}\n")
    assert read_whole(path, 8, 1 << 20) == b'{"n":2}\n'


def test_a_line_longer_than_a_read_is_read_whole(tmp_path: Path) -> None:
    path = journal_path(tmp_path, 1)
    path.write_bytes(b"x" * 100 + b"\n" + b"y\n")
    assert read_whole(path, 0, 10) == b"x" * 100 + b"\n"
    assert read_whole(path, 101, 10) == b"y\n"


@pytest.mark.parametrize("sync", ["process", "disk"])
async def test_files_rotate_and_lose_nothing(sync: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "ROTATE_BYTES", 100)
    journal = Journal(tmp_path, 1, sync, asyncio.get_running_loop())
    told: list[int] = []
    for number in range(50):
        journal.write(b'{"n":%d}' % number + b"\n")
        journal.when_durable(lambda number=number: told.append(number))  # type: ignore[misc]
    journal.close()
    await asyncio.sleep(0)
    sequences = journal_sequences(tmp_path)
    assert len(sequences) > 3
    assert sequences[0] == 1
    assert [line for sequence in sequences for line in lines(tmp_path, sequence)] == [
        b'{"n":%d}' % number for number in range(50)
    ]
    while len(told) < 50:
        await asyncio.sleep(0)
    assert sorted(told) == list(range(50))


async def test_disk_sync_tells_nobody_before_the_disk_has_it_and_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync, syncs = threading.Event(), []
    real: Callable[[int], None] = os.fdatasync

    def fdatasync(fd: int) -> None:
        may_sync.wait(seconds(10))
        syncs.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    journal = Journal(tmp_path, 1, "disk", asyncio.get_running_loop())
    done = asyncio.Event()
    told: list[int] = []
    for number in range(20):
        journal.write(b"{}\n")
        journal.when_durable(lambda number=number: told.append(number))  # type: ignore[misc]
    journal.when_durable(done.set)
    for _ in range(5):
        await asyncio.sleep(0)
    assert told == []
    may_sync.set()
    await asyncio.wait_for(done.wait(), seconds(10))
    assert told == list(range(20))
    assert len(syncs) == 2  # the first alone, the others together
    journal.close()


class Disk:
    """What `os.fdatasync` does: fail, hang, or what it always does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fails = False
        self.goes_on = threading.Event()
        self.goes_on.set()
        self._real: Callable[[int], None] = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._fdatasync)

    def _fdatasync(self, fd: int) -> None:
        self.goes_on.wait(seconds(60))
        if self.fails:
            raise OSError(5, "Input/output error")
        self._real(fd)


async def settled(journal: Journal, record: bytes) -> None:
    done = asyncio.Event()
    journal.write(record + b"\n")
    journal.when_durable(done.set)
    await asyncio.wait_for(done.wait(), seconds(20))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def healthy(journal: Journal) -> bool:
    return journal.healthy


async def until_healthy(journal: Journal) -> None:
    async with asyncio.timeout(seconds(20)):
        while not healthy(journal):
            await asyncio.sleep(0.01)


async def test_a_disk_that_failed_is_tried_with_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RETRY_EVERY_S", 0.01)
    disk = Disk(monkeypatch)
    disk.fails = True
    journal = Journal(tmp_path, 1, "disk", asyncio.get_running_loop())
    await settled(journal, b'{"n":1}')
    disk.fails = False
    await settled(journal, b'{"n":2}')  # the same file: that it can be synced now says nothing of what it gave up
    assert not healthy(journal)
    await until_healthy(journal)
    await settled(journal, b'{"n":3}')
    assert journal.healthy
    journal.close()
    first, last = journal_sequences(tmp_path)[0], journal_sequences(tmp_path)[-1]
    assert lines(tmp_path, first)[0] == b'{"n":1}'
    assert lines(tmp_path, last)[-1] == b'{"n":3}'
    assert b'{"n":2}' in [line for sequence in journal_sequences(tmp_path) for line in lines(tmp_path, sequence)]


async def test_while_the_disk_fails_no_file_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "RETRY_EVERY_S", 0.0)
    disk = Disk(monkeypatch)
    disk.fails = True
    journal = Journal(tmp_path, 1, "disk", asyncio.get_running_loop())
    await settled(journal, b"{}")
    before = open_files()
    async with asyncio.timeout(seconds(20)):
        while journal_sequences(tmp_path)[-1] < 12:
            assert not healthy(journal)
            await asyncio.sleep(0.001)
    assert open_files() <= before + 2
    journal.close()


async def test_a_folder_that_cannot_be_synced_does_not_send_the_reader_past_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who folds goes on to the next file once it is there: from then on it must be the one that is written."""
    monkeypatch.setattr(journal_module, "ROTATE_BYTES", 10)
    journal = Journal(tmp_path, 1, "disk", asyncio.get_running_loop())

    def fsync(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    journal.write(b'{"n":1,"long":true}' + b"\n")
    journal.write(b'{"n":2}' + b"\n")
    assert lines(tmp_path, journal_sequences(tmp_path)[-1]) == [b'{"n":2}']
    assert not healthy(journal)
    journal.close()


async def test_a_disk_that_hangs_gets_nothing_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "STALLED_S", 0.01)
    disk = Disk(monkeypatch)
    disk.goes_on.clear()
    journal = Journal(tmp_path, 1, "disk", asyncio.get_running_loop())
    done = asyncio.Event()
    journal.write(b"{}\n")
    journal.when_durable(done.set)
    async with asyncio.timeout(seconds(20)):
        while healthy(journal):
            await asyncio.sleep(0.01)
    disk.goes_on.set()
    await asyncio.wait_for(done.wait(), seconds(20))
    assert journal.healthy
    journal.close()
