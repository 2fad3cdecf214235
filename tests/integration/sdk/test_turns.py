"""Usage and receipts of every way to call, against a server that speaks warmroute."""

from typing import TYPE_CHECKING, Any

import openai
import pydantic
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

import warmroute

if TYPE_CHECKING:
    from tests.integration.sdk.conftest import Driver

HI: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


class Word(pydantic.BaseModel):
    """What `.parse()` is asked for."""

    word: str


def turn_totals(client: Any) -> tuple[int, int, int, int]:
    report = client.cache.report()
    assert report.internal_errors == 0
    assert report.violations == ()
    return report.turns, report.receipts, report.prompt_tokens, report.receipts_pending


def test_a_completion_is_what_openai_returns_and_its_receipt_is_counted(driver: "Driver") -> None:
    client = driver.client()
    assert isinstance(client, openai.OpenAI | openai.AsyncOpenAI)
    answer = driver.run(client.chat.completions.create(model="m", messages=HI))
    assert type(answer) is ChatCompletion
    assert answer.choices[0].message.content == "hello"
    receipt = warmroute.receipt_of(answer)
    assert receipt is not None
    assert receipt["region"] == "east"
    assert turn_totals(client) == (1, 1, 200, 0)


def test_a_stream_gives_no_usage_chunk_to_a_caller_who_did_not_ask_and_still_its_receipt(driver: "Driver") -> None:
    client = driver.client()
    stream = driver.run(client.chat.completions.create(model="m", messages=HI, stream=True))
    assert isinstance(stream, openai.Stream | openai.AsyncStream)
    chunks = driver.read(stream)
    assert [type(chunk) for chunk in chunks] == [ChatCompletionChunk] * 2
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["hel", "lo"]
    assert all(chunk.usage is None for chunk in chunks)
    receipt = warmroute.receipt_of(stream)
    assert receipt is not None
    assert receipt["id"].startswith("wr-")
    assert turn_totals(client) == (1, 1, 200, 0)
    assert driver.server.last.body["stream_options"] == {"include_usage": True}


def test_a_caller_who_asks_for_usage_gets_its_chunk(driver: "Driver") -> None:
    client = driver.client()
    asked = {"include_usage": True}
    stream = driver.run(client.chat.completions.create(model="m", messages=HI, stream=True, stream_options=asked))
    chunks = driver.read(stream)
    assert len(chunks) == 3
    assert chunks[2].choices == []
    assert warmroute.receipt_of(chunks[2]) is not None
    assert turn_totals(client) == (1, 1, 200, 0)


@pytest.mark.parametrize("how", ["argument", "extra_body"])
def test_a_caller_who_refuses_usage_is_obeyed(driver: "Driver", how: str) -> None:
    client = driver.client()
    given = {"stream_options": {"include_usage": False}}
    options = given if how == "argument" else {"extra_body": given}
    driver.read(driver.run(client.chat.completions.create(model="m", messages=HI, stream=True, **options)))
    assert driver.server.last.body["stream_options"] == {"include_usage": False}
    assert turn_totals(client) == (1, 0, 0, 1)


