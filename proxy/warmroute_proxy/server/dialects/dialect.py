"""The interfaces that an API implements, so that one request path and one exchange serve all APIs."""

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
    """Translates the events of one streamed answer. `ended`: no event may follow."""

    ended: bool

    def feed(self, data: bytes) -> bytes:
        """Translate some bytes of a chat stream. Raises: ValueError, if they are not a chat stream."""

    def check(self) -> None:
        """Check the stream so far. Raises: ValueError, if it cannot become a complete answer."""

    def gathered_bytes(self) -> int:
        """The number of bytes kept for events that are still to come."""

    def error(self, status: int, message: str, code: object) -> bytes:
        """End the stream with an error, which is given in chat's terms. Returns the last events."""


class Translated(Protocol):
    """A request in chat's terms, and the translator of its answer. A `receipt_id` comes without its prefix `wr-`."""

    pieces: list[Piece]
    """The body of the chat completion, until the body is taken away to be sent."""

    @property
    def changes(self) -> Changes:
        """The parts that the translation left out or changed; the receipt lists them."""

    @property
    def unlisted(self) -> frozenset[str]:
        """The members that the proxy does not know. A tenant's config may refuse them."""

    @property
    def stream_type(self) -> str:
        """The content type of a streamed answer."""

    def answer(self, raw: bytes, receipt_id: str) -> bytes:
        """Translate a whole answer from chat's terms. Raises: ValueError, if it cannot be read."""

    def events(self, receipt_id: str) -> Events:
        """The translator of a streamed answer."""


class TranslatedChat:
    """The part of `Translated` that all APIs share."""

    stream_type = EVENTS

    def __init__(self, found: ChatRequest) -> None:
        self.pieces, found.pieces = found.pieces, []
        self.unlisted = found.unlisted
        self.changes = found.changes()


class Dialect(Protocol):
    """One API. Methods with a body are defaults for what only some APIs have: paths with a model in them, lists of
    models in a separate format, conversations that the proxy keeps.
    """

    route: str
    """The route's name in ledger rows, metrics and errors."""

    vendor: str
    """The vendor of the API, as the proxy's OpenAPI document names it."""

    paths: tuple[str, ...] = ()
    """The served paths that are fixed. `serves` recognises the served paths that are not."""

    prefix: str = ""
    """The beginning of the API's paths, if it is not `/v1/`."""

    counts_first: bool = False
    """Whether a streamed answer begins with the prompt's token count, so that the first chunk has to report it."""

    key_header: str = ""
    """The header in which clients send their key, if it is not `Authorization`."""

    strays: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Endings of paths that clients of this API request but that are not served, with the error's text; `{}` is the
    path."""

    operations: Mapping[str, Operation] = {}
    error_schema: Mapping[str, Schema] = {}
    """The API's error object by its name in OpenAPI; empty if the API has OpenAI's error object."""

    def serves(self, path: str) -> bool:  # noqa: ARG002
        """Whether a path that is not in `paths` is served."""
        return False

    def has_its_shape(self, path: str) -> bool:
        """Whether the clients of a path expect errors in this API's format."""
        return path in self.paths or self.serves(path)

    def cut_key(self, request: Request) -> None:  # noqa: ARG002
        """Remove an API key from a request's query, so that no later code sees it there."""
        return

    def stray(self, path: str) -> Refusal | None:
        """The refusal of a path that ends like one of `strays`; None for other paths."""
        for ends, text in self.strays:
            if path.endswith(ends):
                return Refusal(400, text.format(quoted(path)), code="api_not_served")
        return None

    def lists_models(self, path: str, headers: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Whether a client that asks for models expects them in this API's format."""
        return False

    def model_card(self, model: ModelConfig) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def model_list(self, models: Sequence[ModelConfig]) -> dict[str, Any]:  # noqa: ARG002
        return {}

    def counts(self, path: str) -> bool:  # noqa: ARG002
        """Whether a path of this API counts tokens."""
        return False

    def translate(self, path: str, query: bytes, body: bytes, terms: Terms, work: TranslationWork) -> Translated:
        """Translate a request into chat's terms, and clean its texts by the model's rules.

        Raises: BadRequest, TooMuch.
        """

    def count(self, tokens: int, *, estimated: bool) -> bytes:  # noqa: ARG002
        """The answer to a request that counts a prompt's tokens. `estimated`: the number is an estimate."""
        return b""

    def status(self, status: int) -> int:
        """The API's HTTP status for a status of chat."""
        return status

    def error(self, status: int, message: str, code: object, param: object) -> bytes:
        """The API's error body for an error in chat's terms."""

    def headers(self, headers: Headers, receipt_id: str) -> Headers:  # noqa: ARG002
        """The headers of an answer, from chat's headers. `receipt_id`: with its prefix; empty without a receipt."""
        return headers

    def elsewhere(self, path: str, query: bytes) -> Callable[[bytes, Terms], Translated]:
        """The function that translates a body in another process, if it is too large for the event loop. Raises:
        Refusal."""
        return partial(translated_body, self, path, query)

    def translated(self, found: Translated) -> None:  # noqa: ARG002
        return  # without a statement, a type checker would treat the method as abstract

    def only_kept(self, found: Translated) -> str | None:  # noqa: ARG002
        """The request's model if the proxy only keeps the messages for a later turn; None if the model answers."""
        return None

    def kept_answer(self) -> bytes:
        """The events of the answer to a request that is only kept."""
        return b""

    def begins(self, lineage: int) -> None:  # noqa: ARG002
        """Called once a request was read. `lineage`: identifies the conversation branch that it continues."""
        return


class Sockets(Protocol):
    """Opens the WebSockets of an API."""

    def open(self, request: Request, exchange: Exchange) -> None:
        """Accept the upgrade of a client whose key was checked. Raises: Refusal, if the upgrade is malformed."""


class DialectRefusal(Refusal):
    """A refusal with a dialect's status and error body."""

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
    """Translate a body into chat's terms, outside the event loop. Raises: Refusal, TooMuch."""
    return translated(partial(dialect.translate, path, query), raw, terms, TranslationWork())


def translated(
    by: Callable[[bytes, Terms, TranslationWork], Translated], raw: bytes, terms: Terms, work: TranslationWork
) -> Translated:
    """Translate a body into chat's terms. Raises: Refusal.

    If half of a surrogate pair makes the translation fail, U+FFFD replaces that half.
    """
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
    if found.unlisted and terms.tenant.unlisted_fields == "refuse":
        unknown = min(found.unlisted)
        raise Refusal(400, f"{unknown}: is not a field that the proxy knows; remove it", code="unknown_field")
    return found
