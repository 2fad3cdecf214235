"""A port that is in use is named, and so is who has it."""

import os
import socket

import pytest

from warmroute_proxy.server.base.port_owner import port_owner
from warmroute_proxy.server.http.listener import _listening


def test_who_listens_on_a_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port_owner(port).endswith(f", pid {os.getpid()}")
        with pytest.raises(OSError, match=rf"port {port} on 127.0.0.1 is in use by .*, pid {os.getpid()}: end that"):
            _listening("127.0.0.1", port, shared=False)
    assert port_owner(port) == ""
