"""Bad input gets the error that a client of this API expects; nothing is billed, nothing leaks, the server stays up."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.processes import EngineProcess, ProxyProcess, answer, chat
from warmroute.contract.steering import REFUSED_FIELDS
from warmroute_proxy.server.base.errors import no_model

CANARY = "canary-7f3a9c"
SECRET_SESSION = "session-canary-51c0"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("bad")
    limits = "body_bytes = 200000\nheader_bytes = 8000\nheader_count = 40"
    with (
        EngineProcess(folder, "a0", "aggregated", "--context-length", "4096") as engine,
        ProxyProcess(folder / "p", [engine.toml("east")], limits=limits) as started,
    ):
        yield started
    written = started.written()
    assert [secret for secret in (CANARY, SECRET_SESSION, *started.keys) if secret in written] == []


def body(**fields: Any) -> bytes:
    return json.dumps(chat(CANARY, **fields)).encode()


MANY = {f"x{number}": 0 for number in range(1_000)}


def user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


BAD_BODIES: list[tuple[str, bytes, int, str | None]] = [
    ("empty", b"", 400, "invalid_json"),
    ("not JSON", b'{"model": "kimi-k2.5", "messages": [', 400, "invalid_json"),
    ("an array", b"[]", 400, "invalid_json"),
    ("trailing bytes", body() + b"x", 400, "invalid_json"),
    ("deep", b'{"model":"kimi-k2.5","messages":' + b"[" * 90_000, 400, "invalid_json"),
    ("duplicate field", body()[:-1] + b',"model":"other"}', 400, "duplicate_field"),
    ("escaped duplicate", body()[:-1] + b',"\\u006dodel":"other"}', 400, "duplicate_field"),
    ("escaped control field", body()[:-1] + b',"cache_\\u0073alt":"x"}', 400, "forbidden_field"),
    ("no model", b'{"messages":[{"role":"user","content":"x"}]}', 400, "missing_field"),
    ("model is a number", b'{"model":3,"messages":[{"role":"user","content":"x"}]}', 400, "invalid_type"),
    ("unknown model", body(model="gpt-9"), 404, "model_not_found"),
    ("no messages", b'{"model":"kimi-k2.5"}', 400, "missing_field"),
    ("messages is a string", b'{"model":"kimi-k2.5","messages":"hi"}', 400, "invalid_value"),
    ("messages is empty", b'{"model":"kimi-k2.5","messages":[]}', 400, "invalid_value"),
    ("a message is a number", b'{"model":"kimi-k2.5","messages":[1]}', 400, "invalid_value"),
    ("stream is a string", body(stream="yes"), 400, "invalid_type"),
    ("stream_options is a list", body(stream=True, stream_options=[1]), 400, "invalid_type"),
    ("include_usage is text", body(stream=True, stream_options={"include_usage": "yes"}), 400, "invalid_type"),
    ("temperature is text", body(temperature="hot"), 400, "invalid_type"),
    ("top_p is text", body(top_p="x"), 400, "invalid_type"),
    ("stop is a number", body(stop=5), 400, "invalid_type"),
    ("seed is text", body(seed="x"), 400, "invalid_type"),
    ("user is a number", body(user=5), 400, "invalid_type"),
    ("metadata is a number", body(metadata=5), 400, "invalid_type"),
    ("response_format is text", body(response_format="x"), 400, "invalid_type"),
    ("a session key that is a number", body(prompt_cache_key=5), 400, "invalid_type"),
    ("another rendezvous field", body(bootstrap_ports=[1]), 400, "forbidden_field"),
    ("negative max_tokens", body(max_tokens=-2), 400, "invalid_value"),
    ("the same in a stream", body(max_tokens=-2, stream=True), 400, "invalid_value"),
    ("max_tokens is text", body(max_tokens="five"), 400, "invalid_type"),
    ("negative max_completion_tokens", body(max_completion_tokens=-7), 400, "invalid_value"),
    ("more than a thousand fields", body(**MANY), 400, "invalid_value"),
    ("the same with spaces", body(**MANY).replace(b": 0", b":  0"), 400, "invalid_value"),
    ("n is zero", body(n=0), 400, "invalid_value"),
    ("n is huge", body(n=100_000), 400, "invalid_value"),
    ("prompt longer than the context", body(messages=user(CANARY * 3000)), 400, "context_length_exceeded"),
    ("body over the limit", body(messages=user(CANARY * 30_000)), 413, "request_too_large"),
    ("session key over 256 bytes", body(prompt_cache_key="k" * 257), 400, "invalid_session_key"),
    ("session key with control characters", body(prompt_cache_key="a\nb"), 400, "invalid_session_key"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "status", "code"), [case[1:] for case in BAD_BODIES], ids=[case[0] for case in BAD_BODIES]
)
def test_a_bad_body(client: httpx.Client, content: bytes, status: int, code: str) -> None:
    answer = client.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert set(error) == {"message", "type", "param", "code"}
    assert CANARY not in error["message"]


@pytest.mark.parametrize(
    "prompt",
    [
        *(b'""', b"[]", b'[""]', b'["a",""]', b'["", "a"]', b"[[]]", b"[[1,2],[]]", b"[[1],[[]]]"),
        *(b"[[ ]]", b"[[%b]]" % (b" " * 3000), b"null", b"5"),
    ],
)
def test_a_prompt_without_a_token_never_reaches_an_engine(client: httpx.Client, prompt: bytes) -> None:
    """SGLang's scheduler would die of it."""
    turns = client.get("/v1/usage").json()["turns"]
    answer = client.post("/v1/completions", content=b'{"model":"kimi-k2.5","stream":true,"prompt":%s}' % prompt)
    error = answer.json()["error"]
    wanted = "invalid_type" if prompt in {b"5", b"[[1],[[]]]"} else "invalid_value"
    assert (answer.status_code, error["code"], error["param"].partition("[")[0]) == (400, wanted, "prompt")
    assert client.get("/v1/usage").json()["turns"] == turns


