"""A picker's answers by the rules of agentgateway, as its source has them: `tests.subjects.agentgateway`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway.test_protocol import CHAT, answers
from tests.subjects.agentgateway import DESTINATION, InvalidAddress, routed
from tests.subjects.ext_proc_client import Conversation, body, head
from tests.subjects.gateway import Picker
from tests.subjects.processes import chat
from tests.subjects.scripted import ScriptedEngine
from tests.subjects.stopped import Several

BODY = json.dumps(chat("a")).encode()


@pytest.fixture(scope="module")
def engines() -> Iterator[list[ScriptedEngine]]:
    with Several(ScriptedEngine(f"e{number}", answers) for number in range(2)) as started:
        yield started


def picker(folder: Path, engines: list[ScriptedEngine], count: int) -> Picker:
    return Picker(folder, [engine.toml() for engine in engines], extra=f"picker_addresses = {count}\n")


@pytest.fixture(scope="module")
def one(engines: list[ScriptedEngine], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Picker]:
    with picker(tmp_path_factory.mktemp("one") / "p", engines, 1) as started:
        yield started


def test_with_one_address_the_request_goes_to_an_engine(one: Picker, engines: list[ScriptedEngine]) -> None:
    with one.channel() as channel, Conversation(channel) as asked:
        found = routed(asked.send(head(CHAT, one.keys[0]), body(BODY)), {":path": CHAT})
    assert found.destination in {engine.url.removeprefix("http://") for engine in engines}
    assert json.loads(found.body)["rid"]
    assert found.headers["content-length"] == [str(len(found.body))]


def test_a_clients_own_destination_is_not_the_first_value(one: Picker, engines: list[ScriptedEngine]) -> None:
    own = {DESTINATION: "10.9.9.9:1"}
    first = head(CHAT, one.keys[0], ends=False, method="POST", **own)
    with one.channel() as channel, Conversation(channel) as asked:
        found = routed(asked.send(first, body(BODY)), {":path": CHAT, **own})
    assert found.destination in {engine.url.removeprefix("http://") for engine in engines}


def test_a_refusal_is_the_clients_answer(one: Picker) -> None:
    with one.channel() as channel, Conversation(channel) as asked:
        found = routed(asked.send(head(CHAT, "wr-of-nobody"), body(BODY)), {":path": CHAT})
    assert found.status == 401
    assert json.loads(found.body)["error"]


def test_with_more_addresses_each_request_fails(engines: list[ScriptedEngine], tmp_path: Path) -> None:
    """So docs/how-to/gateway.md has `picker_addresses = 1` for this gateway."""
    with (
        picker(tmp_path / "p", engines, 2) as started,
        started.channel() as channel,
        Conversation(channel) as asked,
        pytest.raises(InvalidAddress, match=","),
    ):
        routed(asked.send(head(CHAT, started.keys[0]), body(BODY)), {":path": CHAT})
