"""The SDK behind a connection that is cut: its retry gets the whole answer, which is computed and counted once."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import warmroute
from tests.machine import seconds
from tests.subjects.processes import DEADLINE_S, chat, until
from warmroute.contract import receipt as contract_receipt

from .test_idempotency import PAIR, Keyed, rows_of


class Cutter:
    """A TCP relay that breaks its first connections at the first byte of an answer, and others when it is told to."""

    def __init__(self, url: str, cuts: int) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._cuts = cuts
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def connections(self) -> int:
        return len(self._pairs)

    def cut(self) -> None:
        """Break all connections."""
        for pair in self._pairs:
            for end in pair:
                _break(end)

    def close(self) -> None:
        _break(self._listener)
        self._accepting.join()  # else it may accept on another listener that gets the same descriptor
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(self._target)
                self._pairs.append((client, server))
                cut = len(self._pairs) <= self._cuts
                threading.Thread(target=self._copy, args=(client, server, False), daemon=True).start()
                threading.Thread(target=self._copy, args=(server, client, cut), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, cut: bool) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and not cut:
                target.sendall(data)
        _break(source)
        _break(target)


def _break(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    with Keyed(tmp_path_factory.mktemp("keyed-sdk"), PAIR) as found:
        yield found


def turn(text: str) -> dict[str, Any]:
    """A turn that takes about a second."""
    return {**chat(text), "metadata": {"script": json.dumps({"output_tokens": 60})}}


@pytest.mark.parametrize("stream", [True, False])
def test_the_answer_is_lost_on_its_way_twice(fleet: Keyed, stream: bool) -> None:
    cutter = Cutter(fleet.proxy.url, 2)
    before = fleet.proxy.turns()
    body = turn(f"lost {stream}")
    with warmroute.OpenAI(base_url=cutter.base_url, api_key=fleet.proxy.keys[0], max_retries=3) as client:
        if stream:
            answer = client.chat.completions.create(**body, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        else:
            answer = client.chat.completions.create(**body)
            text = answer.choices[0].message.content or ""
        report = client.cache.report()
    receipt = warmroute.receipt_of(answer)
    cutter.close()
    assert cutter.connections == 3
    assert receipt is not None
    rows = rows_of(fleet.proxy, receipt["id"])
    usage = json.loads(rows[0]["usage"])
    assert contract_receipt.check(usage) == []
    assert usage["completion_tokens"] == 60
    assert len(text) > 60
    assert rows[0]["outcome"] == "completed"
    assert fleet.proxy.turns() == before + 1
    assert (report.turns, report.receipts, report.receipts_pending, report.violations) == (1, 1, 0, ())
    assert report.cost_nanousd == rows[0]["price_nanousd"]


def test_the_connection_breaks_while_the_answer_is_computed(fleet: Keyed) -> None:
    cutter = Cutter(fleet.proxy.url, 0)
    before = fleet.proxy.turns()
    worked = fleet.finished()
    with warmroute.OpenAI(base_url=cutter.base_url, api_key=fleet.proxy.keys[0], max_retries=1) as client:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(client.chat.completions.create(**turn("computed"))))
        with fleet.engines["d0"].held():  # else it might have ended by then
            thread.start()
            until(fleet.turns_live, "it is computed")
            cutter.cut()
        thread.join(seconds(DEADLINE_S))
    cutter.close()
    assert cutter.connections == 2
    receipt = warmroute.receipt_of(found[0])
    assert receipt is not None
    assert rows_of(fleet.proxy, receipt["id"])[0]["outcome"] == "completed"
    assert fleet.proxy.turns() == before + 1
    assert fleet.finished() == worked + len(PAIR)
