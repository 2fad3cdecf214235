"""warmroute: an agent's turns go where their KV cache is, and a receipt shows the cached tokens.

    from warmroute import OpenAI            # openai's client, same methods, same types

    client = OpenAI(base_url="http://127.0.0.1:8000/v1")
    with warmroute.session("ticket-4711"):
        client.chat.completions.create(...)
    print(client.cache.report())            # what was cached, what it cost, what that saved
    print(client.cache.explain())           # why no more tokens of the last turn were cached

All public names are in this module and in `contract`. A call that openai's client would complete does not fail because
of this package, except with `guard="raise"`. The package sends only the caller's calls, and the calls that methods of
`client.cache` make when the caller asks for them.

Public names are loaded on first use, since `import openai` takes over a second. `warmroute.contract` and the commands
of this package do not import openai.
"""

from typing import TYPE_CHECKING, Final

from warmroute.contract.version import VERSION

if TYPE_CHECKING:
    from warmroute._cache import AsyncCache, Cache
    from warmroute._client import AsyncOpenAI, OpenAI
    from warmroute._guard import GuardEvent, PrefixBroken, PrefixWarning
    from warmroute._report import CacheReport, Totals
    from warmroute._session import session
    from warmroute._watch import receipt_of
    from warmroute.contract.receipt_type import Receipt
    from warmroute.ways.transport import transport
    from warmroute.ways.wrap import cache_of, wrap

__version__: Final = VERSION

__all__ = [
    "AsyncCache",
    "AsyncOpenAI",
    "Cache",
    "CacheReport",
    "GuardEvent",
    "OpenAI",
    "PrefixBroken",
    "PrefixWarning",
    "Receipt",
    "Totals",
    "__version__",
    "cache_of",
    "receipt_of",
    "session",
    "transport",
    "wrap",
]

_HOMES: Final = {
    "AsyncCache": "warmroute._cache",
    "AsyncOpenAI": "warmroute._client",
    "Cache": "warmroute._cache",
    "CacheReport": "warmroute._report",
    "GuardEvent": "warmroute._guard",
    "PrefixBroken": "warmroute._guard",
    "PrefixWarning": "warmroute._guard",
    "OpenAI": "warmroute._client",
    "Receipt": "warmroute.contract.receipt_type",
    "Totals": "warmroute._report",
    "cache_of": "warmroute.ways.wrap",
    "receipt_of": "warmroute._watch",
    "session": "warmroute._session",
    "transport": "warmroute.ways.transport",
    "wrap": "warmroute.ways.wrap",
}


if not TYPE_CHECKING:  # a type checker that saw this function would accept any name

    def __getattr__(name: str) -> object:
        home = _HOMES.get(name)
        if home is None:
            raise AttributeError(f"module 'warmroute' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(home), name)
        globals()[name] = value  # so that later look-ups do not call this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
