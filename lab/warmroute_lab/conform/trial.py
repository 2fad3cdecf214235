"""The endpoint under test through one API: a bounded number of requests, and their answers."""

import secrets
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from warmroute.contract.money import Rates, nano_from_pico
from warmroute_lab.conform.shapes import Asked, shape_of
from warmroute_lab.conform.wire import Endpoint, Exchange

State = Literal["pass", "fail", "not tried"]
FAIL: Final = "fail"
NOT_TRIED: Final = "not tried"


class Cell(NamedTuple):
    """The result of a check. `shown_by`: the requests and answers that show it; a `fail` has at least one."""

    check: str
    state: State
    finding: str
    shown_by: Sequence[Exchange] = ()

    def as_dict(self) -> dict[str, Any]:
        shown = [each.as_dict() for each in self.shown_by] if self.state == FAIL else []
        return {"check": self.check, "state": self.state, "finding": self.finding, "shown_by": shown}


Outcome = tuple[State, str, Sequence[Exchange]]
"""A cell without the name of the check."""


def passed(finding: str) -> Outcome:
    return "pass", finding, ()


def failed(finding: str, *shown_by: Exchange) -> Outcome:
    return FAIL, finding, shown_by


def not_tried(finding: str) -> Outcome:
    return NOT_TRIED, finding, ()


def unanswered(exchange: Exchange) -> Outcome | None:
    """The outcome of a check whose request was refused or failed; None if it was answered."""
    if 400 <= exchange.status < 500:
        return not_tried(f"refused: {problem(exchange)}")
    return None if exchange.ok else failed(problem(exchange), exchange)


WORDS: Final = (
    "session", "cache", "prefix", "worker", "route", "token", "prompt", "engine", "queue", "batch", "answer", "reader",
    "window", "garden", "harbour", "letter", "market", "number", "office", "planet", "river", "season", "valley",
)  # fmt: skip
HIT_SHARE: Final = 0.5
"""A prompt counts as found again if at least this share of it is cached."""


class TrialOptions(NamedTuple):
    """How to test the endpoint. `rates`: the endpoint's prices as the user gave them; None if they are not known."""

    prompt_bytes: int = 6_000
    turns: int = 3
    two_tenants: bool = False
    rates: Rates | None = None


class TooMany(Exception):
    """A check sends more requests than were announced: a bug of the check."""


class Spent(Exception):
    """The endpoint reports more tokens than were announced, so nothing more is sent. The message has both numbers."""


class Cost(NamedTuple):
    """The maximum number of requests and tokens of checks. `written_share`: d, if tokens written to a cache cost 1/d
    more than input; 0: they cost as input."""

    requests: int
    prompt_tokens: int
    completion_tokens: int
    written_share: int

    def nanousd(self, rates: Rates) -> int:
        """The price if nothing is cached and all prompts are written to a cache."""
        prompt = self.prompt_tokens * rates.input
        written = -(-prompt // self.written_share) if self.written_share else 0
        return nano_from_pico(prompt + written + self.completion_tokens * rates.output)


class Trial:
    """Sends requests through one API within `allowed`, and keeps requests and answers in order (`sent`)."""

    def __init__(self, endpoint: Endpoint, api: str, model: str, options: TrialOptions, allowed: Cost) -> None:
        self.endpoint = endpoint
        self.api = api
        self.model = model
        self.options = options
        self.sent: list[Exchange] = []
        self._allowed = allowed
        self._prompt_tokens = 0
        self._completion_tokens = 0

    def prompt(self, size: int = 0) -> str:
        """A new prompt of about `size` bytes; 0: of `options.prompt_bytes`."""
        beginning = f"Notes {secrets.token_hex(8)}."
        words, length = [beginning], len(beginning)
        while length < (size or self.options.prompt_bytes):
            word = WORDS[secrets.randbelow(len(WORDS))]
            words.append(word)
            length += len(word) + 1
        return " ".join(words)

    def send(self, asked: Asked, tenant: int = 0, *, cancel: bool = False) -> Exchange:
        """Send a request. Raises: TooMany; Spent, if the reported tokens of all requests so far exceed a limit."""
        if len(self.sent) >= self._allowed.requests:
            raise TooMany(f"more than {self._allowed.requests} requests")
        found = self.endpoint.send(self.api, shape_of(self.api, self.model, asked), tenant, cancel=cancel)
        found = found._replace(counts_cached=any(each.counts.cached for each in self.sent))
        self.sent.append(found)
        self._prompt_tokens += found.counts.prompt or 0
        self._completion_tokens += found.counts.completion or 0
        for name, tokens, most in (
            ("prompt", self._prompt_tokens, self._allowed.prompt_tokens),
            ("answer", self._completion_tokens, self._allowed.completion_tokens),
        ):
            if tokens > most:
                raise Spent(f"stopped: {tokens:,} {name} tokens are reported, and {most:,} were announced")
        return found


def new_session() -> str:
    return secrets.token_hex(12)


def found_again(exchange: Exchange, prompt_tokens: int) -> bool:
    """Whether an answer says that a prompt of `prompt_tokens` was cached."""
    return (exchange.counts.cached or 0) >= HIT_SHARE * prompt_tokens


def problem(exchange: Exchange) -> str:
    """What went wrong with a request, in a few words."""
    return f"answered {exchange.status}: {exchange.error or exchange.broken}"[:160]
