"""What an API has to say for itself, so that one request path and one exchange serve it: two interfaces."""

from collections.abc import Iterable
from typing import Final, Protocol

from warmroute.contract.changes import Changes
from warmroute_proxy.dialects.raw_json import Piece
from warmroute_proxy.dialects.work import TranslationWork
from warmroute_proxy.server.base.terms import Terms

Headers = Iterable[tuple[str, str]]

EVENTS: Final = "text/event-stream; charset=utf-8"


class Events(Protocol):
    """The events of one answer. `ended`: nothing may follow."""

    ended: bool

    def feed(self, data: bytes) -> bytes:
        """Translate some bytes of a chat stream. Raises: ValueError, if they are not a chat stream."""

    def check(self) -> None:
        """Raises: ValueError, where what has come so far is not an answer that can be completed."""

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
        """A whole answer of chat in the dialect. Raises: ValueError, where it cannot be read."""

    def events(self, receipt_id: str) -> Events:
        """The translator of a streamed answer."""


class Dialect(Protocol):
    """One API."""

    route: str
    """Of its rows, metrics and errors."""

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
        """The headers of an answer, given those of chat. `receipt_id`: whole, empty where there is none."""
