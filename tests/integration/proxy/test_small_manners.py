"""Small things that clients rely on: addresses of IPv6, pages in browsers, compressed bodies, two keys, odd methods."""

import gzip
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.subjects.processes import PLAIN, EngineProcess, ProxyProcess, chat

PAGE = "https://app.example.com"
ASKS = {
    "origin": PAGE, "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,x-api-key",
}  # fmt: skip
MODEL = "kimi-k2.5"
ROUTES = [
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses",
    "/v1/responses/compact", f"/v1beta/models/{MODEL}:generateContent", "/v1/sessions/expect",
]  # fmt: skip


@pytest.fixture(scope="module")
def pages(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy that pages may call, on an address of IPv6."""
    extra = f'host = "::1"\nadmin_host = "::1"\ncors_origins = ["{PAGE}"]\n'
    with ProxyProcess(tmp_path_factory.mktemp("pages"), [engine.toml("east")], extra=extra) as proxy:
        yield proxy


def test_the_printed_addresses_can_be_used(pages: ProxyProcess) -> None:
    assert (httpx.URL(pages.url).host, httpx.URL(str(pages.line["admin_url"])).host) == ("::1", "::1")
    assert httpx.get(f"{pages.url}/health", verify=PLAIN).status_code == 200
    with pages.admin() as admin:
        assert admin.get("/metrics").status_code == 200


def test_a_page_asks_first_without_a_key(pages: ProxyProcess) -> None:
    answer = httpx.options(f"{pages.url}/v1/chat/completions", headers=ASKS, verify=PLAIN)
    found = {name: value for name, value in answer.headers.items() if name.startswith(("access-control-allow", "vary"))}
    assert (answer.status_code, found) == (
        200,
        {
            "access-control-allow-origin": PAGE,
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": "authorization,x-api-key",
            "vary": "origin",
        },
    )


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"max_tokens": "many"}], ids=["whole", "stream", "refused"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/models"])
def test_a_page_may_read_answers_and_errors(pages: ProxyProcess, path: str, more: dict[str, Any]) -> None:
    with pages.client() as client:
        body = {**chat("a page"), "max_tokens": 3, **more}
        if path == "/v1/models":
            answer = client.get(path, headers={"origin": PAGE})
        else:
            answer = client.post(path, json=body, headers={"origin": PAGE})
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.status_code == (400 if "many" in more.values() and path != "/v1/models" else 200)


def test_another_page_may_not(pages: ProxyProcess, raw: httpx.Client) -> None:
    other = {**ASKS, "origin": "https://evil.example.com"}
    for url, headers in ((pages.url, other), (str(raw.base_url), ASKS)):  # the other proxy has no origins
        answer = httpx.options(f"{url.rstrip('/')}/v1/chat/completions", headers=headers, verify=PLAIN)
        assert answer.status_code == 405
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br"])
def test_a_compressed_body_is_refused_in_words(raw: httpx.Client, path: str, encoding: str) -> None:
    answer = raw.post(path, content=gzip.compress(b"{}"), headers={"content-encoding": encoding})
    error = answer.json()["error"]
    assert answer.status_code == 415
    assert f"compressed bodies ('{encoding}') are not read" in error["message"]
    assert answer.headers["accept-encoding"] == "identity"


def test_an_encoding_that_is_none_is_read(raw: httpx.Client) -> None:
    answer = raw.post(
        "/v1/chat/completions", json=chat("plain", max_tokens=1), headers={"content-encoding": "Identity"}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("version", ["v1beta", "v1"])
@pytest.mark.parametrize("method", ["batchGenerateContent", "embedContent", "predict"])
def test_another_method_of_googles_is_refused_in_its_shape(raw: httpx.Client, version: str, method: str) -> None:
    answer = raw.post(f"/{version}/models/{MODEL}:{method}", json={})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert method in error["message"]


def test_a_wrong_method_is_said_in_the_shape_of_its_api(raw: httpx.Client) -> None:
    theirs, ours = raw.delete(f"/v1beta/models/{MODEL}"), raw.delete("/v1/models")
    assert (theirs.status_code, theirs.json()["error"]["status"]) == (405, "INVALID_ARGUMENT")
    assert (ours.status_code, ours.json()["error"]["code"]) == (405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/messages", {"authorization": "Bearer RIGHT", "x-api-key": "wrong"}, 200),
        ("/v1/messages", {"authorization": "Bearer wrong", "x-api-key": "RIGHT"}, 401),
        ("/v1/messages", {"authorization": "Basic wrong", "x-api-key": "RIGHT"}, 200),
        (f"/v1beta/models/{MODEL}:generateContent?key=wrong", {"x-goog-api-key": "RIGHT"}, 200),
        (f"/v1beta/models/{MODEL}:generateContent?key=RIGHT", {"x-goog-api-key": "wrong"}, 401),
        (f"/v1beta/models/{MODEL}:generateContent?key=RIGHT", {"authorization": "Bearer wrong"}, 401),
    ],
)
def test_of_two_keys_one_counts(proxy: ProxyProcess, path: str, headers: dict[str, str], status: int) -> None:
    """A bearer, then the header of an API, then the address."""
    key = proxy.keys[0]
    given = {name: value.replace("RIGHT", key) for name, value in headers.items()}
    body: dict[str, Any] = {"contents": [{"parts": [{"text": "two keys"}]}]}
    if path == "/v1/messages":
        body = {**chat("two keys"), "max_tokens": 2}
    answer = httpx.post(proxy.url + path.replace("RIGHT", key), json=body, headers=given, verify=PLAIN)
    assert answer.status_code == status
