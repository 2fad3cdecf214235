"""`warmroute audit isolation` in front of embedded engines: what is isolated, what leaks, and what shows nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess
from tests.subjects.scripted import Handler, ScriptedEngine
from tests.subjects.stopped import Stopped
from warmroute_cli.main import main
from warmroute_proxy.server.base.secrets import new_api_key

pytestmark = pytest.mark.full

SLOW = 4.0
"""Virtual seconds a second: a prompt takes long enough to be told from a cached one."""

TRIES = 4

OPTIONS = ("--model", "kimi-k2.5", "--trials", "8", "--prompt-bytes", "60000")


class Tried(Stopped):
    """A proxy in front of one engine, and the key files of its tenants."""

    def __init__(self, folder: Path, engine: str) -> None:
        member, digest = new_api_key()
        group = f'[[tenant]]\nname = "member"\nshare_group = "first"\nkey_sha256 = ["{digest}"]'
        self.proxy = ProxyProcess(folder / "p", [engine, group])
        self.files = {name: folder / f"{name}.key" for name in ("first", "second", "member")}
        for file, key in zip(self.files.values(), (*self.proxy.keys, member), strict=True):
            file.write_text(f"{key}\n")

    def begin(self) -> None:
        self.proxy.begin()

    def stop(self) -> None:
        self.proxy.stop()

    def audit(self, capsys: pytest.CaptureFixture[str], *more: str, other: str = "second") -> tuple[int, list[Any]]:
        """The exit status, and the verdicts."""
        keys = ("--key-file", str(self.files["first"]), "--other-key-file", str(self.files[other]))
        address = ("--base-url", self.proxy.url, "--json")
        capsys.readouterr()
        status = main(["audit", "isolation", *address, *keys, *OPTIONS, *more])
        return status, json.loads(capsys.readouterr().out or "[]")

    def audit_of_times(self, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[Any]]:
        """The same, again where times did not differ: so few of them may not, on a busy machine."""
        for _ in range(TRIES):
            status, found = self.audit(capsys, *more)
            if not any(each["finding"].startswith("shows nothing of times") for each in found):
                break
        return status, found


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path_factory.mktemp("engine"), "e0", "aggregated", speed=SLOW) as found:
        yield found


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory, engine: EngineProcess) -> Iterator[Tried]:
    with Tried(tmp_path_factory.mktemp("tried"), engine.toml("east")) as found:
        yield found


def test_tenants_see_nothing_of_each_other_and_share_groups_share(
    tried: Tried, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = tried.audit_of_times(capsys, "--group-key-file", str(tried.files["member"]))
    assert status == 0, found
    assert [each["finding"] for each in found] == ["sees nothing", "shares, as configured", "finds its own prompts"]
    outsider, member, itself = found
    assert outsider["hits"] == 0
    assert member["hits"] == itself["hits"] == 8
    assert itself["p_value"] < 0.001
    assert itself["median_ttft_s"] < itself["median_new_ttft_s"]


def test_tenants_of_one_cache_are_found_out(tried: Tried, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = tried.audit(capsys, other="member")
    assert status == 1
    assert found[0]["finding"] == "LEAK: cached tokens reveal prompts of another tenant"


def test_a_broken_salt_is_found(tmp_path: Path, engine: EngineProcess, capsys: pytest.CaptureFixture[str]) -> None:
    def unsalted(handler: Handler) -> None:
        """Ask the engine with one salt in the place of all: no sound proxy does that."""
        body = {**handler.engine.sent(), "cache_salt": "the same for all"}
        answer = httpx.post(engine.url + handler.path, json=body, timeout=seconds(60), verify=PLAIN)
        handler.reply(answer.status_code, answer.content, answer.headers["content-type"])

    with ScriptedEngine("e0", unsalted) as relay, Tried(tmp_path, relay.toml()) as tried:
        status, found = tried.audit(capsys)
    assert status == 1
    assert found[0]["finding"].startswith("LEAK: cached tokens")


def test_the_host_tier_is_isolated_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiers = ("--enable-hierarchical-cache", "--hicache-ratio", "8", "--kv-tokens", "40000")
    with (
        EngineProcess(tmp_path, "e0", "aggregated", *tiers, speed=SLOW) as engine,
        Tried(tmp_path, engine.toml("east")) as tried,
    ):
        status, found = tried.audit_of_times(capsys, "--tier", "host", "--filler", "3")
    assert status == 0, found


def test_a_tier_that_is_not_there_is_not_shown_to_be_isolated(tried: Tried, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = tried.audit(capsys, "--tier", "host")
    assert status == 1
    assert found[-1]["finding"] == "shows nothing: the prompts were not found in the host tier"


def test_an_audit_in_which_nothing_hits_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (
        EngineProcess(tmp_path, "e0", "aggregated", "--kv-tokens", "20000", speed=SLOW) as engine,
        Tried(tmp_path, engine.toml("east")) as tried,
    ):
        status, found = tried.audit(capsys, "--filler", "2")  # they drive everything out of the only tier
    assert status == 1
    assert found[-1]["finding"] == "shows nothing: the prompts were not found again"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--trials", "3"), "--trials 3 is too few"),
        (("--model", "none"), "the server answers 404"),
        (("--base-url", "ftp://x"), "'ftp://x' is not an http address"),
        (("--base-url", "http://127.0.0.1:1"), "127.0.0.1: "),
        (("--base-url", "http://127.0.0.1:99999"), "'http://127.0.0.1:99999' is not an http address"),
        (("--key-file", "/none"), "/none cannot be read"),
        (("--key-file", "second.key"), "--other-key-file and --key-file hold the same key"),
        (("--group-key-file", "first.key"), "--group-key-file and --key-file hold the same key"),
    ],
)
def test_what_cannot_be_tried_is_one_sentence(
    tried: Tried, capsys: pytest.CaptureFixture[str], more: tuple[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ("--key-file", str(tried.files["first"]), "--other-key-file", str(tried.files["second"]))
    monkeypatch.chdir(tried.files["first"].parent)
    assert main(["audit", "isolation", "--base-url", tried.proxy.url, *keys, *OPTIONS, *more]) == 2
    out, error = capsys.readouterr()
    assert (out, error.count("\n")) == ("", 1)
    assert error.startswith(f"warmroute audit: {said}")
