"""An API that the proxy has never heard of is served by one object and a line in the table of paths."""

import hashlib
import json
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.field.fuzz.body_template import SECRETS
from tests.subjects.documents import config_of
from tests.unit.contract.test_money_receipt import SOUND

from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute.contract.conversations import Conversations
from warmroute.contract.receipt import check
from warmroute_proxy.dialects.chat_answers import read_answer
from warmroute_proxy.dialects.raw_json import BadRequest, Piece, encode
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.arrival import Arrivals
from warmroute_proxy.server.authentication import Authentication
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.dialects import routes
from warmroute_proxy.server.dialects.dialect import Dialect
from warmroute_proxy.server.endpoint import PublicEndpoint
from warmroute_proxy.server.http.exchange import Exchange, Request
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.request_parser import RequestParser
from warmroute_proxy.server.request.request_metrics import RequestMetrics

PATH = "/v1/toy"
ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "hello"}}], "usage": SOUND}).encode()


class Said:
    """A translated request."""

    changes: Changes = NO_CHANGES
    unlisted: frozenset[str] = frozenset()
    stream_type = "text/toy"

    def __init__(self, text: str) -> None:
        chat = {"model": "m", "messages": [{"role": "user", "content": text}]}
        self.pieces: list[Piece] = [msgspec.json.encode(chat)]

    def answer(self, raw: bytes, receipt_id: str) -> bytes:
        choice, usage = read_answer(raw)
        counts = {"input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        cached = {"input_tokens_details": {"cached_tokens": usage.cached()}}
        return encode({"heard": choice.message.text(), "usage": {**counts, **cached, **usage.receipt()}})

    def events(self, receipt_id: str) -> Any:
        raise AssertionError(f"{receipt_id} is not streamed")


class Toy(Dialect):
    """An API of one member."""

    route = PATH
    vendor = "Toys"

    def translate(self, path: str, query: bytes, body: bytes, terms: Terms, work: TranslationWork) -> Said:
        text = msgspec.json.decode(body).get("say")
        if text is None:
            raise BadRequest("say", "is missing")
        return Said(text)

    def status(self, status: int) -> int:
        return 418 if status == 400 else status

    def error(self, status: int, message: str, code: object, param: object) -> bytes:
        return json.dumps({"toy_says_no": message}).encode()


class Client(Exchange):
    def __init__(self, request: Request) -> None:
        self.request = request
        self.answers: list[tuple[int, Any]] = []
        self.started = self.ended = False

    def respond(self, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
        self.ended = True
        self.answers.append((status, json.loads(body)))


class Asked(NamedTuple):
    """What came out of the front door."""

    route: str
    prompt: Any


class FrontDoor:
    """The public endpoint before an engine that answers at once."""

    def __init__(self) -> None:
        key = hashlib.sha256(b"k").hexdigest()
        config = config_of(secret={"file": "secret"}, tenant=[{"name": "t", "key_sha256": [key]}])
        self.asked: list[Asked] = []
        loop: Any = SimpleNamespace()
        parser = RequestParser(config, Callers(SECRETS, Conversations("x")), loop, Metrics())
        router = SimpleNamespace(working_set=SimpleNamespace(turns_of_open={}))
        path: Any = SimpleNamespace(
            engines=SimpleNamespace(ids=SimpleNamespace(receipt=lambda: "wr-1")),
            placing=SimpleNamespace(router=router),
            open_requests=SimpleNamespace(closed=False),
            metrics=RequestMetrics(Metrics()),
        )
        unused: Any = None
        ledger: Any = SimpleNamespace(healthy=True)
        new_request: Any = self._request
        authentication = Authentication(config, None, unused)
        arrivals = Arrivals(parser, authentication, ledger, unused, path, new_request)
        self.endpoint = PublicEndpoint(
            arrivals, parser, parser.callers, authentication, unused, {}, unused, path.metrics
        )

    def _request(self, _path: Any, exchange: Exchange, read: Any, _id: str) -> Any:
        chat = json.loads(bytes(exchange.request.body))
        self.asked.append(Asked(read.parsed.route, chat["messages"][0]["content"]))
        begin: Callable[[], None] = lambda: exchange.respond(200, (), ANSWER)  # noqa: E731
        return SimpleNamespace(begin=begin)

    def ask(self, body: bytes, key: str = "Bearer k", method: str = "POST") -> tuple[int, Any]:
        request = Request(0.0, method, PATH, {"authorization": key})
        request.body, request.length = body, len(body)
        client = Client(request)
        try:
            self.endpoint.on_head(request)
        except Refusal as refusal:
            client.refuse(refusal)
        else:
            self.endpoint.handle(request, client)
        (answer,) = client.answers
        return answer


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> FrontDoor:
    table: Any = routes.DIALECT_OF_PATH
    monkeypatch.setitem(table, PATH, Toy())
    return FrontDoor()


def test_its_requests_reach_an_engine_as_chat_and_its_clients_get_its_answers(door: FrontDoor) -> None:
    status, answer = door.ask(b'{"say":"hi"}')
    assert (status, answer["heard"]) == (200, "hello")
    assert door.asked == [Asked(PATH, "hi")]
    assert check(answer["usage"]) == []


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"body": b"{}"}, 418, "say: is missing"),
        ({"body": b"{"}, 418, "the request body is not valid JSON"),
        ({"body": b'{"say":"hi"}', "key": "Bearer other"}, 401, "the API key is not known here"),
        ({"body": b"", "method": "GET"}, 405, "GET"),
    ],
)
def test_its_clients_get_refusals_in_its_shape(door: FrontDoor, asked: dict[str, Any], status: int, words: str) -> None:
    found, body = door.ask(**asked)
    assert (found, list(body)) == (status, ["toy_says_no"])
    assert words in body["toy_says_no"]
    assert door.asked == []