def test_more_prompts_than_an_engine_is_asked_at_once(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json={"model": "kimi-k2.5", "prompt": ["a"] * 513})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize("field", [*sorted(REFUSED_FIELDS), "bootstrap_whatever_comes"])
def test_a_field_that_steers_engines_is_refused(client: httpx.Client, field: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        for value in (1, None, [1], "x"):
            answer = client.post(path, json={**chat(CANARY), "prompt": CANARY, field: value})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_an_engines_error_may_quote_the_body_to_its_own_client_alone(client: httpx.Client) -> None:
    """Errors of its schema do. That nothing of it is written is seen at the end."""
    answer = client.post("/v1/chat/completions", json=chat(messages=[{"role": CANARY, "content": CANARY}]))
    assert answer.status_code == 400


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wr-wrong"}, {"authorization": "Basic eDp5"}, {"authorization": ""}]
)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/usage", "/v1/usage/receipts/x"]
)
def test_no_key_or_a_wrong_one(proxy: ProxyProcess, path: str, headers: dict[str, str]) -> None:
    method = "POST" if path.endswith("completions") else "GET"
    answer = httpx.request(method, proxy.url + path, headers=headers, content=b"{}" if method == "POST" else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")


def test_a_tenant_gets_no_model_that_is_not_its_own(proxy: ProxyProcess) -> None:
    with proxy.client(tenant=1) as client:
        answer = client.post("/v1/chat/completions", json=chat(CANARY) | {"model": "other"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert answer.json()["error"]["message"].endswith("; you may use: 'kimi-k2.5'")


def test_a_message_names_ten_models_at_most() -> None:
    names = [f"m{number}" for number in range(12)]
    assert no_model("x", names).endswith("'m8', 'm9' and 2 more")
    assert no_model("x", names[:10]).endswith("'m8', 'm9'")


@pytest.mark.parametrize(
    "path", ["/generate", "/abort_request", "/flush_cache", "/server_info", "/v1/loads", "/v1/tokenize", "/x", "/v1"]
)
def test_routes_that_only_engines_have_do_not_exist(client: httpx.Client, path: str) -> None:
    for method in ("GET", "POST"):
        answer = client.request(method, path, json={"rid": "x"} if method == "POST" else None)
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "not_found"
        assert "answers come from /v1/chat/completions" in answer.json()["error"]["message"]
        assert ("base_url" in answer.json()["error"]["message"]) == (not path.startswith("/v1/"))


@pytest.mark.parametrize(
    ("path", "to_set"),
    [
        ("/mine/v1/messages", "ANTHROPIC_BASE_URL"),
        ("/v1/messages/batches", "/v1/messages"),
        ("/mine/responses", "address and /v1"),
        ("/mine/v1beta/models/gemini-3:streamGenerateContent?alt=sse", "GOOGLE_GEMINI_BASE_URL"),
        ("/api/chat", "OpenAI-compatible"),
        ("/v1/embeddings", "another base_url"),
        ("/v1/audio/transcriptions", "another base_url"),
        ("/mine/chat/completions", "address and /v1"),
        ("/v1/chat/completions/mine/chat/completions", "nothing behind it"),
    ],
)
def test_a_post_to_another_api_is_told_what_to_set(proxy: ProxyProcess, path: str, to_set: str) -> None:
    """Without a key that is known here: clients of other APIs send theirs in other headers."""
    answer = httpx.post(proxy.url + path, json={"model": "kimi-k2.5"}, headers={"x-api-key": "k"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (400, "api_not_served", "invalid_request_error")
    assert to_set in error["message"]
    assert (answer.json().get("type") == "error") == ("messages" in path)
    assert httpx.get(proxy.url + path).status_code in {401, 404}


@pytest.mark.parametrize(
    ("base_url", "ending", "body"),
    [
        *(
            (base_url, "/chat/completions", {"messages": [{"role": "user", "content": "x"}]})
            for base_url in ("", "/v1/", "/v1/v1", "/openai/v1", "/api", "/v1/chat/completions", "/v1beta/openai")
        ),
        ("/openai/deployments/mine", "/chat/completions?api-version=2026-10-01", {"messages": []}),
        ("/v1", "/chat/completions/", {"messages": []}),
        ("", "/completions", {"prompt": "x"}),
        ("", "/responses", {"input": "x"}),
        ("/v1/responses", "/responses", {"input": "x"}),
        *((base_url, "/v1/messages", {"messages": []}) for base_url in ("/v1", "/api/", "/anthropic", "/v1/messages")),
        ("/v1/messages", "/v1/messages/count_tokens", {"messages": []}),
        *(
            (base_url, "/v1beta/models/kimi-k2.5:generateContent", {"contents": []})
            for base_url in ("/v1", "/v1beta", "/api/")
        ),
    ],
)
def test_a_base_url_with_too_much_or_too_little_is_understood(
    client: httpx.Client, base_url: str, ending: str, body: dict[str, Any]
) -> None:
    """The proxy answers as at the right path, in the API's own format."""
    right = "/v1beta/models/" if "generateContent" in ending else "/v1/"
    path = right + ending.removeprefix(right).strip("/").partition("?")[0]
    found, plain = (
        client.post(to, json={"model": "kimi-k2.5", "max_tokens": 1, **body}) for to in (base_url + ending, path)
    )
    assert found.status_code == plain.status_code in {200, 400}
    assert found.json().keys() == plain.json().keys()
    assert found.json().get("error") == plain.json().get("error")


@pytest.mark.parametrize("model", [{}, {"model": None}], ids=["no model", "null"])
@pytest.mark.parametrize("body", [{"messages": user("x")}, {"prompt": "x"}, {"messages": user("x") * 4000}])
def test_azures_deployment_is_the_model_of_a_body_without_one(
    client: httpx.Client, model: dict[str, Any], body: dict[str, Any]
) -> None:
    right = "/chat/completions" if "messages" in body else "/completions"
    found = client.post(f"/openai/deployments/kimi-k2%2E5{right}", json={**model, "max_tokens": 1, **body})
    plain = client.post(f"/v1{right}", json={"model": "kimi-k2.5", "max_tokens": 1, **body})
    assert (found.status_code, found.json().get("model")) == (plain.status_code, plain.json().get("model"))
    assert found.json().get("error") == plain.json().get("error")


@pytest.mark.parametrize("base_url", ["", "/v1/", "/v1/v1", "/v1/chat/completions"])
def test_models_are_listed_at_any_base_url(client: httpx.Client, base_url: str) -> None:
    assert client.get(base_url + "/models").json() == client.get("/v1/models").json()


@pytest.mark.parametrize(
    "headers", [{"x-long": "v" * 9000}, {f"x-{i}": "v" for i in range(60)}], ids=["bytes", "count"]
)
def test_too_many_header_bytes_or_headers(client: httpx.Client, headers: dict[str, str]) -> None:
    answer = client.get("/v1/usage", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (431, "headers_too_large")


@pytest.mark.parametrize("key", ["k" * 257, "a\tb"])
def test_a_bad_session_header(client: httpx.Client, key: str) -> None:
    answer = client.post("/v1/chat/completions", json=chat(CANARY), headers={"x-session-affinity": key})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_session_key")


def test_a_key_is_the_same_in_header_and_body(client: httpx.Client) -> None:
    key = "clé-日本"
    headers = [(b"x-session-id", key.encode())]
    answers = [
        client.post("/v1/chat/completions", json=chat("é", max_tokens=1), headers=headers),
        client.post("/v1/chat/completions", json=chat("é", max_tokens=1, prompt_cache_key=key)),
    ]
    assert len({answer.json()["usage"]["warmroute"]["session"] for answer in answers}) == 1


def test_bytes_that_are_no_utf_8_get_an_answer(client: httpx.Client) -> None:
    for field in (b'"prompt_cache_key":"\xff"', b'"metadata":{"user_id":"\xff"}', b'"user":"\xff"', b'"model":"\xff"'):
        content = b'{"messages":[{"role":"user","content":"x"}],"model":"kimi-k2.5",' + field + b"}"
        answer = client.post("/v1/chat/completions", content=content, timeout=seconds(5))
        assert answer.status_code == 400


def test_a_forged_forward_is_no_way_in(proxy: ProxyProcess, client: httpx.Client) -> None:
    forged = {"x-warmroute-forward": "e30=.0000"}
    assert httpx.post(f"{proxy.url}/v1/chat/completions", headers=forged, json=chat(CANARY)).status_code == 401
    dropped = client.post("/v1/chat/completions", headers=forged, json=chat(CANARY))
    assert dropped.status_code == 200


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [("/admin/decisions?limit=many", 400, "invalid_value"), ("/admin/none/", 404, "not_found")],
)
def test_an_operator_gets_errors_of_the_same_shape(proxy: ProxyProcess, path: str, status: int, code: str) -> None:
    with proxy.admin() as admin:
        answer = admin.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "many" not in path or answer.json()["error"]["message"].startswith("limit: ")


@pytest.mark.parametrize("path", ["/ready", "/health", "/openapi.json"])
@pytest.mark.parametrize("framing", [b"content-length: 200000", b"transfer-encoding: chunked"])
def test_who_has_no_key_sends_no_body(proxy: ProxyProcess, path: str, framing: bytes) -> None:
    url = httpx.URL(proxy.url)
    with socket.create_connection((url.host, url.port or 80), timeout=seconds(20)) as sock:
        sock.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n" % (path.encode(), framing))
        status, _, said = answer(sock)
        assert (status, json.loads(said)["error"]["code"]) == (400, "bad_request")
        assert sock.recv(1) == b"", "and is not listened to any longer"
    assert httpx.get(f"{proxy.url}{path}").status_code == 200


def test_nothing_is_billed_of_what_is_refused(proxy: ProxyProcess, client: httpx.Client) -> None:
    """Rows exist for what was dispatched only. What was written is looked at when the proxy has ended."""
    before = client.get("/v1/usage").json()
    refused = client.post(
        "/v1/chat/completions", json=chat(CANARY, max_tokens=-2), headers={"x-session-id": SECRET_SESSION}
    )
    served = client.post("/v1/chat/completions", json=chat(CANARY), headers={"x-session-id": SECRET_SESSION})
    assert (refused.status_code, served.status_code) == (400, 200)
    assert client.get("/v1/usage").json()["turns"] == before["turns"] + 1
    rows = proxy.rows(expected=before["turns"] + 1)
    assert {row["outcome"] for row in rows} <= {"completed", "refused"}
    assert all(row["price_nanousd"] == 0 for row in rows if row["outcome"] == "refused")
