"""The proxy over TLS: what clients do over http they can do over https, and a slow handshake holds nothing up."""

import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from openai import DefaultHttpxClient, OpenAI
from websockets.asyncio.client import connect

from tests.certificates import make
from tests.machine import configured, seconds
from tests.subjects.http_proxy import HttpProxy
from tests.subjects.processes import EngineProcess, ProxyProcess, chat, until
from tests.subjects.scripted import ScriptedEngine
from warmroute_proxy.server.main import serve

from .test_engine_misbehaves import sound

pytestmark = pytest.mark.full


class SecureProxy(ProxyProcess):
    """A proxy with a certificate that its clients trust."""

    def __init__(self, folder: Path, engines: list[str], *, extra: str = "", limits: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.cert, self.key = make(folder, "proxy")
        extra += f'\ntls_cert = "{self.cert}"\ntls_key = "{self.key}"'
        super().__init__(folder, engines, extra=extra, limits=limits)

    @property
    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.cert))

    def client(self, tenant: int = 0) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.keys[tenant]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=seconds(30), verify=self.trusting)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", verify=self.trusting).status_code == 200
        except httpx.TransportError:  # where heads have a deadline, a slow machine may miss it
            return False

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def shown(self) -> bytes | None:
        """The certificate that a new connection gets, whoever may trust it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with socket.create_connection(self.address, 10) as raw, context.wrap_socket(raw) as secure:
            return secure.getpeercert(binary_form=True)


class Scene(NamedTuple):
    proxy: SecureProxy
    engine: EngineProcess


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Of two processes; the tests that make a proxy of their own make one of one process."""
    folder, limits = tmp_path_factory.mktemp("tls"), "head_timeout_s = 600"
    with (
        EngineProcess(folder, "east-a0", "aggregated", speed=2.0) as engine,
        SecureProxy(folder / "p", [engine.toml("east")], extra="processes = 2", limits=limits) as proxy,
    ):
        yield Scene(proxy, engine)


class TestClients:
    def test_the_openai_client_gets_whole_and_streamed_answers(self, scene: Scene) -> None:
        proxy = scene.proxy
        assert proxy.url.startswith("https://")
        http = DefaultHttpxClient(verify=proxy.trusting, timeout=seconds(30))
        messages = [{"role": "user", "content": "hello"}]
        with OpenAI(base_url=proxy.base_url, api_key=proxy.keys[0], http_client=http) as client:
            body: dict[str, Any] = {"model": "kimi-k2.5", "messages": messages, "max_tokens": 5}
            whole = client.chat.completions.create(**body)
            assert whole.choices[0].message.content
            stream = client.chat.completions.create(**body, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

    async def test_a_conversation_over_a_websocket(self, scene: Scene) -> None:
        """Of an asyncio client: websockets' threads read and write one TLS connection at once, which OpenSSL forbids;
        one handshake of some ten thousand stayed without an answer, at any server.
        """
        key = {"authorization": f"Bearer {scene.proxy.keys[0]}"}
        address = f"wss{scene.proxy.url[5:]}/v1/responses"
        trusted: dict[str, Any] = {"ssl": scene.proxy.trusting, "server_hostname": "127.0.0.1"}
        previous = None
        async with connect(address, additional_headers=key, open_timeout=seconds(20), **trusted) as socket:
            for turn in range(3):
                asked = {"model": "kimi-k2.5", "input": f"turn {turn} " * 5000, "previous_response_id": previous}
                await socket.send(json.dumps({"type": "response.create", "max_output_tokens": 5, **asked}))
                while (event := json.loads(await socket.recv()))["type"] != "response.incomplete":
                    assert event["type"] not in ("error", "response.failed", "response.completed"), event
                previous = event["response"]["id"]
            assert event["response"]["usage"]["input_tokens_details"]["cached_tokens"] > 10_000

    def test_a_body_of_several_megabytes_arrives(self, scene: Scene) -> None:
        body = chat(max_tokens=1)
        body["messages"][0]["content"] = "word " * 600_000
        with scene.proxy.client() as client:
            answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400, "too long for the engine's context, so it has seen all of it"
        assert "context" in answer.json()["error"]["message"]

    def test_a_client_that_leaves_leaves_nothing_on_the_engine(self, scene: Scene) -> None:
        body = chat(stream=True, metadata={"script": json.dumps({"output_tokens": 20_000})})
        with scene.proxy.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
            assert answer.status_code == 200, answer.read()
            pieces = answer.iter_bytes()  # kept: httpx closes the connection with it
            assert next(pieces)
            assert scene.engine.running() == 1
        until(lambda: scene.engine.running() == 0, "the engine stops")

    def test_http_1_1_is_agreed_on_with_tls_1_2_or_newer(self, scene: Scene) -> None:
        context = scene.proxy.trusting
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(scene.proxy.address, 10) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
        ):
            assert secure.selected_alpn_protocol() == "http/1.1"
            assert secure.version() in {"TLSv1.2", "TLSv1.3"}


