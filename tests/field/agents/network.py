"""Whether anything but this machine can be reached.

`scripts/integrations` runs these tests in a network namespace that has nothing but `lo`. Where the system refuses one
(in a container without the right to it), programs are given a proxy that does not answer instead, which those that ask
no proxy get around.
"""

import socket
from typing import Final

_NO_WAY: Final = "http://127.0.0.1:9"
_LOWER: Final = {"http_proxy": _NO_WAY, "https_proxy": _NO_WAY, "no_proxy": "127.0.0.1,localhost"}
NO_WAY_OUT: Final = _LOWER | {name.upper(): value for name, value in _LOWER.items()}
"""A port that refuses, for all that does not go to this machine."""


def closed() -> bool:
    """Whether this process is in a namespace without a network."""
    return {name for _, name in socket.if_nameindex()} == {"lo"}


def variables() -> dict[str, str]:
    """What keeps a program from the network where no namespace does."""
    return {} if closed() else dict(NO_WAY_OUT)
