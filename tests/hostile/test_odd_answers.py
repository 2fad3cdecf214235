"""An engine's answer of a shape that its clients' API does not know: read where it is plain, else charged nothing.

Further shapes that are plain are in `tests/apis/cases`.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import httpx
import pytest

from tests.subjects.processes import ProxyProcess, until
from tests.subjects.scripted import Handler, ScriptedEngine
from tests.subjects.stopped import Stopped
from warmroute_proxy.server.base.secrets import new_api_key

MODEL: Final = "kimi-k2.5"
USAGE: Final = {"prompt_tokens": 50, "completion_tokens": 10}
MESSAGES, RESPONSES, GEMINI = "/v1/messages", "/v1/responses", "/v1beta/models/kimi-k2.5"
APIS: Final = (MESSAGES, RESPONSES, GEMINI)


class Said(NamedTuple):
    """What a client was told: the text, the calls as (name, arguments), and whether the model has refused."""

    text: str
    calls: tuple[tuple[str, Any], ...] = ()
    refused: bool = False


def message(reason: str = "stop", **members: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "message": {"role": "assistant", **members}, "finish_reason": reason}]


def delta(**members: Any) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": members, "finish_reason": None}]


def piece(name: str | None = None, arguments: Any = None, **members: Any) -> list[dict[str, Any]]:
    return delta(tool_calls=[{**members, "type": "function", "function": {"name": name, "arguments": arguments}}])


def function(name: str, arguments: Any, **members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **members}


PLAIN: Final[dict[str, tuple[Any, list[Any], Said]]] = {
    "a content that is a list": (
        message(content=[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
        [delta(content=[{"type": "text", "text": "a"}]), delta(content=[{"type": "text", "text": "b"}])],
        Said("ab"),
    ),
    "a refusal": (
        message(content=None, refusal="I will not."),
        [delta(refusal="I will"), delta(refusal=" not.")],
        Said("I will not.", refused=True),
    ),
    "another id with each piece": (
        message(content=None, tool_calls=[function("read", '{"path":"a"}', index=0, id="c1")]),
        [piece("read", '{"path":', index=0, id="c1"), piece(None, '"a"}', index=0, id="c9")],
        Said("", (("read", {"path": "a"}),)),
    ),
    "arguments that are null, as a text": (
        message(content=None, tool_calls=[function("read", "null", id="c1")]),
        [piece("read", "", index=0, id="c1"), piece(None, "null", index=0)],
        Said("", (("read", {}),)),
    ),
    "calls with null arguments, without index and id": (
        message(content=None, tool_calls=[function(name, "null") for name in ("read", "list", "list")]),
        [piece(name, "null") for name in ("read", "list", "list")],
        Said("", (("read", {}), ("list", {}), ("list", {}))),
    ),
    "calls with null arguments, of one index": (
        message(content=None, tool_calls=[function(name, "null", index=0) for name in ("read", "list")]),
        [piece(name, "null", index=0) for name in ("read", "list")],
        Said("", (("read", {}), ("list", {}))),
    ),
    "calls with null arguments, of one id": (
        message(content=None, tool_calls=[function(name, "null", id="c1") for name in ("read", "list")]),
        [piece(name, "null", id="c1") for name in ("read", "list")],
        Said("", (("read", {}), ("list", {}))),
    ),
    "empty calls beside text": (
        message(content="a", tool_calls=[function("", given, id="c1") for given in ("", " ", "null", "{ }")]),
        [
            delta(content="a", function_call={"name": "", "arguments": ""}),
            *[piece("", given, index=at, id="") for at, given in enumerate(["", " ", "null", "{ }"])],
        ],
        Said("a"),
    ),
    "an id after its name": (
        message(content=None, tool_calls=[function("read", '{"path":"a"}')]),
        [piece("read", "", index=0), piece("read", '{"path":"a"}', index=0, id="c1")],
        Said("", (("read", {"path": "a"}),)),
    ),
    "a call in another choice": (
        [*message("tool_calls", content="a"), *message("tool_calls", tool_calls=[function("read", "{}", id="c1")])],
        [delta(content="a"), [{**piece("read", "{}", index=0, id="c1")[0], "index": 1}]],
        Said("a", (("read", {}),)),
    ),
    "an odd usage": (message(content="a"), [delta(content="a")], Said("a")),
}
UNREADABLE: Final[dict[str, tuple[Any, list[Any]]]] = {
    "no choices": ([], []),
    "a content that is a number": (message(content=7), [delta(content="a"), delta(content=7)]),
    "calls that are an object": (message(content=None, tool_calls={"a": 1}), [delta(tool_calls={"a": 1})]),
    "arguments that are a list": (
        message(content=None, tool_calls=[function("read", [1])]),
        [delta(content="a"), piece("read", [1], index=0, id="c1")],
    ),
    "no message": ([{"index": 0, "finish_reason": "stop"}], [[{"index": 0, "delta": 7}]]),
}


class Odd(Stopped):
    """A proxy before an engine that says what it is given."""

    def __init__(self, folder: Any) -> None:
        self.whole: Any = None
        self.pieces: list[Any] = []
        self.usage: Any = USAGE
        self.engine = ScriptedEngine("odd-e0", self.answer)
        self.proxy = ProxyProcess(folder / "p", [self.engine.toml()]).start()
        self.rows = 0

    def answer(self, handler: Handler) -> None:
        if not self.engine.sent().get("stream"):
            body = {"id": "x", "object": "chat.completion", "choices": self.whole, "usage": self.usage}
            handler.reply(200, json.dumps(body).encode())
            return
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]} if self.pieces else {"choices": []}
        usage = {"choices": [], "usage": self.usage}
        handler.stream(*({"id": "x", "choices": each} for each in self.pieces), end, usage, "[DONE]")

    def ask(self, api: str, *, stream: bool, key: str = "") -> httpx.Response:
        with self.proxy.client() as client:
            headers = {"idempotency-key": key} if key else {}
            path, body = asked(api, stream=stream)
            return client.post(path, json=body, headers=headers)

    def prices(self, count: int) -> list[int]:
        """Those of the rows of the last requests."""
        self.rows += count
        rows = sorted(self.proxy.rows(self.rows), key=lambda row: row["opened_at"])
        return [row["price_nanousd"] for row in rows[-count:]]

    def stop(self) -> None:
        self.proxy.stop()
        self.engine.stop()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Odd]:
    with Odd(tmp_path_factory.mktemp("odd")) as made:
        yield made


def asked(api: str, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """The path and the body of a request."""
    if api == MESSAGES:
        tools = [{"name": "read", "input_schema": {"type": "object"}}]
        said = [{"role": "user", "content": "x"}]
        body = {"model": MODEL, "max_tokens": 9, "messages": said, "tools": tools, "stream": stream}
        return api, body
    if api == RESPONSES:
        tools = [{"type": "function", "name": "read", "parameters": {"type": "object"}}]
        return api, {"model": MODEL, "input": "x", "tools": tools, "stream": stream}
    declared = [{"functionDeclarations": [{"name": "read"}]}]
    method = ":streamGenerateContent?alt=sse" if stream else ":generateContent"
    return api + method, {"contents": [{"parts": [{"text": "x"}]}], "tools": declared}


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line for block in text.split("\n\n") for line in block.split("\n") if line.startswith("data: ")]
    return [json.loads(line[6:]) for line in lines]


def of_messages(answer: httpx.Response, *, stream: bool) -> Said:
    if not stream:
        found = answer.json()
        blocks, reason = found["content"], found["stop_reason"]
    else:
        blocks, reason = [], None
        for event in events_of(answer.text):
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                more = event["delta"]
                blocks[-1]["text"] = blocks[-1].get("text", "") + more.get("text", "")
                blocks[-1]["json"] += more.get("partial_json", "")
            elif event["type"] == "message_delta":
                reason = event["delta"]["stop_reason"]
        for block in blocks:
            if block["json"]:
                block["input"] = json.loads(block["json"])
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = tuple((block["name"], block["input"]) for block in blocks if block["type"] == "tool_use")
    return Said(text, calls, reason == "refusal")


def of_responses(answer: httpx.Response, *, stream: bool) -> Said:
    found = events_of(answer.text)[-1]["response"] if stream else answer.json()
    parts = [part for item in found["output"] if item["type"] == "message" for part in item["content"]]
    text = "".join(part["text"] if part["type"] == "output_text" else part["refusal"] for part in parts)
    calls = [item for item in found["output"] if item["type"] == "function_call"]
    refused = any(part["type"] == "refusal" for part in parts)
    return Said(text, tuple((item["name"], json.loads(item["arguments"])) for item in calls), refused)


def of_gemini(answer: httpx.Response, *, stream: bool) -> Said:
    answers = events_of(answer.text) if stream else [answer.json()]
    candidates = [each["candidates"][0] for each in answers]
    parts = [part for candidate in candidates for part in candidate["content"]["parts"]]
    calls = tuple(
        (part["functionCall"]["name"], part["functionCall"]["args"]) for part in parts if "functionCall" in part
    )
    refused = candidates[-1]["finishReason"] == "SAFETY"
    return Said("".join(part.get("text", "") for part in parts), calls, refused)


READERS: Final = {MESSAGES: of_messages, RESPONSES: of_responses, GEMINI: of_gemini}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", APIS)
def test_what_is_plain_is_read_and_charged(odd: Odd, api: str, stream: bool) -> None:
    for shape, (odd.whole, odd.pieces, said) in PLAIN.items():
        odd.usage = USAGE | ({"prompt_tokens_details": 7} if shape == "an odd usage" else {})
        answer = odd.ask(api, stream=stream)
        assert answer.status_code == 200, (shape, answer.text)
        assert (shape, READERS[api](answer, stream=stream)) == (shape, said)
    assert all(price > 0 for price in odd.prices(len(PLAIN)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("api", APIS)
def test_what_is_not_is_charged_nothing(odd: Odd, api: str, stream: bool) -> None:
    odd.usage = USAGE
    for key in ("", "a key"):
        for shape, (odd.whole, odd.pieces) in UNREADABLE.items():
            answer = odd.ask(api, stream=stream, key=key and f"{shape} {api} {stream}")
            assert "cannot be translated" in answer.text or "has no choices" in answer.text, shape
            assert answer.status_code == 502 or (stream and answer.status_code == 200), shape
    assert odd.prices(2 * len(UNREADABLE)) == [0] * 2 * len(UNREADABLE)
    assert "the answer of odd-e0 to request" in odd.proxy.written()


def test_what_another_region_has_charged_is_voided(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The home serves chat, and has charged it before it is known that it cannot be translated here."""
    folder = tmp_path_factory.mktemp("regions")
    keys = (new_api_key()[0], new_api_key()[0])
    body = {"id": "x", "object": "chat.completion", "choices": message(content=7), "usage": USAGE}

    def says_7(handler: Handler) -> None:
        handler.reply(200, json.dumps(body).encode())

    with ScriptedEngine("east-e0", says_7) as of_east, ScriptedEngine("west-e0", says_7) as of_west:
        west_engine = of_west.toml().replace('region = "east"', 'region = "west"')
        with (
            ProxyProcess(folder / "p", [west_engine], region="west", keys=keys) as west,
            ProxyProcess(folder / "p", [of_east.toml()], keys=keys, peer=("west", west.url)) as east,
            east.sees("west").client() as client,
        ):
            text = "tell me " * 3000
            asks = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
            headers = {"x-session-affinity": "roams", "x-warmroute-home": "west"}
            answer = client.post(MESSAGES, json=asks, headers=headers)
            assert answer.status_code == 502, answer.text
            assert of_west.bodies
            assert not of_east.bodies
            until(lambda: [row["outcome"] for row in west.rows()].count("voided") == 1, "the row is voided")
