"""The endpoint under test through one API: a bounded number of requests, and all that they have shown."""

import secrets
from typing import Final, NamedTuple

from warmroute.contract.money import Rates
from warmroute_cli.conform.shapes import Asked, shape_of
from warmroute_cli.conform.wire import Endpoint, Exchange

WORDS: Final = (
    "session", "cache", "prefix", "worker", "route", "token", "prompt", "engine", "queue", "batch", "answer", "reader",
    "window", "garden", "harbour", "letter", "market", "number", "office", "planet", "river", "season", "valley",
)  # fmt: skip
HIT_SHARE: Final = 0.5
"""A prompt is found again if the cached tokens are so much of it."""


class TrialOptions(NamedTuple):
    """How to try. `rates`: what the caller says that the endpoint charges; None: not known."""

    prompt_bytes: int = 6_000
    turns: int = 3
    two_tenants: bool = False
    rates: Rates | None = None


class TooMany(Exception):
    """More requests than were announced: a mistake of a check."""


class Trial:
    """What is sent through one API, in order. `allowed`: requests, at most."""

    def __init__(self, endpoint: Endpoint, api: str, model: str, options: TrialOptions, allowed: int) -> None:
        self.endpoint = endpoint
        self.api = api
        self.model = model
        self.options = options
        self.sent: list[Exchange] = []
        self._allowed = allowed

    def prompt(self, size: int = 0) -> str:
        """A prompt that nobody has sent before."""
        beginning = f"Notes {secrets.token_hex(8)}."
        words, length = [beginning], len(beginning)
        while length < (size or self.options.prompt_bytes):
            word = WORDS[secrets.randbelow(len(WORDS))]
            words.append(word)
            length += len(word) + 1
        return " ".join(words)

    def send(self, asked: Asked, tenant: int = 0, *, cancel: bool = False) -> Exchange:
        """Send a request. Raises: TooMany."""
        if len(self.sent) >= self._allowed:
            raise TooMany(f"more than {self._allowed} requests")
        found = self.endpoint.send(self.api, shape_of(self.api, self.model, asked), tenant, cancel=cancel)
        self.sent.append(found)
        return found


def new_session() -> str:
    """A session key that nobody has used before."""
    return secrets.token_hex(12)


def found_again(exchange: Exchange, prompt_tokens: int) -> bool:
    """Whether an answer says that a prompt of so many tokens was cached."""
    return (exchange.counts.cached or 0) >= HIT_SHARE * prompt_tokens


def problem(exchange: Exchange) -> str:
    """What went wrong with a request, in a few words."""
    return f"answered {exchange.status}: {exchange.error or exchange.broken}"[:160]
