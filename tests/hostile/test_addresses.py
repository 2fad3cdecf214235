"""Addresses of images, audio and files: one policy for all APIs, so that no engine goes where a client may not."""

import json
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.field.fuzz.body_template import CONFIG, SECRETS, TENANT
from tests.hostile.reading import GEMINI, MESSAGES, RESPONSES, request_parser
from tests.subjects.documents import config_of
from warmroute.contract.conversations import Conversations
from warmroute_proxy.core.prompt.addresses import PUBLIC, Addresses
from warmroute_proxy.server.arrival import translate
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.dialects.routes import dialect_of
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.caller import Callers
from warmroute_proxy.server.intake.intake import read
from warmroute_proxy.server.intake.parsed_request import CHAT

PIXEL = "data:image/png;base64,AAAA"
LEADS_INSIDE = [
    "file:///etc/passwd", "/etc/passwd.png", "passwd.png", "ftp://example.org/a.png", "gopher://example.org/",
    "http://169.254.169.254/latest/meta-data", "http://127.0.0.1:8001/metrics", "HTTP://127.0.0.1/", "http://127.1/",
    "http://2130706433/", "http://0x7f.0x1/", "http://0177.0.0.1/", "http://0/", "http://999/", "http://09.1/",
    "http://10.1.2.3/a.png", "http://100.64.0.1/", "http://192.168.0.1./", "http://1.2.3.4.5/", "http://[::1]/",
    "http://[fe80::1]/", "http://[fd00::1]/", "http://[::ffff:169.254.169.254]/", "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::]/", "http://[::]/", "http://[::7f00:1]/", "http://[::ffff:0:7f00:1]/",
    "http://[64:ff9b:1::7f00:1]/", "http://[fec0::1]/", "http://localhost:8001/", "http://LOCALHOST./",
    "http://a.localhost/", "http://example.org@169.254.169.254/", "http://169.254.169.254\\@example.org/",
    "http://example.org\t.evil/", " http://example.org/", "http:///a.png", "http://", "//example.org/a.png", "",
    "http://\uff11\uff16\uff19.254.169.254/", "http://%31%36%39.254.169.254/",
]  # fmt: skip
PASSES = [
    PIXEL,
    "https://example.org/a.png?b=c#d",
    "http://example.org:8080/a%20b.png",
    "HTTPS://Example.Org/",
    "https://93.184.216.34/a.png",
    "https://[2606:2800:220:1:248:1893:25c8:1946]/a.png",
    "https://xn--bcher-kva.example/",
    "https://10.example.org/",
]


def bodies(url: str) -> dict[str, list[dict[str, Any]]]:
    """Requests of each API with an address, in each place that has one."""
    user: dict[str, Any] = {"role": "user"}
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image_url", "image_url": url},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "audio_url", "audio_url": {"url": url, "format": "wav"}},
        {"type": "text", "text": "a", "image_url": {"url": url}},
        {"type": "text", "text": "a", "file_url": url},
    ]
    image = {"type": "image", "source": {"type": "url", "url": url}}
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [image]}
    asked = [
        [{**user, "content": [image]}],
        [{**user, "content": "a"}, {"role": "assistant", "content": [call]}, {**user, "content": [result]}],
    ]
    part = {"type": "input_image", "image_url": url}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    return {
        CHAT: [{"model": "m", "messages": [{**user, "content": [each]}]} for each in parts],
        MESSAGES: [{"model": "m", "max_tokens": 1, "messages": messages} for messages in asked],
        RESPONSES: [
            {"model": "m", "input": [{**user, "content": [part]}]},
            {"model": "m", "input": [{**user, "content": "a"}, called, output]},
        ],
        GEMINI: [{"contents": [{"parts": [{"fileData": {"mimeType": "image/png", "fileUri": url}}]}]}],
    }


