"""Counts the tokens of a prompt by an engine's tokenizer if an engine has one, else by learned bytes per token.

At `/v1/tokenize`, SGLang renders a chat as it would to serve it, and lists the token ids (0.5.23,
`entrypoints/openai/serving_tokenize.py`). Counts are never billed, and limits of requests and budgets do not apply,
since agents count between their turns. Instead, a tenant may count `counted_tokens_per_minute` for each engine that can
count. A request to an engine for a count is called a *question*. A tenant may have as many open questions as are still
free of `MAX_AT_ONCE`, but only one large question. Counts beyond these limits are estimated, and the answer says so.

An engine answers nobody else while its tokenizer runs: an embedded engine takes 50 ms for 112,000 tokens. So questions
get a small share of an engine's time, and a tenant has to wait between large questions.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from warmroute_proxy.core.placement.router import Router
from warmroute_proxy.server.base.config import ANY, ModelConfig
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.engine_headers import CONTENT_TYPE
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.engines.small_get import Collector
from warmroute_proxy.server.http.body_memory import BodyReservation
from warmroute_proxy.server.intake.parsed_request import ReadRequest

log = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 8
LARGE_TOKENS: Final = 16_384  # a question about a longer prompt is large
MAX_TENANTS: Final = 4096  # tenants in memory; if more come, those that counted nothing for a minute are dropped
MINUTE_S: Final = 60.0
SAVED_S: Final = 15.0
TIMEOUT_S: Final = 5.0
LEAST_ANSWER_BYTES: Final = 65_536
ANSWER_BYTES_PER_BYTE: Final = 8
"""The maximum number of bytes of an answer for each byte of the body: a token has at least one byte, and its id at most
7 with the comma. `LEAST_ANSWER_BYTES` covers what the chat template adds. The answer counts for the tenant's memory.
"""

_PATH: Final = "/v1/tokenize"
_NOT_OF_THE_PROMPT: Final = frozenset({"model", "stream", "stream_options"})

OnCount = Callable[[int, bool], None]
"""Called with a number of tokens, and whether it is an estimate."""


class _Counted(msgspec.Struct):
    count: int


_decode: Final = msgspec.json.Decoder(_Counted).decode


class _OfTenant:
    """A tenant's token bucket for counts: it held `tokens` at `since_s`, and refills with time. May be below 0."""

    __slots__ = ("at_once", "large", "since_s", "tokens")

    def __init__(self, tokens: float, since_s: float) -> None:
        self.tokens = tokens
        self.since_s = since_s
        self.at_once = 0
        self.large = 0

    def take(self, tokens: int, per_minute: int, now_s: float) -> bool:
        """Spend tokens from the bucket, which holds at most `SAVED_S` seconds of refill. Returns whether it worked.

        A prompt may have more tokens than the bucket holds, up to one minute of refill. Later prompts are then
        estimated until the bucket is above 0 again.
        """
        grown = self.tokens + (now_s - self.since_s) * per_minute / MINUTE_S
        self.tokens, self.since_s = min(grown, per_minute * SAVED_S / MINUTE_S), now_s
        if self.tokens <= 0 or tokens > per_minute:
            return False
        self.tokens -= tokens
        return True


class TokenCounts:
    def __init__(self, engines: Engines, router: Router, per_minute: Callable[[], int]) -> None:
        """`per_minute`: how many tokens each engine may count for a tenant."""
        self._engines = engines
        self._router = router
        self._per_minute = per_minute
        self._at_once = 0
        self._tenants: dict[str, _OfTenant] = {}

    def count(self, read: ReadRequest, on_count: OnCount) -> None:
        """Count the tokens of a chat completion, and call `on_count` once."""
        parsed = read.parsed
        engines, tokens = self._able(parsed.model), self._router.estimated_tokens(parsed.routing)
        if not engines or not self._may_ask(parsed.tenant.name, tokens, len(engines)):
            on_count(tokens, True)
        else:
            engine = min(engines, key=lambda engine: engine.upstream.open)
            _Question(self, engine, read, tokens, on_count)

    def memory_of(self, tenant: str) -> BodyReservation | None:
        """A reservation for the answer to a tenant's question."""
        return self._engines.memory_of(tenant)

    def began(self, tenant: str, difference: int, *, large: bool) -> None:
        """A tenant's question has begun (`difference` 1) or ended (-1)."""
        self._at_once += difference
        own = self._tenants[tenant]
        own.at_once += difference
        own.large += difference * large

    def _may_ask(self, tenant: str, tokens: int, engines: int) -> bool:
        per_minute, now_s = self._per_minute() * engines, self._engines.clock()
        own = self._tenants.get(tenant)
        if own is None:
            if len(self._tenants) >= MAX_TENANTS:
                self._forget_idle(now_s)
            own = self._tenants[tenant] = _OfTenant(per_minute * SAVED_S / MINUTE_S, now_s)
        if own.at_once >= MAX_AT_ONCE - self._at_once or (own.large and tokens > LARGE_TOKENS):
            return False
        return own.take(tokens, per_minute, now_s)

    def _forget_idle(self, now_s: float) -> None:
        idle = [name for name, own in self._tenants.items() if not own.at_once and own.since_s < now_s - MINUTE_S]
        for name in idle:
            del self._tenants[name]

    def _able(self, model: ModelConfig) -> list[Engine]:
        leaving = self._engines.leaving()
        return [
            engine
            for id_, engine in self._engines.by_id.items()
            if engine.is_sglang and engine.serves and id_ not in leaving and _has(engine, model)
        ]


class _Question:
    """One question to an engine."""

    def __init__(
        self, owner: TokenCounts, engine: Engine, read: ReadRequest, estimated: int, on_count: OnCount
    ) -> None:
        """`estimated`: the prompt's tokens by learned bytes per token."""
        parsed = read.parsed
        self._owner = owner
        self._estimated = estimated
        self._tenant = parsed.tenant.name
        self._on_count: OnCount | None = on_count
        owner.began(self._tenant, 1, large=estimated > LARGE_TOKENS)
        model = b'"model":%b' % msgspec.json.encode(parsed.model.name)
        body = read.body.rewritten(_NOT_OF_THE_PROMPT | parsed.dropped, model)
        answer_bytes = LEAST_ANSWER_BYTES + ANSWER_BYTES_PER_BYTE * sum(map(len, body))
        leg = Collector(self._answered, answer_bytes, owner.memory_of(self._tenant)).leg
        engine.upstream.send("POST", _PATH, f"{CONTENT_TYPE}{engine.bearer}", body, leg)
        self._leg = leg
        self._timer = asyncio.get_running_loop().call_later(TIMEOUT_S, self._timed_out)

    def _timed_out(self) -> None:
        self._leg.close()
        self._answered(0, b"")

    def _answered(self, status: int, body: bytes) -> None:
        on_count, self._on_count = self._on_count, None
        if on_count is None:
            return
        self._timer.cancel()
        self._owner.began(self._tenant, -1, large=self._estimated > LARGE_TOKENS)
        try:
            tokens = _decode(body).count if status == 200 else None
        except (msgspec.DecodeError, RecursionError):
            tokens = None
        if tokens is None:
            log.info("an engine counted no tokens (%d): they are estimated", status)
            on_count(self._estimated, True)
        else:
            on_count(tokens, False)


def _has(engine: Engine, model: ModelConfig) -> bool:
    return ANY in engine.config.models or model.name in engine.config.models
