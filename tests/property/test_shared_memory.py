"""The memory that processes share: what is read was written whole, in order, and what is missed is said."""

import os
import signal
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.processes.shared_memory import MAX_BYTES, LaneReader, SharedMemory

RING: Final = 4096


@given(st.lists(st.one_of(st.binary(max_size=900), st.none()), max_size=60))
def test_a_reader_gets_all_messages_in_order_or_is_told_that_it_missed_some(steps: list[bytes | None]) -> None:
    lane = SharedMemory(1, RING).lanes[0]
    reader = LaneReader(lane)
    unread: list[bytes] = []
    for step in [*steps, None]:
        if step is not None:
            assert lane.append(step)
            unread.append(step)
            continue
        read = list(reader.read())
        assert read == unread[len(unread) - len(read) :]
        assert reader.missed == (len(read) < len(unread))
        assert not reader.behind
        reader.missed = False
        unread.clear()


@given(st.lists(st.binary(max_size=900), max_size=40))
def test_a_reader_that_comes_late_begins_with_what_is_still_there(messages: list[bytes]) -> None:
    lane = SharedMemory(1, RING).lanes[0]
    for message in messages:
        lane.append(message)
    read = list(LaneReader(lane).read())
    assert read == messages[len(messages) - len(read) :]
    assert len(read) == len(messages) or sum(map(len, read)) > RING // 2


def test_what_is_too_long_is_not_sent() -> None:
    lane = SharedMemory(1, RING).lanes[0]
    assert not lane.append(bytes(RING))
    assert not lane.publish(bytes(MAX_BYTES + 1))
    assert not LaneReader(lane).behind
    assert lane.report() is None


@given(st.lists(st.binary(max_size=100), min_size=1, max_size=10))
def test_a_report_is_the_last_one(reports: list[bytes]) -> None:
    first, second = SharedMemory(2, RING).lanes
    for report in reports:
        first.publish(report)
        assert first.report() == report
    assert second.report() is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_row_or_message_is_torn_while_another_process_writes_and_is_killed() -> None:
    """A report and a message of one repeated byte, of a length that goes with it: torn ones would mix two."""
    shared_memory = SharedMemory(1, RING)
    lane = shared_memory.lanes[0]
    seen: set[int] = set()
    for _ in range(3):
        writer = os.fork()
        if not writer:
            number = 0
            while True:
                number += 1
                lane.publish(bytes([number % 251]) * (1000 + number % 251))
                lane.append(bytes([number % 251]) * (1 + number % 251))
        try:
            reader = LaneReader(lane)
            messages = 0
            while messages < 3000:
                report = lane.report()
                assert report is None or report == bytes([report[0]]) * (1000 + report[0])
                for message in reader.read():
                    assert message == bytes([message[0]]) * (1 + message[0])
                    seen.add(message[0])
                    messages += 1
                    if messages % 50 == 0:
                        break
        finally:
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
        report = lane.report()
        assert report is not None, "a writer that was killed leaves its last whole report"
        assert report == bytes([report[0]]) * (1000 + report[0])
    assert len(seen) == 251