class TestBadConnections:
    def test_a_handshake_that_does_not_come_is_given_up(self, tmp_path: Path) -> None:
        limits = f"head_timeout_s = {configured(1)}"
        with (
            ScriptedEngine("s0", sound) as engine,
            SecureProxy(tmp_path / "p", [engine.toml()], limits=limits) as proxy,
            socket.create_connection(proxy.address, 10) as silent,
        ):
            silent.settimeout(seconds(20))
            assert silent.recv(1) == b"", "closed by the proxy, not by the client's own limit"

    def test_plain_http_is_refused_and_harms_nobody(self, scene: Scene) -> None:
        with pytest.raises(httpx.HTTPError):
            httpx.get(scene.proxy.url.replace("https", "http") + "/health", timeout=seconds(10))
        assert scene.proxy.is_ready()

    def test_a_client_that_does_not_trust_the_certificate_harms_nobody(self, scene: Scene) -> None:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{scene.proxy.url}/health")
        assert scene.proxy.is_ready()


def test_a_new_certificate_is_used_after_sighup_and_a_wrong_one_is_not(scene: Scene, tmp_path: Path) -> None:
    proxy = scene.proxy
    before = proxy.shown()
    kept = proxy.cert.read_bytes(), proxy.key.read_bytes()
    try:
        with proxy.client() as client:
            assert client.get("/v1/models").status_code == 200
            proxy.cert.write_text("broken")
            os.kill(proxy.line["pid"], signal.SIGHUP)
            until(lambda: "certificate stays as it was" in proxy.written(), "it says so")
            assert proxy.shown() == before
            cert, key = make(tmp_path, "newer")
            proxy.cert.write_bytes(cert.read_bytes())
            proxy.key.write_bytes(key.read_bytes())
            os.kill(proxy.line["pid"], signal.SIGHUP)
            expected = ssl.PEM_cert_to_DER_cert(cert.read_text())
            until(lambda: all(proxy.shown() == expected for _ in range(8)), "each process shows the new one")
            assert client.get("/v1/models").status_code == 200, "a connection from before goes on"
    finally:
        proxy.cert.write_bytes(kept[0])
        proxy.key.write_bytes(kept[1])
        os.kill(proxy.line["pid"], signal.SIGHUP)
        until(lambda: all(proxy.shown() == before for _ in range(8)), "as it was")


def test_a_new_certificate_is_used_by_itself_where_the_config_is_watched(tmp_path: Path) -> None:
    with (
        EngineProcess(tmp_path, "e0", "aggregated") as engine,
        SecureProxy(tmp_path / "p", [engine.toml("east")], extra="watch_config = true") as proxy,
    ):
        cert, key = make(tmp_path, "newer")
        proxy.key.write_bytes(key.read_bytes())
        proxy.cert.write_bytes(cert.read_bytes())
        expected = ssl.PEM_cert_to_DER_cert(cert.read_text())
        until(lambda: proxy.shown() == expected, "it shows the new one")


def test_what_is_wrong_with_a_certificate_is_said_by_check_and_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = '[[engine]]\nid = "e"\nurl = "http://127.0.0.1:9"\nregion = "east"'
    proxy = SecureProxy(tmp_path / "p", [engine])
    config = str(proxy.write_config())
    assert serve(config, check=True) == 0
    proxy.key.write_bytes(make(tmp_path, "other")[1].read_bytes())
    assert serve(config, check=True) == 2
    assert "is not the key of the certificate" in capsys.readouterr().err
    assert serve(config, check=False) == 2


@pytest.fixture
def secure_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedEngine]:
    """An engine over TLS that proxies of the test trust."""
    cert, key = make(tmp_path, "engine")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    with ScriptedEngine("s0", sound) as engine:
        engine.serve_tls(context)
        yield engine


def over_tls(engine: ScriptedEngine, http_proxy: str = "") -> str:
    return engine.toml().replace("http://", "https://") + (f'\nhttp_proxy = "{http_proxy}"' if http_proxy else "")


def answered(proxy: ProxyProcess) -> int:
    with proxy, proxy.client() as client:
        return client.post("/v1/chat/completions", json=chat()).status_code


def test_an_engine_may_be_reached_by_https(tmp_path: Path, secure_engine: ScriptedEngine) -> None:
    assert answered(ProxyProcess(tmp_path / "p", [over_tls(secure_engine)])) == 200


def test_an_engine_may_be_reached_through_an_http_proxy(tmp_path: Path, secure_engine: ScriptedEngine) -> None:
    with HttpProxy() as between:
        assert answered(ProxyProcess(tmp_path / "p", [over_tls(secure_engine, between.url)])) == 200
        assert set(between.targets) == {secure_engine.url.removeprefix("http://")}


@pytest.mark.parametrize("status", [403, 407, 502])
def test_a_probe_names_an_http_proxy_that_refuses(
    tmp_path: Path, secure_engine: ScriptedEngine, capsys: pytest.CaptureFixture[str], status: int
) -> None:
    with HttpProxy(status) as between:
        config = ProxyProcess(tmp_path / "p", [over_tls(secure_engine, between.url)]).write_config()
        assert serve(str(config), check=True, probe_servers=True) == 1
        address = between.url.removeprefix("http://")
        assert f"the HTTP proxy {address} answers {status}" in "".join(capsys.readouterr())
    assert secure_engine.connections == 0
