"""The session signal of each kind of server: what goes out, and that nothing else does."""

import pytest

from warmroute._backends import backend_of, home_of, signal
from warmroute.contract.providers import PROVIDERS

SIGNALS: list[tuple[str, str, dict[str, str], dict[str, str]]] = [
    ("warmroute", "http://127.0.0.1:8000/v1", {"x-session-affinity": "k", "x-warmroute-home": "east"}, {}),
    ("cloudflare", "https://api.cloudflare.com/client/v4/accounts/1/ai/v1", {"x-session-affinity": "k"}, {}),
    ("fireworks", "https://api.fireworks.ai/inference/v1", {"x-session-affinity": "k"}, {}),
    ("openai", "https://api.openai.com/v1", {}, {"prompt_cache_key": "k"}),
    ("openai", "https://mine.openai.azure.com/openai", {}, {"prompt_cache_key": "k"}),
    ("xai", "https://api.x.ai/v1", {"x-grok-conv-id": "k"}, {}),
    ("openrouter", "https://openrouter.ai/api/v1", {"x-session-id": "k"}, {}),
    ("opencode", "https://opencode.ai/zen/v1", {"x-opencode-session": "k", "x-parent-session-id": "p"}, {}),
    ("litellm", "", {"x-litellm-session-id": "k"}, {}),
    ("smg", "", {"x-smg-routing-key": "k"}, {}),
    ("dynamo", "", {"x-dynamo-session-id": "k", "x-dynamo-parent-session-id": "p"}, {}),
    ("vllm-production-stack", "", {"x-user-id": "k"}, {}),
    ("llm-d", "", {"cookie": "llm-d-session=east"}, {}),
    ("anthropic", "https://api.anthropic.com", {}, {}),
    ("deepseek", "https://api.deepseek.com/v1", {}, {}),
    ("moonshot", "https://api.moonshot.ai/v1", {}, {}),
    ("sglang", "", {}, {}),
    ("vllm", "", {}, {}),
    ("llama.cpp", "", {}, {}),
    ("mistral", "https://api.mistral.ai", {}, {}),
    ("google", "https://generativelanguage.googleapis.com/v1beta", {}, {}),
]


@pytest.mark.parametrize(("name", "base_url", "headers", "fields"), SIGNALS, ids=[f"{s[0]} {s[1]}" for s in SIGNALS])
def test_a_server_gets_its_signal_and_nothing_else(
    name: str, base_url: str, headers: dict[str, str], fields: dict[str, str]
) -> None:
    found = backend_of(None, base_url) if base_url else backend_of(name, "http://127.0.0.1")
    assert found is PROVIDERS[name]
    sent = signal(found, "k", derived=False, home="east", parent="p")
    assert (dict(sent.headers), dict(sent.fields)) == (headers, fields)
    without = signal(found, None, derived=False, home=None)
    assert (dict(without.headers), dict(without.fields)) == ({}, {})


def test_every_kind_has_its_case() -> None:
    assert set(PROVIDERS) == {name for name, *_ in SIGNALS}


@pytest.mark.parametrize(
    "base_url", ["http://localhost:8000", "https://llm.example.com/v1", "https://notopenai.com", ""]
)
def test_any_other_host_may_be_warmroute(base_url: str) -> None:
    assert backend_of(None, base_url) is PROVIDERS["warmroute"]


def test_the_name_is_stronger_than_the_host() -> None:
    assert backend_of("litellm", "https://api.openai.com") is PROVIDERS["litellm"]


def test_a_long_key_is_hashed_where_the_server_takes_short_ones() -> None:
    openai = backend_of("openai", "")
    [sent] = signal(openai, "k" * 65, derived=False, home=None).fields.values()
    assert len(sent) <= 64
    assert sent != "k" * 64
    assert signal(openai, "k" * 65, derived=True, home=None).headers == {}


def test_only_a_warmroute_server_learns_that_a_key_is_derived() -> None:
    headers = signal(backend_of("warmroute", ""), "d", derived=True, home=None).headers
    assert headers == {"x-session-affinity": "d", "x-warmroute-session-derived": "1"}


@pytest.mark.parametrize(
    ("cookies", "home"), [("llm-d-session=cG9k; Path=/; HttpOnly", "cG9k"), ("other=1; Path=/", None), ("", None)]
)
def test_llm_ds_cookie_is_kept_for_the_session(cookies: str, home: str | None) -> None:
    assert home_of(backend_of("llm-d", ""), {"set-cookie": cookies, "x-warmroute-home": "east"}) == home
