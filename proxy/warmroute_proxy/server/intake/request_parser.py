"""Reads the requests of all callers: small requests at once, large requests in another process."""

from asyncio import AbstractEventLoop

from msgspec.structs import replace

from warmroute.contract.changes import NO_CHANGES
from warmroute_proxy.dialects.work import TooMuch, TranslationWork
from warmroute_proxy.normalising.rules import LATE_SYSTEM
from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.terms import Terms
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.caller import Caller, Callers
from warmroute_proxy.server.intake.cleaning import cleaned, cleans_all, has_strict, may_need_cleaning
from warmroute_proxy.server.intake.intake import check_light, model_for, read, read_body
from warmroute_proxy.server.intake.known_body import no_check
from warmroute_proxy.server.intake.large_bodies import LargeBodies
from warmroute_proxy.server.intake.mending import mended, with_dropped
from warmroute_proxy.server.intake.parsed_request import CHAT, ReadRequest


class RequestParser:
    def __init__(self, config: Config, callers: Callers, loop: AbstractEventLoop, metrics: Metrics) -> None:
        self._config = config
        self._strict: frozenset[str] = frozenset()  # models whose template takes one system message
        self.callers = callers
        self.large_bodies = LargeBodies(config, callers, loop, metrics)
        self._cleans_all = cleans_all(config)
        self._is_strict = has_strict(config)

    def replace(self, config: Config) -> None:
        config = self._config = config.with_rule(LATE_SYSTEM, self._strict) if self._strict else config
        self._cleans_all = cleans_all(config)
        self._is_strict = has_strict(config)
        self.callers.forget()
        self.large_bodies.replace(config)

    def refuse_late_system(self, models: frozenset[str], config: Config) -> None:
        """Switch `LATE_SYSTEM` on for these models: their templates refuse a system message after other messages.

        `config`: the config in force.
        """
        self._strict = models
        self.replace(config)

    def counted_tokens_per_minute(self) -> int:
        """How many tokens per minute a tenant may let engines count."""
        return self._config.limits.counted_tokens_per_minute

    def cors_origins(self) -> tuple[str, ...]:
        return self._config.proxy.cors_origins

    def serves_websockets(self) -> bool:
        """Whether `/v1/responses` is served over WebSockets, too."""
        return self._config.proxy.websockets

    def terms(self, tenant: TenantConfig) -> Terms:
        return Terms(tenant, self.callers.secrets, self._config)

    def read(self, request: Request, caller: Caller) -> ReadRequest:
        """Read a request in the event loop. Raises: Refusal; TooMuch, if reading would take too long."""
        raw = request.body
        assert isinstance(raw, bytes)
        try:
            return self._read(request, raw, caller)
        except Refusal as refusal:
            check_light(raw)
            request.body, dropped = mended(refusal, raw, TranslationWork.in_loop(len(raw)), request.deployment)
        try:
            found = self._read(request, request.body, caller)
        except TooMuch:
            request.body = raw  # the process that will read it also mends it
            raise
        return found._replace(parsed=replace(found.parsed, changes=with_dropped(found.parsed.changes, dropped)))

    def _read(self, request: Request, raw: bytes, caller: Caller) -> ReadRequest:
        if caller.path == CHAT and (self._cleans_all or may_need_cleaning(raw, caller, is_strict=self._is_strict)):
            return self._read_cleaned(request, raw, caller)
        return read(request, caller, self.callers, self._config)

    def read_translated(self, request: Request, caller: Caller) -> ReadRequest:
        """Read a request that a dialect has translated and cleaned, within its `TranslationWork`. Raises: Refusal."""
        return read(request, caller, self.callers, self._config, no_check)

    def unserved(self, request: Request, caller: Caller) -> ReadRequest:
        """Read a request that will not be served; do not add it to a conversation. Raises: Refusal."""
        found = read_body(bytes(request.body), caller, self.callers.secrets, self._config)
        return ReadRequest(found.parsed, found.body)

    def check_model(self, name: str, caller: Caller) -> None:
        """Raises: Refusal, if the caller may not use the model, or the config has no model of this name."""
        model_for(name, caller.tenant, self._config)

    def _read_cleaned(self, request: Request, raw: bytes, caller: Caller) -> ReadRequest:
        check_light(raw)
        changes = NO_CHANGES
        if caller.region is None:
            request.body, changes = cleaned(raw, self._config, TranslationWork.in_loop(len(raw)))
        try:
            found = read(request, caller, self.callers, self._config)
            return found._replace(parsed=replace(found.parsed, changes=changes))
        except TooMuch:
            request.body = raw  # the process that will read it also cleans it
            raise
