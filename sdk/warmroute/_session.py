"""Sessions that the program names: `with warmroute.session("...")`, stored in a context variable.

As with any context variable, a task that is started inside the block keeps the session, blocks of two tasks do not
affect each other, and blocks nest.
"""

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final, Literal, NamedTuple, get_args

from warmroute.contract import headers
from warmroute.contract.identity import InvalidSessionKey, check_key

Kind = Literal["main", "sub", "title", "compaction", "auxiliary"]
"""The purpose of a block's calls, as in the header `x-warmroute-kind` and in receipts. Prompts of a kind other than
`main` are not compared with prompts of the main loop.
"""

_KINDS: Final = get_args(Kind)


class Named(NamedTuple):
    key: str
    parent: str | None = None
    kind: Kind = "main"
    agent: str | None = None
    name: str | None = None


_current: ContextVar[Named | None] = ContextVar("warmroute_session", default=None)


def session(
    key: str | None = None,
    *,
    parent: str | None = None,
    kind: Kind = "main",
    agent: str | None = None,
    name: str | None = None,
) -> AbstractContextManager[str]:
    """Assign all calls inside the block to session `key` (default: a new random key). The block's value is the key.

    The server gets the key unchanged in `x-session-affinity`. A key has at most 256 printable ASCII characters; any
    other key raises `ValueError` before a call is made.

    `parent`: the session that started this one, for servers that read the parent. `kind`: calls of a kind such as
    `title` or `compaction` keep the session's key and engine, but the guard compares their prompts only with prompts of
    that kind. `agent`: the name of one of the session's agents; the guard compares its prompts only with prompts of
    that agent. `name`: a readable name, such as `fix the tests`; warmroute shows it in receipts and usage tables.
    """
    if kind not in _KINDS:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(_KINDS)}")
    named = Named(
        f"s-{uuid.uuid4().hex}" if key is None else checked_key(key),
        None if parent is None else checked_key(parent),
        kind,
        None if agent is None else checked_key(agent),
        None if name is None else checked_key(name),
    )
    return _entered(named)


def purpose(named: Named) -> dict[str, str]:
    """The headers by which a warmroute server shows the purpose of a block's calls in their receipts."""
    found: dict[str, str] = {} if named.kind == "main" else {headers.KIND: named.kind}
    found |= {headers.AGENT: named.agent} if named.agent else {}
    return found | ({headers.NAME: named.name} if named.name else {})


def current() -> Named | None:
    """The session of the innermost block, or None outside of all blocks."""
    return _current.get()


def checked_key(key: str) -> str:
    """The key itself if a header can carry it unchanged, else `ValueError`."""
    if not isinstance(key, str):
        raise TypeError(f"a session key is a string, not {type(key).__name__}")
    if not key:
        raise InvalidSessionKey("session()", "is empty")
    if not key.isascii() or key != key.strip():
        raise InvalidSessionKey("session()", "holds other than ASCII characters, or spaces around it")
    return check_key(key, "session()")


@contextmanager
def _entered(named: Named) -> Iterator[str]:
    # Not `reset(token)`, which fails if a framework leaves the block in another context than the one it entered
    # (dependencies of FastAPI, fixtures of pytest).
    outer = _current.get()
    _current.set(named)
    try:
        yield named.key
    finally:
        _current.set(outer)
