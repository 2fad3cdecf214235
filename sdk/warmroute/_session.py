"""Sessions that the program names: `with warmroute.session("...")`, stored in a context variable.

A context variable follows the rules of threads and tasks: a task started inside the block keeps the session, blocks of
two tasks do not affect each other, and blocks nest.
"""

import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from warmroute.contract.identity import InvalidSessionKey, check_key

_current: ContextVar[str | None] = ContextVar("warmroute_session", default=None)


def session(key: str | None = None) -> AbstractContextManager[str]:
    """Calls made inside the block belong to session `key`; without one, to a new session with a random key.

    The key is opaque to warmroute and goes to the server as it is, in `x-session-affinity`: at most 256 printable
    ASCII characters. Anything else is a `ValueError` here, before any call is made. The block's value is the key.
    """
    return _entered(f"s-{uuid.uuid4().hex}" if key is None else checked_key(key))


def current() -> str | None:
    """The key of the innermost block, or None outside of any."""
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
def _entered(key: str) -> Iterator[str]:
    # Not `reset(token)`: that fails where a framework leaves the block in another context than it entered (dependencies
    # of FastAPI, fixtures of pytest).
    outer = _current.get()
    _current.set(key)
    try:
        yield key
    finally:
        _current.set(outer)
