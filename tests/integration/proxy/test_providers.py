"""Engines that are other servers: each gets its own signal of a session, and its own way to report is understood."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.subjects.processes import ProxyProcess, chat
from tests.subjects.scripted import Handler, ScriptedEngine, delta, whole
from warmroute.contract import receipt
from warmroute.contract.providers import PROVIDERS
from warmroute_proxy.server.base.secrets import new_api_key

pytestmark = pytest.mark.full

SESSION = {"x-session-affinity": "a session of mine"}

COUNTS = {"prompt_tokens": 2000, "completion_tokens": 7, "total_tokens": 2007}
REPORTED: dict[str, dict[str, Any]] = {
    # platform.openai.com/docs/guides/prompt-caching, "Requirements"
    "openai": {
        **COUNTS,
        "prompt_tokens_details": {"cached_tokens": 1500, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    },
    # api-docs.deepseek.com/api/create-chat-completion
    "deepseek": {**COUNTS, "prompt_cache_hit_tokens": 1500, "prompt_cache_miss_tokens": 500},
    # platform.moonshot.ai/docs/api/chat
    "moonshot": {**COUNTS, "cached_tokens": 1500},
    # openrouter.ai/docs/use-cases/usage-accounting
    "openrouter": {
        **COUNTS,
        "cost": 0.00042,
        "cost_details": {"upstream_inference_cost": None},
        "prompt_tokens_details": {"cached_tokens": 1500, "cache_write_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    },
    # developers.cloudflare.com/workers-ai/features/prompt-caching
    "cloudflare": {**COUNTS, "prompt_tokens_details": {"cached_tokens": 1500}},
}
"""The usage object that each documents, for a prompt of 2,000 tokens of which 1,500 were cached, and 7 of answer."""


class Server(ScriptedEngine):
    """A server of a provider, which reports what a test says and serves one model, which has the provider's name."""

    def __init__(self, provider: str) -> None:
        self.provider = provider
        self.usage = REPORTED["openai"]
        super().__init__(provider, self.answers)

    def answers(self, handler: Handler) -> None:
        if json.loads(handler.engine.bodies[-1]).get("stream"):
            handler.stream(delta("hi"), delta(finish="stop"), {"choices": [], "usage": self.usage}, "[DONE]")
        else:
            handler.reply(200, whole(self.usage))

    def tables(self) -> str:
        theirs = f'model_names = {{ "{self.provider}" = "their/{self.provider}" }}'
        engine = f'{self.toml("openai")}\nprovider = "{self.provider}"\nmodels = ["{self.provider}"]\n{theirs}'
        model = f'[[model]]\nname = "{self.provider}"\naliases = ["my-{self.provider}"]'
        return f'{engine}\n{model}\ninput = "0.60"\ncached = "0.10"\noutput = "3.00"'


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Server]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(Server(name)) for name in PROVIDERS}


@pytest.fixture(scope="module")
def proxy(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """In front of a server of each provider."""
    tables = [server.tables() for server in servers.values()]
    with ProxyProcess(tmp_path_factory.mktemp("providers") / "p", tables) as made:
        yield made


def ask(proxy: ProxyProcess, model: str = "kimi-k2.5", **fields: Any) -> dict[str, Any]:
    """The usage of an answer."""
    with proxy.client() as client:
        answered = client.post("/v1/chat/completions", json=chat(**fields) | {"model": model}, headers=SESSION)
    assert answered.status_code == 200, answered.text
    if not fields.get("stream"):
        return dict(answered.json()["usage"])
    events = [json.loads(line[6:]) for line in answered.text.splitlines() if line.startswith("data: {")]
    return dict(next(event["usage"] for event in events if event.get("usage")))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("provider", REPORTED)
def test_what_a_provider_reports_is_on_the_receipt(
    proxy: ProxyProcess, servers: dict[str, Server], provider: str, stream: bool
) -> None:
    servers[provider].usage = REPORTED[provider]
    asked = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    usage = ask(proxy, provider, **asked)
    assert receipt.check(usage) == []
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (2000, 7)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1500
    assert "cached_tokens" not in usage["warmroute"]["estimated"]
    charged = 420_000 if provider == "openrouter" else None
    assert usage["warmroute"].get("provider_cost_nanousd") == charged
    assert usage["warmroute"]["price_nanousd"] == 500 * 600 + 1500 * 100 + 7 * 3000  # ours, by our own rates


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_gets_its_own_signal_and_no_other(
    proxy: ProxyProcess, servers: dict[str, Server], provider: str
) -> None:
    engine = servers[provider]
    session = ask(proxy, provider, prompt_cache_key="theirs")["warmroute"]["session"]
    row, head, body = PROVIDERS[provider], engine.heads[-1], engine.sent()
    headers = {each.header for each in PROVIDERS.values()} - {""}
    assert {name: head[name] for name in headers & set(head)} == ({row.header: session} if row.header else {})
    fields = {"prompt_cache_key", "cache_salt", "rid", "session_id", "return_cached_tokens_details"} & set(body)
    assert fields == {name for name, used in ((row.field, row.field), ("cache_salt", row.salted)) if used}
    assert "a session of mine" not in json.dumps([head, body])
    if row.field:
        assert body[row.field] == session


def test_a_provider_has_its_own_name_for_a_model(proxy: ProxyProcess, servers: dict[str, Server]) -> None:
    for name in ("openrouter", "my-openrouter"):
        ask(proxy, name, stream=True, stream_options={"include_usage": True})
        assert servers["openrouter"].sent()["model"] == "their/openrouter"


@pytest.mark.parametrize("cost", [-1, "0.1", True, None, 1e300, [1]])
def test_a_cost_that_is_no_amount_is_left_out(proxy: ProxyProcess, servers: dict[str, Server], cost: object) -> None:
    servers["openrouter"].usage = {**REPORTED["openrouter"], "cost": cost}
    usage = ask(proxy, "openrouter")
    assert "provider_cost_nanousd" not in usage["warmroute"]
    assert receipt.check(usage) == []


def test_another_warmroute_is_a_provider(tmp_path: Path) -> None:
    keys = (new_api_key()[0], new_api_key()[0])
    (tmp_path / "key").write_text(keys[0])
    with (
        ScriptedEngine("e0", lambda handler: handler.reply(200, whole(REPORTED["openai"]))) as engine,
        ProxyProcess(tmp_path / "back", [engine.toml()], keys=keys) as back,
        back.client() as client,
    ):
        table = f'[[engine]]\nid = "back"\nurl = "{back.url}"\nregion = "east"\nkind = "openai"'
        more = f'provider = "warmroute"\nkey_file = "{tmp_path / "key"}"'
        with ProxyProcess(tmp_path / "front", [f"{table}\n{more}"]) as front:
            first, second = ask(front, text="one")["warmroute"], ask(front, text="one", turns=2)["warmroute"]
        told = client.get("/v1/usage", params={"by": "session"}).json()
    assert first["session"] == second["session"]
    assert first["provider_cost_nanousd"] == first["price_nanousd"]  # both have the same rates
    assert [group["turns"] for group in told["groups"]] == [2]
