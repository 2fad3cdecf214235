"""Keeps requests to this machine from an HTTP proxy that environment variables name.

Such a proxy is asked for every address that `NO_PROXY` does not list, even for 127.0.0.1. So on a laptop that has
`HTTP_PROXY` alone, no fleet would become ready, and no agent would reach it. Go's clients make the same exception.
"""

from collections.abc import MutableMapping
from typing import Final

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy")
_EXCEPTIONS: Final = ("no_proxy", "NO_PROXY")
"""Programs read one or the other."""


def go_direct(environ: MutableMapping[str, str]) -> None:
    """Add this machine to `no_proxy` and `NO_PROXY` if another variable names a proxy. Child processes inherit both."""
    if not any(environ.get(name) or environ.get(name.upper()) for name in _PROXIES):
        return
    stated = next((environ[name] for name in _EXCEPTIONS if environ.get(name)), "")
    for name in _EXCEPTIONS:
        listed = [each for each in (environ.get(name) or stated).split(",") if each]
        missing = [] if "*" in listed else [each for each in LOOPBACK if each not in listed]
        environ[name] = ",".join([*listed, *missing])
