"""The picker's gRPC port with TLS, as the page has it: Envoy asks over it, and certificates change while it serves."""

import os
import shlex
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from tests.certificates import make
from tests.gateway.test_protocol import Also, Change, Scene, scene
from tests.machine import seconds
from tests.subjects.gateway import Picker, cluster, page_block
from tests.subjects.processes import chat, until
from warmroute_proxy.server.main import serve


class SecurePicker(Picker):
    """A picker with the page's certificate, in the folder above its own; it asks for those of gateways."""

    def __init__(self, folder: Path, engines: list[str], *, extra: str = "", **more: Any) -> None:
        words = shlex.split(page_block("certificate").replace("\\\n", " "))
        subprocess.run(words, cwd=folder.parent, check=True, capture_output=True)
        self.certificates = folder.parent
        for name in ("gateway", "other"):
            make(self.certificates, name)
        self.file("gateways.crt").write_bytes(self.file("gateway.crt").read_bytes())
        text = page_block("tls.toml").replace(' = "', f' = "{self.certificates}/')
        super().__init__(folder, engines, extra=extra + "\n" + text, **more)

    def file(self, name: str) -> Path:
        return self.certificates / name

    def channel(self, shown: str = "gateway") -> grpc.Channel:
        trusted = self.file("picker.crt").read_bytes()
        key, cert = (self.file(f"{shown}.{kind}").read_bytes() for kind in ("key", "crt"))
        return grpc.secure_channel(self.address, grpc.ssl_channel_credentials(trusted, key, cert))

    def takes(self, shown: str) -> bool:
        """Whether it takes a new connection from a gateway with this certificate."""
        with self.channel(shown) as channel:
            ask = channel.unary_unary("/grpc.health.v1.Health/Check")
            try:
                return bool(ask(b"", timeout=seconds(20)))
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE, error
                return False

    def shown(self) -> str:
        """The certificate that new connections get."""
        host, _, port = self.address.partition(":")
        return ssl.get_server_certificate((host, int(port)), timeout=seconds(20))

    def hang_up(self, says: str = "the TLS certificate was read again") -> None:
        """Have the files read again, until each of its processes has said so."""
        log = self.written().count(says) + max(1, len(self.line.get("processes", [])))
        os.kill(self.line["pid"], signal.SIGHUP)
        until(lambda: self.written().count(says) >= log, f"each process says: {says}")


def tls(folder: Path, shown: str = "gateway") -> Change:
    """Envoy asks as the page has it, and shows this certificate."""

    def change(config: dict[str, Any]) -> None:
        text = page_block("tls.yaml").replace("filename: gateway", f"filename: {shown}")
        cluster(config, "warmroute").update(yaml.safe_load(text.replace("filename: ", f"filename: {folder}/")))

    return change


@pytest.fixture(params=[1, 2], ids=["one process", "two processes"])
def it(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    extra = f"processes = {request.param}"
    with scene(tmp_path, tls(tmp_path), make=SecurePicker, engines=1, extra=extra) as found:
        yield found


def picker(it: Scene) -> SecurePicker:
    assert isinstance(it.picker, SecurePicker)
    return it.picker


def same(one: str, file: Path) -> bool:
    return ssl.PEM_cert_to_DER_cert(one) == ssl.PEM_cert_to_DER_cert(file.read_text())


def test_envoy_asks_over_tls_also_after_the_certificate_was_replaced(it: Scene, tmp_path: Path) -> None:
    of = picker(it)
    assert of.url.startswith("grpcs://")
    until(lambda: "x-warmroute-receipt" in it.post(chat("a")).headers, "Envoy has found the picker healthy")
    before = of.shown()
    of.file("picker.key").write_bytes(of.file("other.key").read_bytes())
    of.hang_up("certificate stays as it was: ")
    assert of.shown() == before
    of.file("picker.crt").write_bytes(of.file("other.crt").read_bytes())
    of.hang_up()
    assert all(same(of.shown(), of.file("other.crt")) for _ in range(8))  # whichever process takes a connection
    assert "x-warmroute-receipt" in it.post(chat("b")).headers  # on the connection that there was

    with Also(it, tls(tmp_path)) as envoy, envoy.client(of.keys[0]) as client:
        until(lambda: "x-warmroute-receipt" in client.post("/v1/chat/completions", json=chat("c")).headers, "it asks")


def test_only_gateways_with_a_certificate_of_the_authority_are_taken(it: Scene, tmp_path: Path) -> None:
    of = picker(it)

    until(lambda: "x-warmroute-receipt" in it.post(chat("a")).headers, "Envoy has found the picker healthy")
    with Also(it, tls(tmp_path, "other")) as envoy, envoy.client(of.keys[0]) as client:
        until(lambda: envoy.stat("cluster.warmroute.health_check.failure"), "its health checks fail")
        assert client.post("/v1/chat/completions", json=chat("b")).status_code == 500
    assert len(it.engines[0].bodies) == 1
    assert of.takes("gateway")
    assert not of.takes("other")
    of.file("gateways.crt").write_bytes(of.file("other.crt").read_bytes())
    of.hang_up()
    assert all(of.takes("other") and not of.takes("gateway") for _ in range(4))  # whichever process is asked
    of.file("gateways.crt").write_text("no certificate")
    of.hang_up("gateways.crt: has no PEM certificate")
    assert all(of.takes("other") for _ in range(4))


def test_authorities_are_checked_and_are_a_picker_s_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = '[[engine]]\nid = "e"\nurl = "http://127.0.0.1:9"\nregion = "east"'
    of = SecurePicker(tmp_path / "p", [engine])
    config = of.write_config()
    assert serve(str(config), check=True, picker=True) == 0
    assert serve(str(config), check=True) == 2
    assert "tls_client_ca: only `warmroute epp`" in capsys.readouterr().err
    of.file("gateways.crt").write_text("no certificate")
    assert serve(str(config), check=True, picker=True) == 2
    assert "gateways.crt: has no PEM certificate of an authority" in capsys.readouterr().err
    lines = config.read_text().splitlines()
    config.write_text("\n".join(line for line in lines if not line.startswith(("tls_cert", "tls_key"))))
    assert serve(str(config), check=True, picker=True) == 2
    assert "needs TLS, which tls_cert and tls_key give" in capsys.readouterr().err
