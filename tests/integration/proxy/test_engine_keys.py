"""Engines that want keys: the proxy shows them its own, shows them nobody else's, and writes them nowhere."""

import json
from pathlib import Path

import httpx
import pytest

from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat, until
from tests.subjects.scripted import ScriptedEngine
from tests.subjects.stopped import Several
from warmroute_proxy.server.main import serve

from .test_engine_misbehaves import sound
from .test_faults import ENDLESS, Stream

KEY, ADMIN_KEY = "engine-canary-1d07", "admin-canary-93ab"
KEYS = ("--api-key", KEY, "--admin-api-key", ADMIN_KEY)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    """The lines of a config that name the files of both."""
    for name, key in (("engine.key", KEY), ("admin.key", ADMIN_KEY), ("wrong.key", "wrong-canary-55")):
        (tmp_path / name).write_text(key + "\n")
    return f'key_file = "{tmp_path}/engine.key"\nadmin_key_file = "{tmp_path}/admin.key"'


def running(engine: EngineProcess) -> int:
    headers = {"authorization": f"Bearer {KEY}"}
    return int(httpx.get(f"{engine.url}/engine/finished", headers=headers, verify=PLAIN).json()["running"])


def test_prefill_and_decode_with_keys_serve_are_probed_and_can_be_aborted(keys: str, tmp_path: Path) -> None:
    roles = (("p0", "prefill"), ("d0", "decode"))
    with (
        Several([EngineProcess(tmp_path, name, role, *KEYS) for name, role in roles]) as engines,
        ProxyProcess(tmp_path / "p", [f"{engine.toml('east')}\n{keys}" for engine in engines]) as proxy,
    ):
        with proxy.client() as client:
            assert client.post("/v1/chat/completions", json=chat(max_tokens=3)).status_code == 200
        until(lambda: proxy.workers()["d0"]["running"] == 0, "probes are answered")
        Stream(proxy, chat(stream=True, **ENDLESS)).begun().leave()
        until(lambda: sum(map(running, engines)) == 0, "the abort was allowed")
        row = proxy.rows(expected=2)[-1]
        assert row["outcome"] == "client_left"
        assert json.loads(row["usage"])["warmroute"]["estimated"] == []  # the engine's last word was heard
    assert KEY not in proxy.written()
    assert ADMIN_KEY not in proxy.written()


def test_a_wrong_key_is_the_operators_fault_and_another_engine_serves(keys: str, tmp_path: Path) -> None:
    """The client hears nothing of it while anybody can serve; the log says what to do, and shows no key."""
    wrong = keys.replace("engine.key", "wrong.key").replace("admin.key", "wrong.key")
    with (
        ScriptedEngine("other", sound) as other,
        EngineProcess(tmp_path, "locked", "aggregated", *KEYS) as locked,
        ProxyProcess(tmp_path / "p", [f"{locked.toml('east')}\n{wrong}", other.toml()], policy="round_robin") as proxy,
    ):
        answers = [Stream(proxy, chat(f"turn {n}", stream=n < 4, max_tokens=2)).done() for n in range(8)]
        assert [one.status for one in answers] == [200] * 8
        other.ready = b"no"
        until(lambda: proxy.workers()["other"]["health"] != "up", "it is down")
        for stream in (False, True):
            alone = Stream(proxy, chat("nobody is left", stream=stream)).done()
            assert (alone.status, alone.error) in [(502, "engine_error"), (503, "no_worker")]
    assert "engine locked answers 401 at /server_info: its key_file is missing or wrong" in proxy.written()
    for secret in (KEY, ADMIN_KEY, "wrong-canary-55"):
        assert secret not in proxy.written()


def test_a_key_file_that_holds_no_key_ends_the_start(
    keys: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "engine.key").write_text("two words")
    engine = f'[[engine]]\nid = "e"\nurl = "http://127.0.0.1:1"\nregion = "east"\n{keys}'
    config = ProxyProcess(tmp_path / "p", [engine]).write_config()
    assert [serve(str(config), check=True), serve(str(config), check=False)] == [2, 2]
    said = capfd.readouterr().err
    assert said.count("engine.key holds no engine key") == 2
    assert "two words" not in said
