"""The session of each call, as the server sees it."""

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any

import anthropic
import openai
import pytest

import warmroute

pytestmark = pytest.mark.full

if TYPE_CHECKING:
    from tests.integration.sdk.conftest import Driver, MockServer

HI: Any = [{"role": "user", "content": "hi"}]
AFFINITY = "x-session-affinity"
DERIVED = "x-warmroute-session-derived"


def sent(driver: "Driver", client: Any, **options: Any) -> dict[str, str]:
    """The headers that reach the server."""
    driver.run(client.chat.completions.create(**{"model": "m", "messages": HI, **options}))
    assert client.cache.report().internal_errors == 0
    return driver.server.last.headers


def test_the_innermost_block_names_the_session(driver: "Driver") -> None:
    client = driver.client()
    with warmroute.session("outer") as key:
        assert key == "outer"
        assert sent(driver, client)[AFFINITY] == "outer"
        with warmroute.session("inner"):
            assert sent(driver, client)[AFFINITY] == "inner"
        headers = sent(driver, client)
    assert headers[AFFINITY] == "outer"
    assert DERIVED not in headers
    assert sent(driver, client)[DERIVED] == "1"


def test_a_session_without_a_key_gets_one_of_its_own(driver: "Driver") -> None:
    client = driver.client()
    keys = []
    for _ in range(2):
        with warmroute.session() as key:
            assert sent(driver, client)[AFFINITY] == key
            keys.append(key)
    assert keys[0] != keys[1]


def test_with_options_goes_before_the_block_and_the_block_before_the_constructor(driver: "Driver") -> None:
    client = driver.client(session="constructor")
    assert sent(driver, client)[AFFINITY] == "constructor"
    with warmroute.session("block"):
        assert sent(driver, client)[AFFINITY] == "block"
        assert sent(driver, client.with_options(session="option"))[AFFINITY] == "option"
        assert sent(driver, client.with_options(session="option").copy(timeout=5))[AFFINITY] == "option"
    assert sent(driver, client.with_options(timeout=5))[AFFINITY] == "constructor"


def test_without_a_name_the_key_is_that_of_the_conversation_that_the_prompt_continues(driver: "Driver") -> None:
    client = driver.client()
    first = sent(driver, client)
    assert first[AFFINITY].startswith("d-")
    assert first[DERIVED] == "1"
    longer = [*HI, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "and more"}]
    assert sent(driver, client, messages=longer)[AFFINITY] == first[AFFINITY]
    assert sent(driver, client, messages=[{"role": "user", "content": "other"}])[AFFINITY] != first[AFFINITY]


def test_a_key_in_the_body_is_the_session_and_is_repeated_as_the_header(driver: "Driver") -> None:
    client = driver.client()
    headers = sent(driver, client, prompt_cache_key="mine")
    assert headers[AFFINITY] == "mine"
    assert DERIVED not in headers
    assert sent(driver, client, extra_body={"session_id": "extra"})[AFFINITY] == "extra"
    with warmroute.session("block"):
        assert sent(driver, client, prompt_cache_key="mine")[AFFINITY] == "block"


@pytest.mark.parametrize("name", ["X-Session-Affinity", "x-opencode-session", "Session_Id", "X-Session-ID"])
@pytest.mark.parametrize("where", ["call", "client", "http_client"])
def test_a_session_header_of_the_caller_is_left_alone(driver: "Driver", name: str, where: str) -> None:
    own = {name: "mine"}
    client = driver.client(default_headers=own) if where == "client" else driver.client(session="ours")
    if where == "http_client":
        client._client.headers[name] = "mine"
    with warmroute.session("block"):
        headers = sent(driver, client, **({"extra_headers": own} if where == "call" else {}))
    assert headers[name.lower()] == "mine"
    assert headers.get(AFFINITY, "mine") == "mine"
    assert DERIVED not in headers
    assert list(client.cache.report().by_session) == ["mine"]


def test_a_caller_can_have_no_session_header_at_all(driver: "Driver") -> None:
    client = driver.client(session="ours")
    headers = sent(driver, client, extra_headers={AFFINITY: openai.omit})
    assert AFFINITY not in headers
    assert DERIVED not in headers


def test_other_calls_carry_the_session_too(driver: "Driver") -> None:
    client = driver.client(session="s")
    driver.run(client.embeddings.create(model="m", input="text", encoding_format="float"))
    assert driver.server.last.headers[AFFINITY] == "s"
    driver.run(client.models.list())
    assert driver.server.last.headers[AFFINITY] == "s"
    assert client.cache.report().turns == 0


def test_only_turns_have_a_session_in_their_body(driver: "Driver") -> None:
    client = driver.client(session="s", backend="openai")
    driver.run(client.embeddings.create(model="m", input="text", encoding_format="float"))
    assert "prompt_cache_key" not in driver.server.last.body
    driver.run(client.chat.completions.create(model="m", messages=HI))
    assert driver.server.last.body["prompt_cache_key"] == "s"


def test_a_token_count_before_each_turn_divides_no_conversation(driver: "Driver") -> None:
    client = driver.client()
    items: list[Any] = list(HI)
    for _ in range(2):
        driver.run(client.responses.input_tokens.count(model="m", input=items))
        assert AFFINITY not in driver.server.last.headers
        driver.run(client.responses.create(model="m", input=items))
        items += [{"role": "assistant", "content": "hello"}, *HI]
    first, second = driver.server.posts[1::2]
    assert first.headers[AFFINITY] == second.headers[AFFINITY]