def test_other_stream_options_are_kept(driver: "Driver") -> None:
    client = driver.client()
    given = {"include_obfuscation": False}
    driver.read(driver.run(client.chat.completions.create(model="m", messages=HI, stream=True, stream_options=given)))
    assert driver.server.last.body["stream_options"] == {"include_obfuscation": False, "include_usage": True}
    assert given == {"include_obfuscation": False}
    assert turn_totals(client) == (1, 1, 200, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_text_completions_are_turns_too(driver: "Driver", stream: bool) -> None:
    client = driver.client()
    answer = driver.run(client.completions.create(model="m", prompt="once", stream=stream))
    texts = [chunk.choices[0].text for chunk in driver.read(answer)] if stream else [answer.choices[0].text]
    assert "".join(texts) == "hello"
    assert turn_totals(client) == (1, 1, 100, 0)


@pytest.mark.parametrize("parses", [0, 1, 2])
def test_a_raw_response_is_counted_once_parsed_or_not(driver: "Driver", parses: int) -> None:
    client = driver.client()
    raw = driver.run(client.chat.completions.with_raw_response.create(model="m", messages=HI))
    assert raw.headers["x-warmroute-home"] == "east"
    for _ in range(parses):
        assert raw.parse().choices[0].message.content == "hello"
    assert turn_totals(client) == (1, 1, 200, 0)


def test_a_raw_response_of_a_stream_parses_to_a_stream_without_the_usage_chunk(driver: "Driver") -> None:
    client = driver.client()
    raw = driver.run(client.chat.completions.with_raw_response.create(model="m", messages=HI, stream=True))
    stream = raw.parse()
    assert isinstance(stream, openai.Stream | openai.AsyncStream)
    assert len(driver.read(stream)) == 2
    assert turn_totals(client) == (1, 1, 200, 0)


def test_a_streamed_response_is_counted_when_it_is_parsed(driver: "Driver") -> None:
    client = driver.client()
    context = client.chat.completions.with_streaming_response.create(model="m", messages=HI)
    response = driver.enter(context)
    assert turn_totals(client) == (1, 0, 0, 1)
    assert driver.run(response.parse()).choices[0].message.content == "hello"
    driver.leave(context)
    assert turn_totals(client) == (1, 1, 200, 0)


def test_bytes_of_a_streamed_response_are_what_a_plain_client_would_read(driver: "Driver") -> None:
    client = driver.client()
    context = client.chat.completions.with_streaming_response.create(model="m", messages=HI, stream=True)
    response = driver.enter(context)
    events = [line for line in driver.read(response.iter_lines()) if line.startswith("data: {")]
    driver.leave(context)
    assert "stream_options" not in driver.server.last.body
    assert len(events) == 2
    assert turn_totals(client) == (1, 0, 0, 1)


def test_a_receipt_that_was_not_seen_can_be_fetched(driver: "Driver") -> None:
    client = driver.client(session="s")
    given = {"include_usage": False}
    driver.read(driver.run(client.chat.completions.create(model="m", messages=HI, stream=True, stream_options=given)))
    (receipt_id,) = client.cache.pending()
    usage = driver.run(client.cache.fetch(receipt_id))
    assert driver.server.last.path.endswith(f"/v1/usage/receipts/{receipt_id}")
    assert usage["prompt_tokens"] == 200
    assert turn_totals(client) == (1, 1, 200, 0)
    assert client.cache.report().by_session["s"].receipts == 1
    assert "0 of 200 prompt tokens were cached" in client.cache.explain("s")
    assert driver.run(client.cache.fetch(receipt_id)) == usage
    assert turn_totals(client) == (1, 1, 200, 0), "counted once"


def test_a_receipt_fetched_before_its_stream_is_read_is_counted_once(driver: "Driver") -> None:
    client = driver.client()
    stream = driver.run(client.chat.completions.create(model="m", messages=HI, stream=True))
    driver.run(client.cache.fetch(client.cache.pending()[0]))
    assert turn_totals(client) == (1, 1, 200, 0)
    assert len(driver.read(stream)) == 2
    assert turn_totals(client) == (1, 1, 200, 0)


def test_a_receipt_of_a_turn_that_is_open_is_none_and_an_unknown_one_is_openais_error(driver: "Driver") -> None:
    client = driver.client()
    driver.server.receipts["wr-open"] = {}
    assert driver.run(client.cache.fetch("wr-open")) is None
    with pytest.raises(openai.NotFoundError):
        driver.run(client.cache.fetch("wr-other"))
    with pytest.raises(ValueError, match="not a receipt id"):
        driver.run(client.cache.fetch("../models"))


def test_parse_returns_the_model_that_was_asked_for(driver: "Driver") -> None:
    client = driver.client()
    answer = driver.run(client.chat.completions.parse(model="m", messages=HI, response_format=Word))
    assert answer.choices[0].message.parsed == Word(word="hello")
    assert turn_totals(client) == (1, 1, 200, 0)


def test_the_stream_helper_works_and_is_counted(driver: "Driver") -> None:
    client = driver.client()
    context = client.chat.completions.stream(model="m", messages=HI)
    stream = driver.enter(context)
    kinds = [event.type for event in driver.read(stream)]
    final = driver.run(stream.get_final_completion())
    driver.leave(context)
    assert kinds.count("chunk") == 2
    assert final.choices[0].message.content == "hello"
    receipt = warmroute.receipt_of(stream)
    assert receipt is not None
    assert receipt["loss"]
    assert turn_totals(client) == (1, 1, 200, 0)


def test_a_stream_that_is_left_early_is_closed_and_a_turn_with_its_receipt_to_come(driver: "Driver") -> None:
    client = driver.client()
    stream = driver.run(client.chat.completions.create(model="m", messages=HI, stream=True))
    first = driver.run(stream.__anext__() if driver.kind == "async" else next(stream))
    assert first.choices[0].delta.content == "hel"
    driver.run(stream.close())
    assert stream.response.is_closed
    assert turn_totals(client) == (1, 0, 0, 1)
    assert "was not read to its end" in client.cache.explain()


def test_a_receipt_with_a_fault_is_reported_and_the_call_goes_on(driver: "Driver") -> None:
    def overcharge(usage: dict[str, Any]) -> None:
        usage["warmroute"]["price_nanousd"] += 1

    def rename(usage: dict[str, Any]) -> None:
        usage["warmroute"]["id"] = "wr-other"

    def remove(usage: dict[str, Any]) -> None:
        del usage["warmroute"]

    client = driver.client()
    for tamper in (overcharge, rename, remove):
        driver.server.tamper = tamper
        driver.read(driver.run(client.chat.completions.create(model="m", messages=HI, stream=True)))
    violations = client.cache.report().violations
    assert any("price_nanousd is" in sentence for sentence in violations)
    assert any("is not the wr-" in sentence for sentence in violations)
    assert any("the usage has none" in sentence for sentence in violations)
    assert client.cache.report().violations_found == len(violations)
    assert "receipts with faults" in str(client.cache.report())


def test_the_report_adds_up_tokens_money_and_losses_by_session(driver: "Driver") -> None:
    client = driver.client()
    longer = [*HI, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "more"}]
    for key in ("a", "b"):
        with warmroute.session(key):
            driver.run(client.chat.completions.create(model="m", messages=HI))
            driver.read(driver.run(client.chat.completions.create(model="m", messages=longer, stream=True)))
    report = client.cache.report()
    assert (report.turns, report.turns_measured, report.receipts) == (4, 4, 4)
    assert (report.prompt_tokens, report.cached_tokens, report.completion_tokens) == (1200, 400, 28)
    assert report.hit_ratio == pytest.approx(1 / 3)
    assert report.losses == {"cold": 400, "new": 400}
    assert report.list_nanousd == 1200 * 600 + 28 * 3000
    assert report.cost_nanousd == 800 * 600 + 400 * 100 + 28 * 3000
    assert report.saved_nanousd == 400 * 500
    assert report.saved_usd == pytest.approx(200_000e-9)
    assert list(report.by_session) == ["a", "b"]
    assert report.by_session["a"].prompt_tokens == 600
    assert report.by_session["a"].saved_nanousd == 400 * 250
    assert "33.3%" in str(report)
    assert report.violations == ()


def test_copies_share_the_report(driver: "Driver") -> None:
    client = driver.client()
    copy = client.with_options(timeout=5, session="copy")
    driver.run(copy.chat.completions.create(model="m", messages=HI))
    assert type(copy) is type(client)
    assert client.cache.report().by_session["copy"].turns == 1
    assert copy.cache.report() == client.cache.report()
