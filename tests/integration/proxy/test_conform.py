"""`warmroute conform` against a real proxy with embedded engines."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess
from warmroute_cli.main import main
from warmroute_lab.conform import answers
from warmroute_lab.conform.codex import LENGTHENS

CODEX = (
    "takes foreign items", "items have one id", "a cut answer is incomplete", "reasoning comes sealed",
    "an unknown model is refused", "compacts",
)  # fmt: skip
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that is slow to settle what its client has left is no wrong one."""
    monkeypatch.setattr(answers, "SETTLED_WITHIN_S", seconds(20))


@pytest.fixture(scope="module")
def keys(proxy: ProxyProcess, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    files = (folder / "first", folder / "second")
    for file, key in zip(files, proxy.keys, strict=True):
        file.write_text(key)
    return files


def cells(found: dict[str, Any], api: str) -> dict[str, dict[str, Any]]:
    return {cell["check"]: cell for cell in found["apis"][api]["cells"]}


def test_a_proxy_conforms_in_four_apis(proxy: ProxyProcess, keys: tuple[Path, Path], capsys: Capture) -> None:
    words = [
        "conform", proxy.url, "--model", "kimi-k2.5", "--key-file", str(keys[0]), "--other-key-file", str(keys[1]),
        "--api", "openai", "anthropic", "gemini", "responses", "--price", "0.6:0.1:3", "--json",
    ]  # fmt: skip
    code = main(words)
    out, err = capsys.readouterr()
    found, printed = json.loads(out), out + err
    failures = [check for api in found["apis"] for check, cell in cells(found, api).items() if cell["state"] == "fail"]
    assert (code, failures) == (0, [])
    for api in ("openai", "anthropic", "gemini", "responses"):
        states = {check: cell["state"] for check, cell in cells(found, api).items()}
        for check in ("cached tokens, whole", "cached tokens, streamed", "sticks by x-session-affinity", "cancel",
                      "retry", "isolation of two keys", "counts add up", "prices match", "keeps tools"):  # fmt: skip
            assert states[check] == "pass", (api, check, cells(found, api)[check])
    codex = {check: cells(found, "responses")[check]["state"] for check in (*LENGTHENS, *CODEX)}
    assert codex == dict.fromkeys(codex, "pass")
    announced = re.search(r"at most (\d+) requests with ([\d,]+) prompt tokens in all, at most ([\d.]+) USD", printed)
    assert announced is not None
    assert sum(found["apis"][api]["requests"] for api in found["apis"]) <= int(announced[1])
    assert sum(found["apis"][api]["prompt_tokens"] for api in found["apis"]) <= int(announced[2].replace(",", ""))
    assert not any(key in printed for key in proxy.keys)


def test_a_table_says_the_same(proxy: ProxyProcess, keys: tuple[Path, Path], capsys: Capture) -> None:
    words = ["conform", proxy.url, "--model", "kimi-k2.5", "--key-file", str(keys[0]), "--turns", "1"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "sticks by prompt_cache_key" in out
    assert "0 fail" in out


def test_nothing_is_sent_where_it_may_cost_more_than_was_allowed(capsys: Capture) -> None:
    words = ["conform", "http://127.0.0.1:9", "--price", "1000:1000:1000", "--most-usd", "0.01"]
    assert main(words) == 2
    assert "nothing was sent" in capsys.readouterr().err
    assert main(["conform", "http://127.0.0.1:9", "--dry-run"]) == 0
