"""What real programs send over WebSockets, played again: each agent keeps its session when it connects again."""

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.machine import seconds
from tests.recordings import RecordedTurn, recorded_turns
from tests.subjects.processes import ProxyProcess, until
from tests.subjects.scripted import Handler, ScriptedEngine
from tests.subjects.websockets import Socket

AGENTS: Final = {
    "codex": {2: "main", 3: "main", 4: "sub"},
    "copilot": {2: "main", 3: "main", 4: "sub"},
    "opencode": {3: "main", 4: "sub", 5: "main"},
}
"""Program -> recorded connection -> the agent behind it."""

SESSIONS: Final = {"codex": 1, "copilot": 2, "opencode": 2}
"""Codex's sub-agents name the session of their parent, OpenCode's another one; Copilot CLI's are derived."""


class Model:
    """Says the items that it is given, whatever it is asked; nothing where there are none."""

    def __init__(self) -> None:
        self.output: list[dict[str, Any]] | None = []
        self.asked, self.left, self.asked_again = threading.Event(), threading.Event(), threading.Event()

    def __call__(self, handler: Handler) -> None:
        self.asked.set()
        if self.output is None:
            until(lambda: handler.engine.aborted, "the proxy knows that the client has left")
            self.left.set()
            self.asked_again.wait(seconds(20))  # an engine may take its time to end
            handler.cut()
            return
        self.asked_again.set()
        said: dict[str, Any] = {}
        for item in self.output:
            if item["type"] == "reasoning":
                said["reasoning_content"] = item["summary"][0]["text"]
            elif item["type"] == "message":
                said["content"] = item["content"][0]["text"]
            else:
                calls = said.setdefault("tool_calls", [])
                name = "__".join(filter(None, (item.get("namespace"), item["name"])))
                function = {"name": name, "arguments": item["arguments"]}
                calls.append({"index": len(calls), "id": item["call_id"], "type": "function", "function": function})
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        usage = {"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44}
        handler.stream(
            {**head, "choices": [{"index": 0, "delta": said, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {**head, "choices": [], "usage": usage},
            "[DONE]",
        )


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@contextlib.contextmanager
def before(model: Model, folder: Path) -> Iterator[ProxyProcess]:
    free = '[[model]]\nname = "gpt-5.1-codex"\nfree = true'
    with ScriptedEngine("a0", model) as engine, ProxyProcess(folder / "p", [engine.toml(), free]) as started:
        yield started


@pytest.fixture(scope="module")
def proxy(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    with before(model, tmp_path_factory.mktemp("proxy")) as started:
        yield started


@pytest.fixture(scope="module")
def another(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """It has not seen what `proxy` has."""
    with before(model, tmp_path_factory.mktemp("another")) as started:
        yield started


class Played:
    """A recording before this proxy. What the proxy has said stands where a program repeats what was said to it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._said: dict[str, str] = {}
        self.receipts: list[tuple[str, str]] = []
        """Of each turn that asks the model: its agent, and the id of its receipt."""

    def turn(self, socket: Socket, agent: str, turn: RecordedTurn, **more: str) -> None:
        assert turn.response_id is not None
        assert turn.output is not None
        self._model.output = turn.output
        response = socket.answer(**{**self._message(turn), **more})
        here, recorded = response["id"].removeprefix("resp_"), turn.response_id.removeprefix("resp_")
        self._said[recorded] = here
        for one, other in zip(turn.output, response["output"], strict=True):
            if "encrypted_content" in one:
                self._said[one["encrypted_content"]] = other["encrypted_content"]
        if turn.message.get("generate") is not False:
            self.receipts.append((agent, response["usage"]["warmroute"]["id"]))

    def cut(self, socket: Socket, turn: RecordedTurn) -> None:
        """A turn whose connection ends before it has an answer."""
        self._model.output = None
        for event in (self._model.asked, self._model.left, self._model.asked_again):
            event.clear()
        socket.send(**self._message(turn))
        assert self._model.asked.wait(seconds(20))
        socket.connection.close()
        assert self._model.left.wait(seconds(20))

    def _message(self, turn: RecordedTurn) -> dict[str, Any]:
        text = json.dumps(turn.message)
        for recorded, here in self._said.items():
            text = text.replace(recorded, here)
        found: dict[str, Any] = json.loads(text)
        return found

    def check(self, program: str, proxy: ProxyProcess, keys: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
        """Each agent has one lineage, and one session, by its key of `keys` where it says one. The rows of the turns,
        each with its agent.
        """
        rows = [(agent, proxy.row(receipt)) for agent, receipt in self.receipts]
        lineages = {(agent, row["session"], row["lineage"]) for agent, row in rows}
        assert len(lineages) == 2
        assert len({lineage for _, _, lineage in lineages}) == 2
        assert len({session for _, session, _ in lineages}) == SESSIONS[program]
        with proxy.client() as client:
            for agent, key in keys.items():
                answer = client.get("/v1/usage/receipts?limit=200", headers={"x-session-affinity": key}).json()
                found = {turn["id"] for turn in answer["data"]}
                assert {receipt for of, receipt in self.receipts if of == agent} <= found
        return rows


@pytest.mark.parametrize("program", AGENTS)
def test_an_agent_that_connects_again_has_its_session(program: str, proxy: ProxyProcess, model: Model) -> None:
    played, sockets = Played(model), dict[int, Socket]()
    turns = recorded_turns(f"{program}_websocket")
    with contextlib.ExitStack() as stack:
        for turn in turns:
            if turn.connection not in sockets:
                sockets[turn.connection] = stack.enter_context(Socket(proxy, headers=turn.headers))
            if turn.output is None:
                played.cut(sockets[turn.connection], turn)
            else:
                played.turn(sockets[turn.connection], AGENTS[program][turn.connection], turn)
    named = [turn for turn in turns if "session-id" in turn.headers]
    keys = {AGENTS[program][turn.connection]: turn.headers["session-id"] for turn in named}
    rows = played.check(program, proxy, keys)
    kinds = {(agent, json.loads(row["usage"])["warmroute"].get("kind")) for agent, row in rows}
    assert kinds == {("main", None), ("sub", "sub")}


@pytest.mark.parametrize("program", AGENTS)
def test_agents_on_one_connection_that_names_no_session_are_told_apart(
    program: str, another: ProxyProcess, model: Model
) -> None:
    """By `prompt_cache_key` where their turns have it, else by what each continues."""
    played = Played(model)
    turns = recorded_turns(f"{program}_websocket")
    with Socket(another) as socket:
        for turn in turns:
            if turn.output is not None:
                agent = AGENTS[program][turn.connection]
                played.turn(socket, agent, turn, stream_id=agent)
    named = [turn for turn in turns if "prompt_cache_key" in turn.message]
    keys = {AGENTS[program][turn.connection]: turn.message["prompt_cache_key"] for turn in named}
    played.check(program, another, keys)
