"""Ports of servers: no two of a process get the same one, and a server that cannot bind its own is given up at once."""

import socket
import time
from pathlib import Path

import pytest

from tests.subjects.sglang import CopiedServer
from warmroute_backend.sglang import Server
from warmroute_backend.sglang.command import HOST
from warmroute_backend.sglang.server import PortTaken, start_deadline_s


def test_servers_of_a_process_have_no_port_in_common(tmp_path: Path) -> None:
    servers = [Server("prefill", tmp_path, name=f"p{number}") for number in range(200)]
    of_prefill = [address for server in servers for address in (server.url, server.kv_events, server.kv_replay)]
    ports = [int(address.rsplit(":", 1)[1]) for address in of_prefill] + [server.bootstrap_port for server in servers]
    assert len(set(ports)) == len(ports)


@pytest.mark.timeout(1500)
def test_a_server_whose_port_is_taken_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        server = CopiedServer("aggregated", tmp_path, port=listener.getsockname()[1])
        deadline_s = start_deadline_s()
        try:
            with pytest.raises(PortTaken, match="cannot bind its port"):
                server.start().wait_ready(deadline_s)
        finally:
            server.kill()
        assert time.monotonic() < deadline_s
