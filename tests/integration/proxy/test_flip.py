"""`warmroute engines flip`: an engine leaves, becomes the other half of a pair, and comes back; or it is refused."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, chat, until
from warmroute_cli.main import main

pytestmark = pytest.mark.timeout(120)
SWITCH = "--enable-pd-role-switch"


class Pairs(Fleet):
    """Two prefill engines, of which one has drafts, and two decode engines, of which one cannot be flipped."""

    def __init__(self, folder: Path) -> None:
        engines = [
            EngineProcess(folder, "p0", "prefill", SWITCH),
            EngineProcess(folder, "p1", "prefill", "--speculative-algorithm", "EAGLE"),
            EngineProcess(folder, "d0", "decode", SWITCH),
            EngineProcess(folder, "d1", "decode"),
        ]
        super().__init__(folder, engines)

    def flip(self, engine: str) -> int:
        line = self.proxy.line
        words = ["engines", "flip", engine, "--config", str(self.proxy.config), "--admin-url", line["admin_url"]]
        return main(words)

    def role(self, engine: str) -> tuple[str, str]:
        found = self.admin.get(f"/admin/engines/{engine}").raise_for_status().json()
        return found["role"], found["state"]

    def roles_of_a_turn(self, text: str) -> list[str]:
        answer = self.client.post("/v1/chat/completions", json=chat(text, max_tokens=2)).raise_for_status().json()
        return [worker["role"] for worker in answer["usage"]["warmroute"]["workers"]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pairs]:
    with Pairs(tmp_path_factory.mktemp("flip")) as found:
        yield found


@pytest.fixture(autouse=True)
def key(fleet: Pairs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMROUTE_ADMIN_KEY", fleet.proxy.admin_key)


def test_an_engine_is_taken_out_flipped_and_taken_in_again(fleet: Pairs, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(fleet.roles_of_a_turn("before")) == {"prefill", "decode"}
    assert fleet.flip("d0") == 0
    out = capsys.readouterr().out
    assert out.index("drained") < out.index("d0 is a prefill engine now")
    assert fleet.role("d0") == ("prefill", "up")
    info = httpx.get(f"{fleet.engines['d0'].url}/server_info").json()
    assert info["disaggregation_mode"] == "prefill"
    for other in ("p0", "p1"):
        fleet.admin.post(f"/admin/engines/{other}/drain").raise_for_status()
    until(lambda: fleet.role("p0")[1] == "draining", "the other prefill engines drain")
    assert fleet.roles_of_a_turn("after") == ["prefill", "decode"]
    assert httpx.get(f"{fleet.engines['d0'].url}/engine/finished").json()["total"] >= 1
    for other in ("p0", "p1"):
        fleet.admin.delete(f"/admin/engines/{other}/drain").raise_for_status()
    assert fleet.flip("d0") == 0
    assert fleet.role("d0") == ("decode", "up")
    assert set(fleet.roles_of_a_turn("at last")) == {"prefill", "decode"}


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("p1", "engine p1 runs speculative decoding, with which SGLang switches no role"),
        ("d1", "engine d1 was started without --enable-pd-role-switch"),
        ("nothing", "there is no engine 'nothing' in east"),
        ("p0", "p0 is the only prefill engine that serves"),
    ],
)
def test_what_cannot_be_flipped_is_refused_and_goes_on(
    fleet: Pairs, engine: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if engine == "p0":
        fleet.admin.post("/admin/engines/p1/drain").raise_for_status()
    assert fleet.flip(engine) == 2
    fleet.admin.delete("/admin/engines/p1/drain").raise_for_status()
    assert words in capsys.readouterr().err
    if engine != "nothing":
        assert fleet.role(engine)[1] == "up"


def test_an_engine_that_was_not_drained_is_not_flipped(fleet: Pairs) -> None:
    answer = fleet.admin.post("/admin/engines/d0/flip")
    assert answer.status_code == 409
    assert "engine d0 is not drained" in answer.json()["error"]["message"]


def test_the_engine_refuses_a_role_that_is_none(fleet: Pairs) -> None:
    url = fleet.engines["p0"].url
    assert "invalid new_role='both'" in httpx.post(f"{url}/pd_role_switch", json={"new_role": "both"}).text
