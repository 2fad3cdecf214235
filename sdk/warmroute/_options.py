"""openai's own parameters, so that editors and type checkers know them in `OpenAI(...)`.

They are those of openai 2.20 to 3.x; what only one generation has, or types by its own http library, is typed loosely.
`tests/unit/sdk/test_typing.py` compares the names with those of the installed openai.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypedDict


class _Common(TypedDict, total=False):
    """What both kinds of clients take."""

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
