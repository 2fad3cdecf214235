"""Whether anything but this machine can be reached.

`scripts/integrations` runs these tests in a network namespace that has nothing but `lo`. Where the system refuses one
(in a container without the right to it), programs are given a proxy that does not answer instead, which those that ask
no proxy get around.
"""

import socket
from typing import Final

NO_WAY_OUT: Final = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "127.0.0.1,localhost",
}
"""A port that refuses, for all that does not go to this machine."""


def closed() -> bool:
    """Whether this process is in a namespace without a network."""
    return {name for _, name in socket.if_nameindex()} == {"lo"}


def variables() -> dict[str, str]:
    """What keeps a program from the network where no namespace does."""
    return {} if closed() else dict(NO_WAY_OUT)
