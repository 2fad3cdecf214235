"""A key in an address is used where Google's clients put it, and nowhere else: addresses end up in logs."""

from pathlib import Path

import httpx

from tests.machine import seconds
from tests.subjects.processes import PLAIN, ProxyProcess, chat

GEMINI = "/v1beta/models/kimi-k2.5:generateContent"


def status(proxy: ProxyProcess, method: str, path: str, body: object = None) -> int:
    url = f"{proxy.url}{path}?key={proxy.keys[0]}"
    return httpx.request(method, url, json=body, verify=PLAIN, timeout=seconds(20)).status_code


def test_it_is_used_for_geminis_api_alone(proxy: ProxyProcess) -> None:
    contents = {"contents": [{"parts": [{"text": "x"}]}], "generationConfig": {"maxOutputTokens": 2}}
    said = [{"role": "user", "content": "x"}]
    assert status(proxy, "POST", GEMINI, contents) == 200
    assert status(proxy, "GET", "/v1beta/models") == 200
    assert status(proxy, "POST", "/v1/chat/completions", chat()) == 401
    assert status(proxy, "POST", "/v1/messages", {"model": "kimi", "max_tokens": 1, "messages": said}) == 401
    assert status(proxy, "POST", "/v1/responses", {"model": "kimi", "input": "x"}) == 401
    for path in ("/v1/models", "/v1/usage"):
        assert status(proxy, "GET", path) == 401


def test_no_key_is_written_down(proxy: ProxyProcess) -> None:
    for path in (GEMINI, "/v1/models", "/v1beta/nothing", f"/v1/{'x' * 300}"):
        status(proxy, "POST", path, {})
    written = "".join(path.read_text(errors="replace") for path in Path(proxy.folder).rglob("*.log"))
    assert proxy.keys[0] not in written
