"""Price books of the config: which one prices a turn, what it prices apart, and models without a price."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.subjects.processes import ProxyProcess, chat
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from warmroute.contract import receipt
from warmroute_cli.main import main

FIRST = '[[model.price]]\nname = "2025"\nfrom = 2025-01-01T00:00:00Z\ninput = "2"\ncached = "0.2"\noutput = "8"\n'
SECOND = FIRST.replace("2025", "2026")
FUTURE = FIRST.replace("2025", "2999").replace('"2"', '"9"')
PRICED_APART = """
[[model.price]]
name = "tiers"
from = 2026-01-01T01:00:00+01:00
input = "3"
cached = "0.3"
cached_host = "0.4"
cached_storage = "0.5"
cache_write_5m = "3.75"
cache_write_1h = "6"
output = "15"
source = "a page"
"""
USAGE = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}


class Engine(ScriptedEngine):
    """Reports what a test says."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] = {}
        self.details: dict[str, int] | None = None
        super().__init__("e0", self.answers)

    def answers(self, handler: Handler) -> None:
        extra = {} if self.details is None else {"sglext": {"cached_tokens_details": self.details}}
        handler.reply(200, whole({**USAGE, **self.usage}, **extra))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine() as made:
        yield made


@pytest.fixture(scope="module")
def apart(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """A proxy whose model has a book with rates for everything."""
    folder = tmp_path_factory.mktemp("prices")
    with ProxyProcess(folder, [f'{engine.toml("openai")}\nprovider = "litellm"'], model=PRICED_APART) as made:
        yield made


def turn(proxy: ProxyProcess) -> dict[str, Any]:
    """The receipt of a turn that is as it should be."""
    with proxy.client() as client:
        answered = client.post("/v1/chat/completions", json=chat())
    assert answered.status_code == 200, answered.text
    usage = answered.json()["usage"]
    assert receipt.check(usage) == []
    return dict(usage["warmroute"])


def cached(**details: Any) -> dict[str, Any]:
    return {"prompt_tokens_details": {"cached_tokens": 600, **details}}


LITELLM = {
    "cache_creation_tokens": 350,
    "cache_creation_token_details": {"ephemeral_5m_input_tokens": 50, "ephemeral_1h_input_tokens": 300},
}
TIERS = {"device": 300, "host": 200, "storage": 100}


@pytest.mark.parametrize(
    ("reported", "details", "written", "price"),
    [
        (cached(), None, None, 400 * 3000 + 600 * 300),
        (cached(), TIERS, None, 400 * 3000 + 300 * 300 + 200 * 400 + 100 * 500),
        # openrouter.ai/docs/use-cases/usage-accounting
        (cached(cache_write_tokens=250), None, {"5m": 250, "1h": 0}, 150 * 3000 + 600 * 300 + 250 * 3750),
        # BerriAI/litellm, litellm/types/utils.py
        (
            {"cache_creation_input_tokens": 350, **cached(**LITELLM)},
            None,
            {"5m": 50, "1h": 300},
            50 * 3000 + 600 * 300 + 50 * 3750 + 300 * 6000,
        ),
        # More than was not cached: what is above it was not written.
        (cached(cache_write_tokens=10**9), None, {"5m": 400, "1h": 0}, 600 * 300 + 400 * 3750),
    ],
)
def test_tiers_and_writes_have_prices_of_their_own(
    apart: ProxyProcess,
    engine: Engine,
    reported: dict[str, Any],
    details: dict[str, int] | None,
    written: dict[str, int] | None,
    price: int,
) -> None:
    engine.usage, engine.details = reported, details
    found = turn(apart)
    assert (found["price_book"], found.get("cache_write")) == ("tiers", written)
    assert (found["price_nanousd"], found["list_nanousd"]) == (price + 10 * 15_000, 1000 * 3000 + 10 * 15_000)
    assert found["rates_usd_per_mtok"] == {
        "input": "3", "cached": "0.3", "output": "15", "cached_host": "0.4", "cached_storage": "0.5",
        "cache_write_5m": "3.75", "cache_write_1h": "6",
    }  # fmt: skip


def test_another_book_prices_the_next_turn_and_no_earlier_one(tmp_path: Path, engine: Engine) -> None:
    engine.usage, engine.details = {"prompt_tokens_details": {"cached_tokens": 0}}, None
    receipts, books = [], ("", FIRST + SECOND.replace('"2"', '"4"') + FUTURE)
    for model in books:
        with ProxyProcess(tmp_path / "p", [engine.toml()], model=model) as proxy:
            receipts.append(turn(proxy))
            cards = httpx.get(f"{proxy.base_url}/models", headers={"authorization": f"Bearer {proxy.keys[0]}"}).json()
            assert cards["data"][0]["price_book"] == receipts[-1]["price_book"]
    assert [each["price_book"] for each in receipts] == ["config", "2026"]
    assert [each["price_nanousd"] for each in receipts] == [630_000, 4_080_000]
    rows = [json.loads(row["usage"])["warmroute"] for row in proxy.rows(len(books))]
    assert rows == receipts


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("", 'model[1].price: is missing: model "other" has no price; write input, cached and output'),
        (FUTURE, "model other: has no price before 2999-01-01T00:00:00Z, when its book 2999 begins; write its prices"),
        ('free = true\ninput = "1"', "model[1].free: is true, and there are prices: remove one of them"),
    ],
)
def test_a_model_without_a_price_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, words: str
) -> None:
    config = ProxyProcess(tmp_path, ['[[engine]]\nurl = "http://127.0.0.1:9"\nregion = "east"']).write_config()
    text, flat = config.read_text(), 'input = "1"\ncached = "0.1"\noutput = "1"\n'
    assert flat in text
    config.write_text(text.replace(flat, f"{model}\n"))
    assert main(["proxy", "--check", "--config", str(config)]) == 2
    assert words in capsys.readouterr().err
