"""An engine at a wrong address is not taken for one: by `/ready`, the log, and `warmroute proxy --check --probe`."""

import socket
from pathlib import Path

import httpx
import pytest

from tests.certificates import make
from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat, until
from tests.subjects.scripted import ScriptedEngine
from warmroute import __version__
from warmroute_cli.main import main

from .test_engine_misbehaves import sound


class Unready(ProxyProcess):
    """A proxy that starts, and is not ready."""

    def is_ready(self) -> bool:
        return httpx.get(f"{self.url}/ready", verify=PLAIN).status_code == 503


def with_v1(engine: EngineProcess) -> str:
    return engine.toml("east").replace(engine.url, f"{engine.url}/v1")


def test_a_url_that_ends_in_v1_is_not_ready_and_logged(engine: EngineProcess, tmp_path: Path) -> None:
    with Unready(tmp_path / "p", [with_v1(engine)]) as proxy:
        with proxy.client() as client:
            assert client.get("/ready").json()["reasons"] == ["no engine is up"]
            until(
                lambda: client.post("/v1/chat/completions", json=chat(max_tokens=1)).status_code == 503,
                "no request is sent there",
            )
        said = f"{engine.url}/v1 answered 404 at /server_info, as no engine does"
        until(lambda: said in proxy.written(), "the log says why")


def test_a_server_that_answers_everything_is_no_engine_until_it_answers_as_one(tmp_path: Path) -> None:
    with ScriptedEngine("s0", sound) as other:
        other.info = b'{"status": "ok"}'
        with Unready(tmp_path / "p", [other.toml()]) as proxy:
            other.info = b'{"page_size": 64, "dp_size": 1}'
            until(lambda: httpx.get(f"{proxy.url}/ready").status_code == 200, "it is an engine now")


def check(config: Path, *options: str) -> int:
    return main(["proxy", "--config", str(config), "--check", *options])


def test_check_names_the_url(engine: EngineProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(ProxyProcess(tmp_path / "a", [engine.toml("east")]).write_config()) == 0
    assert check(ProxyProcess(tmp_path / "b", [with_v1(engine)]).write_config()) == 2
    assert f"engine a0: url: {engine.url}/v1 ends in /v1" in capsys.readouterr().err


def test_probe_says_what_each_engine_and_region_answered(
    engine: EngineProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    west = ProxyProcess(tmp_path / "west", [engine.toml("west")], region="west").start()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f'[[engine]]\nid = "gone"\nurl = "http://127.0.0.1:{closed.getsockname()[1]}"\nregion = "east"'
        prefill = engine.toml("east").replace("a0", "p0").replace("aggregated", "prefill") + "\nbootstrap_port = 9"
        decode = (
            engine.toml("east").replace("a0", "d0").replace("aggregated", "decode").replace("127.0.0.1", "localhost")
        )
        try:
            sound_one = ProxyProcess(tmp_path / "a", [engine.toml("east")], peer=("west", west.url))
            assert check(sound_one.write_config(), "--probe") == 0
            assert capsys.readouterr().out.splitlines() == [
                f"engine a0, {engine.url}: aggregated engine, version {__version__}, 1 rank, pages of 64 tokens",
                f"region west, {west.url}: ready",
                f"{sound_one.config}: ok",
            ]
            wrong = ProxyProcess(tmp_path / "b", [nobody, prefill, decode], peer=("north", west.url))
            assert check(wrong.write_config(), "--probe") == 1
            gone, role, _, region, last = capsys.readouterr().out.splitlines()
            assert "Connect call failed" in gone
            assert role.endswith("; the config says role prefill")
            assert region.endswith("is the proxy of region west")
            assert last.endswith("4 of 4 answers are not as they should be")
            assert check(ProxyProcess(tmp_path / "c", [with_v1(engine)]).write_config(), "--probe") == 2
            assert "/v1: answered 404 at /server_info, as no engine does" in capsys.readouterr().out
        finally:
            west.stop()


def test_probe_asks_the_engines_that_a_source_names(
    engine: EngineProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "engines"
    folder.mkdir()
    (folder / "found.toml").write_text(f'url = "{engine.url}"\n')
    sources = f'[[discovery]]\nid = "folder"\npath = "{folder}"\n'
    assert check(ProxyProcess(tmp_path / "a", [sources]).write_config(), "--probe") == 0
    source, asked, _ = capsys.readouterr().out.splitlines()
    assert source == "discovery folder: names 1 engine"
    assert asked.startswith(f"engine found, {engine.url}: aggregated engine, version ")
    (folder / "gone.toml").write_text('url = "http://127.0.0.1:1"\n')
    (folder / "twice.toml").write_text('url = "http://127.0.0.1:1"\n')
    sources += f'[[discovery]]\nid = "away"\npath = "{folder}/away"\n'
    assert check(ProxyProcess(tmp_path / "b", [sources]).write_config(), "--probe") == 1
    source, away, _, gone, last = capsys.readouterr().out.splitlines()
    assert source == 'discovery folder: names 3 engines; twice is not used: url "http://127.0.0.1:1" is taken by folder'
    assert away == f"discovery away: {folder}/away cannot be read: No such file or directory"
    assert gone.startswith("engine gone, http://127.0.0.1:1: ")
    assert last.endswith("3 of 4 answers are not as they should be")


def test_probe_reads_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cert, key = make(tmp_path, "proxy")
    lines = f'tls_cert = "{cert}"\ntls_key = "{key}"'
    config = ProxyProcess(tmp_path / "p", [], extra=lines).write_config()
    config.write_text(config.read_text() + '[[engine]]\nid = "e"\nurl = "https://127.0.0.1:1"\nregion = "east"\n')
    assert check(config, "--probe") == 1
    first, second, _ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"certificate {cert}: valid until ")
    assert second.startswith("engine e, https://127.0.0.1:1: ")


def test_a_key_of_zeros_and_a_secret_that_others_can_read(
    engine: EngineProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    proxy = ProxyProcess(tmp_path / "p", [engine.toml("east")])
    config = proxy.write_config()
    secret = tmp_path / "secret"
    secret.chmod(0o644)
    assert check(config) == 2
    assert f"{secret}: holds a secret, and others can read it: chmod 600" in capsys.readouterr().err
    secret.chmod(0o600)
    assert check(config) == 0
    _, _, tenant = config.read_text().partition("[[tenant]]")
    digest = tenant.partition('["')[2].partition('"]')[0]
    config.write_text(config.read_text().replace(f'key_sha256 = ["{digest}"]', f'key_sha256 = ["{"0" * 64}"]'))
    assert check(config) == 2
    wrong = "tenant first: key_sha256: is all zeros, as in examples: no key matches; `warmroute key` makes a key"
    assert wrong in capsys.readouterr().err
    secret.unlink()  # so that the start ends
    assert main(["proxy", "--config", str(config)]) == 2
    assert wrong in caplog.messages


def test_probe_without_check_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "--config", "x.toml", "--probe"]) == 2
    assert capsys.readouterr().err == "warmroute proxy: --probe goes with --check\n"
