"""warmroute: turns of agents land where their KV cache is warm, and a receipt proves it.

    from warmroute import OpenAI            # openai's client, same methods, same types

    client = OpenAI(base_url="http://127.0.0.1:8000/v1")
    with warmroute.session("ticket-4711"):
        client.chat.completions.create(...)
    print(client.cache.report())            # what was cached, what it cost, what that saved
    print(client.cache.explain())           # why the last turn was not warmer

Names are loaded when they are first used: `import openai` costs over a second, and neither `warmroute.contract` nor
the tools that share this package need it.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from warmroute._cache import AsyncCache, Cache
    from warmroute._client import AsyncOpenAI, OpenAI
    from warmroute._receipt import receipt_of
    from warmroute._report import CacheReport, Totals
    from warmroute._session import session

__version__: Final = "0.1.0"

__all__ = [
    "AsyncCache",
    "AsyncOpenAI",
    "Cache",
    "CacheReport",
    "OpenAI",
    "Totals",
    "__version__",
    "receipt_of",
    "session",
]

_HOMES: Final = {
    "AsyncCache": "warmroute._cache",
    "AsyncOpenAI": "warmroute._client",
    "Cache": "warmroute._cache",
    "CacheReport": "warmroute._report",
    "OpenAI": "warmroute._client",
    "Totals": "warmroute._report",
    "receipt_of": "warmroute._receipt",
    "session": "warmroute._session",
}


if not TYPE_CHECKING:  # a type checker that saw this would take any name for one of ours

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'warmroute' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(home), name)
        globals()[name] = value  # found directly from now on
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
