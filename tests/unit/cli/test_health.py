"""`warmroute health`: what it prints and its status, against a small server in the proxy's place."""

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.certificates import make

from warmroute_backend.launch import readiness
from warmroute_backend.launch.program import Program
from warmroute_cli.main import main


class _Proxy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = {"/health": (200, b'{"status":"ok"}'), "/ready": (503, b'{"status":"draining"}')}[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server in the proxy's place."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Proxy)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with serving() as found:
        yield found


def config(folder: Path, *lines: str) -> str:
    path = folder / "warmroute.toml"
    path.write_text("\n".join(["[proxy]", *lines]))
    return str(path)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_proxy_that_answers_is_well(host: str, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--config", config(tmp_path, f'host = "{host}"', f"port = {port}")]) == 0
    assert capsys.readouterr().out == '/health: 200 {"status":"ok"}\n'


def test_a_proxy_with_tls_is_found_well_and_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*make(tmp_path, "a"))
    with serving(context) as port:
        assert main(["health", "--config", config(tmp_path, f"port = {port}", 'tls_cert = "a"')]) == 0
        assert capsys.readouterr().out == '/health: 200 {"status":"ok"}\n'
        program = Program("proxy", "proxy", (), ports=(("http", port),), ready_path="/health", has_tls=True)
        assert readiness.serves(program)
        assert not readiness.serves(replace(program, has_tls=False))


def test_one_that_takes_no_turns_is_not_ready(port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--ready", "--config", config(tmp_path, f"port = {port}")]) == 1
    assert capsys.readouterr().out == '/ready: 503 {"status":"draining"}\n'


def test_one_that_speaks_no_tls_where_the_config_says_so_is_not_well(
    port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--config", config(tmp_path, f"port = {port}", 'tls_cert = "a"')]) == 1
    assert "/health: no answer: " in capsys.readouterr().out


@pytest.mark.parametrize("lines", [[], ["port = 0"], ["port ="], ["host = 1"]])
def test_a_config_without_a_port_cannot_be_asked(
    lines: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["health", "--config", config(tmp_path, *lines)]) == 2
    assert "warmroute health: " in capsys.readouterr().err


def test_a_proxy_whose_port_does_not_answer_is_not_well_though_its_admin_port_asks_for_a_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Admin(_Proxy):
        def do_GET(self) -> None:
            self.send_error(401)

    with http.server.HTTPServer(("127.0.0.1", 0), Admin) as admin:
        thread = threading.Thread(target=admin.handle_request)
        thread.start()
        lines = ["port = 1", f"admin_port = {admin.server_port}"]
        assert main(["health", "--config", config(tmp_path, *lines)]) == 1
        thread.join()
    assert "/health: no answer: " in capsys.readouterr().out
