"""What an API has to say for itself, so that one request path and one exchange serve it: two interfaces."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from warmroute.contract.changes import Changes
from warmroute_proxy.dialects.chat_answers import has_surrogate, whole_pairs
from warmroute_proxy.dialects.chat_draft import ChatRequest
from warmroute_proxy.dialects.raw_json import BadRequest, Piece
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.config import ModelConfig
from warmroute_proxy.server.base.errors import Refusal, quoted
from warmroute_proxy.server.base.schema import Operation, Schema
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.http.exchange import Exchange, Request

Headers = Iterable[tuple[str, str]]

EVENTS: Final = "text/event-stream; charset=utf-8"
CHAT_ALONE: Final = "{} is not served here, only conversations and completions: set another base_url for it"


class Events(Protocol):
    """The events of one answer. `ended`: nothing may follow."""

    ended: bool

    def feed(self, data: bytes) -> bytes:
        """Translate some bytes of a chat stream. Raises: ValueError, if they are not a chat stream."""

    def check(self) -> None:
        """Raises: ValueError, if what has come so far is not an answer that can be completed."""

    def gathered_bytes(self) -> int:
        """How much is kept of what has come, for events that are still to come."""

    def error(self, status: int, message: str, code: object) -> bytes:
        """End the stream with an error, given in chat's terms."""


class Translated(Protocol):
    """A request in chat's terms, and what its answer is translated by. `receipt_id` is without its prefix."""

    pieces: list[Piece]
    """The body of the chat completion, until somebody takes it."""

    @property
    def changes(self) -> Changes:
        """What is not in the chat completion, or not as it came; the receipt says so."""

    @property
    def unlisted(self) -> frozenset[str]:
        """The members that a tenant may want to be refused: the proxy does not know them."""

    @property
    def stream_type(self) -> str:
        """The content type of a streamed answer."""

    def answer(self, raw: bytes, receipt_id: str) -> bytes:
        """A whole answer of chat in the dialect. Raises: ValueError, if it cannot be read."""

    def events(self, receipt_id: str) -> Events:
        """The translator of a streamed answer."""


class TranslatedChat:
    """What all APIs keep of a request."""

    stream_type = EVENTS

    def __init__(self, found: ChatRequest) -> None:
        self.pieces, found.pieces = found.pieces, []
        self.unlisted = found.unlisted
        self.changes = found.changes()


class Dialect(Protocol):
    """One API. The methods with a body are for what not every API has: paths with a model in them, lists of models in
    its own shape, conversations that the proxy keeps.
    """

    route: str
    """Of its rows, metrics and errors."""

    vendor: str = ""
    """Whose API it is, as the description of the proxy names it."""

    paths: tuple[str, ...] = ()
    """Those that are served, if they are known by name."""

    prefix: str = ""
    """How its paths begin, if not with `/v1/`."""

    key_header: str = ""
    """Where its clients have their keys, if not in `Authorization`."""

    strays: tuple[tuple[tuple[str, ...], str], ...] = ()
    """How paths end that its clients ask in vain, and what they are told; `{}` is the path."""

    operations: Mapping[str, Operation] = {}
    error_schema: Mapping[str, Schema] = {}
    """Its error object by its name in OpenAPI; none if that is OpenAI's."""

    def serves(self, path: str) -> bool:  # noqa: ARG002
        """Whether a path is served that is not known by name."""
        return False

    def has_its_shape(self, path: str) -> bool:
        """Whether the clients of a path read errors of this API."""
        return path in self.paths or self.serves(path)

    def cut_key(self, request: Request) -> None:  # noqa: ARG002
        """Take an API key out of a request's query, so that nothing behind this sees it there."""
        return

    def stray(self, path: str) -> Refusal | None:
        """What a client is told that asks a path in vain."""
        for ends, text in self.strays:
            if path.endswith(ends):
                return Refusal(400, text.format(quoted(path)), code="api_not_served")
        return None

    def lists_models(self, path: str, headers: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Whether a client that asks for models reads them in this API's shape."""
        return False

    def model_card(self, model: ModelConfig) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def model_list(self, models: Sequence[ModelConfig]) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def counts(self, path: str) -> bool:
        """Whether a path of its counts tokens."""

    def translate(self, path: str, query: bytes, body: bytes, terms: Terms, work: TranslationWork) -> Translated:
        """A request in chat's terms; its texts are what the rules of its model leave. Raises: BadRequest, TooMuch."""

    def count(self, tokens: int, *, estimated: bool) -> bytes:
        """How many tokens a prompt has; `estimated`: about."""

    def status(self, status: int) -> int:
        """The status in place of one of chat's."""

    def error(self, status: int, message: str, code: object, param: object) -> bytes:
        """The error object of an error of chat."""

    def headers(self, headers: Headers, receipt_id: str) -> Headers:
        """The headers of an answer, given those of chat. `receipt_id`: whole, empty if there is none."""

    def elsewhere(self, path: str, query: bytes) -> Callable[[bytes, Terms], Translated]:
        """What another process translates a body by that is too large for the event loop. Raises: Refusal."""
        return partial(translated_body, self, path, query)

    def translated(self, found: Translated) -> None:  # noqa: ARG002
        """A request was translated in another process."""
        return  # else a type checker takes the method for abstract

    def only_kept(self, found: Translated) -> str | None:  # noqa: ARG002
        """The model of a request that is kept and not answered; None: a model is to answer."""
        return None

    def kept_answer(self) -> bytes:
        """The events of the answer to a request that is only kept."""
        return b""

    def begins(self, lineage: int) -> None:  # noqa: ARG002
        """A request was read, and goes on with the conversation of this lineage."""
        return


class Sockets(Protocol):
    """What opens the WebSockets of an API."""

    def open(self, request: Request, exchange: Exchange) -> None:
        """Take the offer of a client whose key was checked. Raises: Refusal, if it is malformed."""


class DialectRefusal(Refusal):
    """A refusal as the clients of a dialect know it."""

    def __init__(self, dialect: Dialect, refusal: Refusal) -> None:
        status, after_s = dialect.status(refusal.status), refusal.retry_after_s
        super().__init__(
            status, refusal.message, code=refusal.code, param=refusal.param, retry_after_s=after_s,
            headers=refusal.headers,
        )  # fmt: skip
        self._dialect = dialect

    def body(self) -> bytes:
        return self._dialect.error(self.status, self.message, self.code, self.param)


def translated_body(dialect: Dialect, path: str, query: bytes, raw: bytes, terms: Terms) -> Translated:
    """A body in chat's terms, away from the event loop. Raises: Refusal, TooMuch."""
    return translated(partial(dialect.translate, path, query), raw, terms, TranslationWork())


def translated(
    by: Callable[[bytes, Terms, TranslationWork], Translated], raw: bytes, terms: Terms, work: TranslationWork
) -> Translated:
    """A body in chat's terms; with U+FFFD in place of half a surrogate pair that stands in the way. Raises: Refusal."""
    try:
        try:
            found = by(raw, terms, work)
        except (BadRequest, msgspec.DecodeError):
            if not has_surrogate(raw) or (mended := whole_pairs(raw)) == raw:
                raise
            found = by(mended, terms, work)
    except BadRequest as error:
        raise Refusal(400, str(error), code=error.code, param=error.path) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Refusal(400, "the request body is not valid JSON", code="invalid_json") from None
    if found.unlisted and terms.tenant.unlisted_fields.value == "refuse":
        unknown = min(found.unlisted)
        raise Refusal(400, f"{unknown}: is not a field that the proxy knows; remove it", code="unknown_field")
    return found
