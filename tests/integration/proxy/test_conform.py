"""`warmroute conform` against a real proxy with embedded engines, and against servers that break one rule each."""

import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

from tests.machine import seconds
from tests.subjects.http_server import QuietServer
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


def conform(capture: Capture, *words: object) -> tuple[int, dict[str, Any], str]:
    """The exit status, the JSON, and all that was printed."""
    code = main(["conform", *map(str, words), "--json"])
    out, err = capture.readouterr()
    return code, json.loads(out) if out else {}, out + err


def cells(found: dict[str, Any], api: str) -> dict[str, dict[str, Any]]:
    return {cell["check"]: cell for cell in found["apis"][api]["cells"]}


def test_a_proxy_conforms_in_four_apis(proxy: ProxyProcess, keys: tuple[Path, Path], capsys: Capture) -> None:
    code, found, printed = conform(
        capsys, proxy.url, "--model", "kimi-k2.5", "--key-file", keys[0], "--other-key-file", keys[1],
        "--api", "openai", "anthropic", "gemini", "responses", "--price", "0.6:0.1:3",
    )  # fmt: skip
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


class Wrong(BaseHTTPRequestHandler):
    """A server with one cache for everyone, which never streams, forgets tools, states wrong totals and echoes keys."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[set[str]] = set()

    def do_GET(self) -> None:
        self._answer({"object": "list", "data": [{"id": "m", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = sum(len(str(message["content"])) // 4 for message in body["messages"][:2])
        system = body["messages"][0]["content"]
        cached = prompt if system in self.seen or "n" in body else 0
        self.seen.add(system)
        usage = {
            "prompt_tokens": prompt,
            "completion_tokens": 9,
            "total_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        if "logprobs" in body:
            self._answer({"error": {"message": f"no logprobs for {self.headers['authorization']}"}}, 400)
        else:
            choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
            self._answer({"id": "1", "model": "m", "choices": [choice] * body.get("n", 1), "usage": usage})

    def _answer(self, found: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture(scope="module")
def wrong() -> Iterator[str]:
    with QuietServer(("127.0.0.1", 0), Wrong) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_each_red_cell_has_the_request_that_shows_it(wrong: str, keys: tuple[Path, Path], capsys: Capture) -> None:
    code, found, printed = conform(capsys, wrong, "--key-file", keys[0], "--other-key-file", keys[1])
    red = {check: cell for check, cell in cells(found, "openai").items() if cell["state"] == "fail"}
    assert code == 1
    assert set(red) == {
        "isolation of two keys", "keeps tools", "keeps tool calls", "keeps the answer's limit", "counts add up",
        "n > 1", "cancel",
    }  # fmt: skip
    for cell in red.values():
        assert cell["shown_by"]
        assert cell["shown_by"][0]["request"]["body"]["model"] == "m"
        assert cell["shown_by"][0]["usage"]
    assert red["isolation of two keys"]["shown_by"][1]["key"] == "second"
    assert not any(file.read_text() in printed for file in keys)
