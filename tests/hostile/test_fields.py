"""What reaches an engine: fields of the list, within bounds. The other tenant sees nothing."""

import json
from typing import Any

import pytest

from .conftest import HOSTILE, INNOCENT, MakePlace, Place


@pytest.fixture
def place(make_place: MakePlace) -> Place:
    return make_place(1, second='granted_fields = ["regex"]\nunlisted_fields = "refuse"')


def test_what_could_end_an_engine_is_refused_and_names_its_field(place: Place) -> None:
    asked: list[tuple[str, dict[str, Any], str]] = [
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "top_k": 10**12}, "top_k"),
        ("chat/completions", {"messages": [{"role": "user", "content": "x"}], "beam_width": 9}, "beam_width"),
        ("completions", {"prompt": [[-1]]}, "prompt"),
        ("completions", {"prompt": "x", "logprobs": 1_000_000}, "logprobs"),
    ]
    with place.proxy.client(HOSTILE) as client:
        for path, fields, name in asked:
            answer = client.post(f"/v1/{path}", json={"model": "kimi-k2.5", **fields})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert client.post("/v1/completions", json={"model": "kimi-k2.5", "prompt": [1, 2]}).status_code == 200
    assert place.ask(INNOCENT, "hello").status_code == 200


def test_unknown_fields_are_dropped_and_named_in_the_receipt_and_the_row(place: Place) -> None:
    answer = place.ask(INNOCENT, "x", beam_width=9, **{"y" * 300: 1})
    assert answer.status_code == 200
    dropped = ["beam_width", "y" * 64 + "..."]
    assert answer.json()["usage"]["warmroute"]["dropped_fields"] == dropped
    row = next(row for row in place.proxy.rows(1) if row["id"] == answer.headers["x-warmroute-receipt"])
    assert json.loads(row["usage"])["warmroute"]["dropped_fields"] == dropped
    assert "dropped_fields" not in place.ask(INNOCENT, "x", temperature=0.5).json()["usage"]["warmroute"]


def test_where_unknown_fields_are_refused_an_agent_still_works(place: Place) -> None:
    """Claude Code sends what only Anthropic can do: the proxy knows it, and drops it by name."""
    known = {
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "diagnostics": {"enabled": True},
        "tools": [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}],
    }
    body = {"model": "kimi-k2.5", "max_tokens": 4, "messages": [{"role": "user", "content": "x"}]}
    with place.proxy.client(HOSTILE) as client:
        answer = client.post("/v1/messages", json={**body, **known})
        assert answer.status_code == 200
        dropped = answer.json()["usage"]["warmroute"]["dropped_fields"]
        assert dropped == ["context_management", "diagnostics", "tools.web_search_20250305"]
        refused = client.post("/v1/messages", json={**body, "beam_width": 9})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unknown_field")


def test_a_tenant_may_be_granted_a_grammar(place: Place) -> None:
    assert place.ask(HOSTILE, "x", regex="a+").status_code == 200
    assert place.ask(INNOCENT, "x", regex="a+").json()["error"]["code"] == "field_not_allowed"


def test_token_ids_need_a_vocabulary(place: Place) -> None:
    answer = place.ask(INNOCENT, "x", model="other", stop_token_ids=[5])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "token_ids_not_allowed")