def status(path: str, body: dict[str, Any]) -> int:
    """400 where it is refused."""
    parser = request_parser()
    caller = parser.callers.of(CHAT, TENANT, {})
    request = Request(0.0, "POST", path)
    request.body = json.dumps(body).encode()
    try:
        if path == CHAT:
            parser.read(request, caller)
        else:
            dialect = dialect_of(path)
            assert dialect is not None
            parser.read_translated(translate(request, dialect, parser.terms(TENANT))[0], caller)
    except Refusal as refusal:
        assert "url" in refusal.message or "Uri" in refusal.message or "fileData" in refusal.message
        return refusal.status
    return 200


@pytest.mark.parametrize("url", LEADS_INSIDE)
def test_an_address_that_leads_inside_is_refused_by_each_api(url: str) -> None:
    of_web = url.lower().startswith(("http://", "https://"))
    for path, asked in bodies(url).items():
        expected = [400] * len(asked)
        if path == RESPONSES:  # what is no address: an empty one, and what a tool wrote, are not shown to the engine
            expected = [400 if url else 200, 400 if of_web else 200]
        assert [status(path, body) for body in asked] == expected, path


@pytest.mark.parametrize("url", PASSES)
def test_others_pass_in_each_api(url: str) -> None:
    for path, asked in bodies(url).items():
        if path == GEMINI and url == PIXEL:
            continue  # it has a part of its own for data
        assert [status(path, body) for body in asked] == [200] * len(asked), path


@pytest.mark.parametrize("url", LEADS_INSIDE[:3])
def test_a_part_that_no_engine_reads_is_left_out_with_its_address(url: str) -> None:
    parser = request_parser()
    request = Request(0.0, "POST", CHAT)
    part = {"type": "file", "file_url": url, "image_url": {"url": url}}
    request.body = json.dumps({"model": "m", "messages": [{"role": "user", "content": [part]}]}).encode()
    parser.read(request, parser.callers.of(CHAT, TENANT, {}))
    assert url not in json.dumps(json.loads(request.body))


def test_a_known_conversation_is_no_way_around() -> None:
    """Of a body whose beginning is known only the rest is read."""
    callers = Callers(SECRETS, Conversations("x"))
    caller = callers.of(CHAT, TENANT, {})
    said = [{"role": "user", "content": "x" * 20_000}, {"role": "assistant", "content": "y"}]
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    request = Request(0.0, "POST", CHAT)
    request.body = json.dumps({"model": "m", "messages": said}).encode()
    for _ in range(3):
        read(request, caller, callers, CONFIG)
    request.body = json.dumps({"model": "m", "messages": [*said, {"role": "user", "content": [image]}]}).encode()
    with pytest.raises(Refusal, match="private or local"):
        read(request, caller, callers, CONFIG)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{}", "0x{:x}", "0{:o}"]))
def test_a_number_is_an_address_however_it_is_written(number: int, form: str) -> None:
    plain = ".".join(str(number >> shift & 255) for shift in (24, 16, 8, 0))
    assert PUBLIC.problem(f"http://{form.format(number)}/") == PUBLIC.problem(f"http://{plain}/")


@given(st.text(max_size=40))
def test_any_text_is_judged(text: str) -> None:
    for address in (text, f"http://{text}", f"https://{text}/a.png"):
        assert PUBLIC.problem(address) is None or PUBLIC.problem(address)


def test_the_config_says_which() -> None:
    only = Addresses(("https",), (ip_network("10.20.0.0/16"),))
    assert only.problem("https://10.20.3.4/a.png") is None
    assert only.problem("https://10.21.3.4/a.png")
    assert only.problem("http://example.org/a.png")
    said: dict[str, Any] = {"region": "east", "media_schemes": ["https"], "media_networks": ["10.20.0.0/16"]}
    assert config_of(proxy=said).proxy.media == only
    with pytest.raises(ConfigError) as error:
        config_of(proxy=said | {"media_schemes": ["file"], "media_networks": ["ten"]})
    places = [problem.partition(":")[0] for problem in error.value.problems]
    assert places == ["proxy.media_schemes", "proxy.media_networks"]
