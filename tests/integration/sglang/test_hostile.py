"""What ended or hung a real SGLang before requests had a list of fields."""

from pathlib import Path
from typing import Any

import pytest

from tests.hostile.field_fuzz import fuzz
from tests.integration.sglang.behind import Behind, conversation, toml
from tests.subjects.processes import ProxyProcess
from warmroute_backend.sglang import Server

VOCABULARY = 2048
ROUNDS = 200
LETHAL: list[dict[str, Any]] = [
    {"logprobs": True, "top_logprobs": 1_000_000},
    {"top_k": 10**12},
    {"min_tokens": 4, "stop_token_ids": [99_999_999]},
    {"stop_regex": "(.+)+\u0001"},
    {"repetition_penalty": 1e-300},
    {"chat_template_kwargs": {"tokenize": True}},
    {"seed": 2**64},
]
LETHAL_COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": "x", "logprobs": 1_000_000},
    *({"prompt": prompt} for prompt in ([-1], [[-1]], [99_999_999])),
]


def test_what_ends_a_server_is_refused_and_another_tenant_is_served(behind: Behind, name: str) -> None:
    with behind.proxy.client(0) as innocent, behind.proxy.client(1) as hostile:
        for fields in LETHAL:
            answer = hostile.post("/v1/chat/completions", json=conversation(name, max_tokens=4, **fields))
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] in fields
        for body in LETHAL_COMPLETIONS:
            assert hostile.post("/v1/completions", json={"model": "kimi-k2.5", **body}).status_code == 400
        answer = innocent.post("/v1/chat/completions", json=conversation(name, max_tokens=4))
        assert answer.status_code == 200, answer.text
    assert all(server.running() for server in behind.servers)


def test_a_bad_grammar_of_a_tenant_with_a_grant_is_its_own_failure(
    sglang_aggregated: Server, tmp_path: Path, name: str
) -> None:
    """SGLang answers it with a 500, which closes no engine to the other tenant."""
    granted = 'granted_fields = ["stop_regex"]'
    with (
        ProxyProcess(tmp_path / "proxy", [toml(sglang_aggregated)], second=granted) as proxy,
        proxy.client(0) as innocent,
        proxy.client(1) as hostile,
    ):
        for number in range(4):
            body = conversation(f"{name} {number}", max_tokens=4, stop_regex="(")
            assert hostile.post("/v1/chat/completions", json=body).status_code == 502
        answer = innocent.post("/v1/chat/completions", json=conversation(name, max_tokens=4))
        assert answer.status_code == 200, answer.text


@pytest.mark.timeout(900)
async def test_no_value_that_the_list_lets_pass_ends_or_hangs_a_server(sglang_aggregated: Server) -> None:
    """Some minutes of what `python -m tests.hostile.field_fuzz` does for an hour."""
    assert await fuzz(sglang_aggregated.url, 7, VOCABULARY, rounds=ROUNDS) == 0