def test_the_home_of_a_session_is_sent_back_with_its_next_call(driver: "Driver") -> None:
    client = driver.client()
    with warmroute.session("a"):
        assert "x-warmroute-home" not in sent(driver, client)
        driver.server.home = "west"
        assert sent(driver, client)["x-warmroute-home"] == "east"
        assert sent(driver, client.with_options(timeout=5))["x-warmroute-home"] == "west"
        assert sent(driver, client, extra_headers={"X-Warmroute-Home": "mine"})["x-warmroute-home"] == "mine"
    with warmroute.session("b"):
        assert "x-warmroute-home" not in sent(driver, client)


def test_a_home_is_told_only_to_the_server_that_named_it(driver: "Driver") -> None:
    client = driver.client(session="s")
    sent(driver, client)
    assert sent(driver, client)["x-warmroute-home"] == "east"
    assert "x-warmroute-home" not in sent(driver, client.with_options(base_url=f"{driver.server.url}/other"))


def test_bad_keys_are_refused_where_they_are_given(driver: "Driver") -> None:
    for key in ("", "a" * 257, "line\nbreak", "caf\u00e9", " space"):
        with pytest.raises(ValueError, match="session key"):
            warmroute.session(key)
        with pytest.raises(ValueError, match="session key"):
            driver.client(session=key)
        with pytest.raises(ValueError, match="session key"):
            driver.client().with_options(session=key)


def test_a_block_may_be_left_in_another_context_than_it_was_entered_in() -> None:
    block = warmroute.session("s")
    assert contextvars.copy_context().run(block.__enter__) == "s"
    assert contextvars.copy_context().run(block.__exit__, None, None, None) is False


async def test_tasks_do_not_see_each_others_sessions(server: "MockServer") -> None:
    async with warmroute.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        both_inside = asyncio.Barrier(2)

        async def agent(key: str) -> None:
            with warmroute.session(key):
                await both_inside.wait()
                messages: Any = [{"role": "user", "content": f"I am {key}"}]
                await client.chat.completions.create(model="m", messages=messages)

        await asyncio.gather(agent("a"), agent("b"))
    pairs = {request.headers[AFFINITY]: request.body["messages"][0]["content"] for request in server.posts}
    assert pairs == {"a": "I am a", "b": "I am b"}


def test_threads_share_a_client_and_lose_no_turn(server: "MockServer") -> None:
    with warmroute.OpenAI(base_url=server.url, api_key="k", max_retries=0) as client:

        def agent(key: str) -> None:
            with warmroute.session(key):
                for _ in range(5):
                    list(client.chat.completions.create(model="m", messages=HI, stream=True))

        threads = [threading.Thread(target=agent, args=(f"t{index}",)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report = client.cache.report()
    assert (report.turns, report.receipts, report.receipts_pending) == (20, 20, 0)
    assert {key: totals.turns for key, totals in report.by_session.items()} == {f"t{n}": 5 for n in range(4)}
    assert (report.violations, report.internal_errors) == ((), 0)


def test_a_session_is_ended_by_name_by_its_block_and_by_its_client(driver: "Driver") -> None:
    client = driver.client(session="of the client")
    with warmroute.session("of the block"):
        ended = [driver.run(client.cache.end()), driver.run(client.cache.waits_for_person())]
    ended += [driver.run(client.cache.end()), driver.run(client.cache.end("ticket-4711"))]
    assert ended == [True] * 4
    seen = [(each.headers["x-session-affinity"], each.headers["x-warmroute-expect"]) for each in driver.server.seen]
    names = "of the block", "of the block", "of the client", "ticket-4711"
    assert seen == list(zip(names, ("end", "human", "end", "end"), strict=True))
    assert {each.method for each in driver.server.seen} == {"POST"}
    assert {each.path.partition("/v1")[2] for each in driver.server.seen} == {"/sessions/expect"}
    assert client.cache.report().turns == 0


@pytest.mark.parametrize(
    ("library", "version"), [(anthropic, ""), (openai, "/v1"), (openai, "")], ids=["anthropic", "openai", "rewritten"]
)
def test_a_wrapped_client_finds_the_servers_own_paths(server: Any, library: Any, version: str) -> None:
    server.receipts["wr-1"] = {"prompt_tokens": 5}
    kind = library.Anthropic if library is anthropic else library.OpenAI
    with kind(base_url=server.url.removesuffix("/v1") + version, api_key="k") as plain:
        cache: Any = warmroute.cache_of(warmroute.wrap(plain, session="s"))
        assert cache.end() is True
        assert cache.fetch("wr-1") == {"prompt_tokens": 5}
    root = server.url.partition("/v1")[0].removeprefix(server.url[: server.url.index("/", 7)])
    root += "/v1" if library is anthropic else version
    assert [each.path for each in server.seen] == [f"{root}/sessions/expect", f"{root}/usage/receipts/wr-1"]


def test_the_end_of_a_session_fails_for_nothing_but_a_session_that_is_none(driver: "Driver") -> None:
    client = driver.client()
    driver.server.fails_with = 500
    assert driver.run(client.cache.end("s")) is False
    assert len(driver.server.seen) == 1, "it is tried once"
    for session in (None, "", "two\nlines"):
        with pytest.raises(ValueError, match="session"):
            driver.run(client.cache.end(session))
    other = driver.client(backend="openai")
    assert driver.run(other.cache.end("s")) is False
    assert len(driver.server.seen) == 1, "a server of another vendor is asked nothing"
