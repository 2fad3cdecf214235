"""`OpenAI` and `AsyncOpenAI`: openai's clients, observed by warmroute, with openai's parameters and five more."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack

import openai

from warmroute._calls import AsyncCalls, Calls
from warmroute._guard import Guard
from warmroute._observer import Observer

GuardMode = Literal["off", "warn", "raise"]
Repair = str | Iterable[str] | None


class _Common(TypedDict, total=False):
    """openai's own parameters, so that editors and type checkers know them in `OpenAI(...)`.

    The parameters are those of openai 2.20 to 3.x. A parameter is typed loosely if only 2.x or only 3.x has it, or if
    its type comes from an http library. `tests/unit/sdk/test_typing.py` compares the names with the installed openai.
    """

    admin_api_key: str | None
    workload_identity: Any
    organization: str | None
    project: str | None
    webhook_secret: str | None
    provider: Any
    base_url: str | Any | None
    data_residency: Any
    websocket_base_url: str | Any | None
    timeout: float | Any | None
    max_retries: int
    default_headers: Mapping[str, str] | None
    default_query: Mapping[str, object] | None
    http_client: Any


class Options(_Common, total=False):
    """The parameters of `openai.OpenAI`."""

    api_key: str | Callable[[], str] | None


class AsyncOptions(_Common, total=False):
    """The parameters of `openai.AsyncOpenAI`."""

    api_key: str | Callable[[], Awaitable[str]] | None


class OpenAI(Calls, openai.OpenAI):
    """`openai.OpenAI` with session keys and checked receipts, and these further parameters:

    `session`: the session of calls outside of a `session()` block. `guard`: the reaction to a call that breaks the
    cached prefix of its session: `"off"`, `"warn"` or `"raise"`, which raises `PrefixBroken`. `repair`: names of repair
    rules, or `"safe"`. `backend`: the kind of server, if its address does not show it. `telemetry`: whether to record
    one OpenTelemetry span per turn. An unknown guard, rule or backend raises `ValueError`.
    """

    def __init__(
        self,
        *,
        session: str | None = None,
        guard: GuardMode = "warn",
        repair: Repair = None,
        backend: str | None = None,
        telemetry: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._observer = Observer(session, Guard(guard, repair), backend, telemetry=telemetry)
        super().__init__(**options)


class AsyncOpenAI(AsyncCalls, openai.AsyncOpenAI):
    """`openai.AsyncOpenAI`, with the same additions as `OpenAI`."""

    def __init__(
        self,
        *,
        session: str | None = None,
        guard: GuardMode = "warn",
        repair: Repair = None,
        backend: str | None = None,
        telemetry: bool = False,
        **options: Unpack[AsyncOptions],
    ) -> None:
        self._observer = Observer(session, Guard(guard, repair), backend, telemetry=telemetry)
        super().__init__(**options)
