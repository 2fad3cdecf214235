"""The conversion of each dialect to a chat-completions body."""

import gzip
import json
from pathlib import Path
from types import ModuleType

import pytest

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("api", ["gemini", "messages", "responses"])
def test_a_request_is_the_chat_of_its_golden_file(convert: ModuleType, api: str) -> None:
    case = json.loads((GOLDEN / f"convert_{api}.json").read_text())
    found = convert.convert_request(case["path"], case["request"])
    assert found == case["chat"]
    assert list(found)[:3] == ["model", "tools", "messages"], "the order of a template"


def test_chat_bodies_are_only_reordered(convert: ModuleType) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "model": "m", "unknown": {"kept": 1}, "tools": [{"a": 1}]}
    found = convert.convert_request("/v1/chat/completions", body)
    assert found == body
    assert list(found) == ["model", "tools", "messages", "unknown"]


def test_headers_lose_credentials_and_transport(convert: ModuleType) -> None:
    headers = [["Authorization", "masked"], ["Host", "h"], ["Content-Length", "1"], ["X-Session-Id", "s"]]
    assert convert.kept_headers(headers) == {"X-Session-Id": "s"}


def test_samples_keep_each_part_once_and_have_the_same_bytes_every_time(convert: ModuleType) -> None:
    first = {"role": "user", "content": "x"}
    bodies = [{"model": "m", "messages": [first]}, {"model": "m", "messages": [first, first]}]
    lines = [
        json.dumps({"n": n, "path": "/v1/chat/completions", "headers": [["A", "b"]], "body": body})
        for n, body in enumerate(bodies)
    ]
    sample = convert.to_sample("oc_test", lines)
    assert sample["parts"] == [first]
    assert [request["messages"] for request in sample["requests"]] == [[0], [0, 0]]
    assert (sample["harness"], sample["headers"]) == ("opencode", [{"A": "b"}])
    data = convert.compress(sample)
    assert data == convert.compress(convert.to_sample("oc_test", lines))
    assert json.loads(gzip.decompress(data)) == sample
