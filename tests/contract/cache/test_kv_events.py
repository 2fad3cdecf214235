"""KV events over ZeroMQ: what an engine tells of its cache, and how a subscriber catches up."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.cache.lab import ADMIN, BUFFER_STEPS, CLEARED, HOST_RATIO, PAGE, Lab, fresh_prompt, page_hashes
from tests.subjects.kv_subscriber import KvSubscriber, events


@pytest.fixture
def heard(lab: Lab) -> Iterator[KvSubscriber]:
    """A subscription to an engine whose cache is empty."""
    with lab.subscribe() as subscriber:
        lab.generate(fresh_prompt(PAGE))
        while subscriber.next(1.0) is None:  # not subscribed yet, though connected
            lab.generate(fresh_prompt(PAGE))
        lab.flush()
        subscriber.until(CLEARED)
        yield subscriber


def stored(
    hashes: list[int], tokens: list[int], parent: int | None, medium: str = "GPU", **more: Any
) -> dict[str, Any]:
    """A BlockStored as it is on the wire, whole."""
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": PAGE,
        "lora_id": None,
        "medium": medium,
        **more,
    }


def on_host(hashes: list[int]) -> dict[str, Any]:
    return {"type": "BlockStored", "medium": "CPU_PINNED", "block_hashes": hashes}


def known(lab: Lab, heard: KvSubscriber, tokens: int) -> tuple[list[int], list[int]]:
    """A new prompt that the device and the host have, and the hashes of its pages."""
    prompt = fresh_prompt(tokens)
    hashes = page_hashes(prompt)
    lab.generate(prompt, 2)
    heard.until(on_host(hashes))
    return prompt, hashes


def test_server_info_says_where_to_subscribe(lab: Lab) -> None:
    info = lab.info["kv_events"]
    assert info["publisher"] == "zmq"
    assert info["endpoint_host"] in ("*", "127.0.0.1")
    assert {type(info[name]) for name in ("endpoint_port_base", "replay_endpoint_port_base")} == {int}
    assert info["block_size"] == lab.info["page_size"] == PAGE
    assert (info["dp_size"], info["topic"]) == (1, "kv-events")


def test_a_prompt_is_stored_as_one_chain_then_copied_to_the_host(lab: Lab, heard: KvSubscriber) -> None:
    prompt = fresh_prompt(3 * PAGE + 5)
    assert lab.generate(prompt, 2).cached_tokens == 0
    hashes = page_hashes(prompt)
    first, *rest = heard.until(on_host(hashes))
    assert first.topic == b"kv-events"
    when, told, rank = first.payload
    assert isinstance(when, float)
    assert rank == 0
    assert told == [stored(hashes, prompt[: 3 * PAGE], None)]
    assert events(rest) == [stored(hashes, prompt[: 3 * PAGE], None, "CPU_PINNED")]


def test_messages_are_numbered_without_gaps(lab: Lab, heard: KvSubscriber) -> None:
    prompts = [fresh_prompt(PAGE) for _ in range(3)]
    messages = []
    for prompt in prompts:
        lab.generate(prompt, 2)
        messages += heard.until(on_host(page_hashes(prompt)))
    numbers = [message.number for message in messages]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_an_answer_is_stored_when_it_has_ended(lab: Lab, heard: KvSubscriber) -> None:
    prompt = fresh_prompt(2 * PAGE + 10)
    answer = lab.generate(prompt, 40, session_id="turn-7")
    path = prompt + answer.output_ids
    hashes = page_hashes(path[: PAGE * answer.stored_pages])
    assert len(hashes) == (42 + 40 - 1) // PAGE
    told = events(heard.until(on_host(hashes[2:])))
    assert told[0] == stored(hashes[:2], path[: 2 * PAGE], None, session_id="turn-7")
    assert stored(hashes[2:], path[2 * PAGE : len(hashes) * PAGE], hashes[1], session_id="turn-7") in told


def test_the_next_turn_stores_what_is_new_under_the_last_shared_page(lab: Lab, heard: KvSubscriber) -> None:
    prompt, _ = known(lab, heard, 2 * PAGE)
    longer = prompt + fresh_prompt(2 * PAGE)
    assert lab.generate(longer, 2).cached_tokens == 2 * PAGE
    hashes = page_hashes(longer)
    told = events(heard.until(on_host(hashes[2:])))
    assert told[0] == stored(hashes[2:], longer[2 * PAGE :], hashes[1])


def test_a_fork_hangs_on_the_last_shared_page(lab: Lab, heard: KvSubscriber) -> None:
    trunk, _ = known(lab, heard, 4 * PAGE)
    fork = trunk[: PAGE + 3] + fresh_prompt(2 * PAGE)
    assert lab.generate(fork, 2).cached_tokens == PAGE
    hashes = page_hashes(fork)
    told = events(heard.until(on_host(hashes[1:])))
    assert told[0] == stored(hashes[1:], fork[PAGE : 3 * PAGE], hashes[0])


def test_a_session_id_says_who_stored_and_changes_nothing_else(lab: Lab, heard: KvSubscriber) -> None:
    prompt = fresh_prompt(3 * PAGE + 1)
    hashes = page_hashes(prompt)
    lab.generate(prompt, 2, session_id="first")
    told = events(heard.until(on_host(hashes)))
    assert told == [
        stored(hashes, prompt[: 3 * PAGE], None, session_id="first"),
        stored(hashes, prompt[: 3 * PAGE], None, "CPU_PINNED"),
    ]
    assert lab.generate(prompt, 2, session_id="second").cached_tokens == 3 * PAGE
    other = fresh_prompt(PAGE)
    lab.generate(other, 2)
    told = events(heard.until(on_host(page_hashes(other))))
    assert told[0] == stored(page_hashes(other), other, None), "the second session stored nothing, and is not named"


def test_chat_and_completions_take_a_session_id(lab: Lab, heard: KvSubscriber) -> None:
    text = " ".join(str(token) for token in fresh_prompt(60))
    chat = {"messages": [{"role": "user", "content": text}], "session_id": "chatting"}
    for path, body in (("chat/completions", chat), ("completions", {"prompt": text, "session_id": "completing"})):
        response = lab.client.post(f"/v1/{path}", json={"model": "tiny", "max_tokens": 2, **body})
        assert response.status_code == 200, response.text
        # Before it may come more of what went to the host: an engine on a busy machine sends that in several messages.
        told = events(heard.until({"type": "BlockStored", "medium": "GPU"}))
        assert [event.get("session_id") for event in told if event["medium"] == "GPU"] == [body["session_id"]]
        heard.until({"type": "BlockStored", "medium": "CPU_PINNED"})


def test_a_cache_salt_is_in_the_hashes_and_in_the_events(lab: Lab, heard: KvSubscriber) -> None:
    prompt, _ = known(lab, heard, 2 * PAGE)
    assert lab.generate(prompt, 2, cache_salt="tenant-a").cached_tokens == 0
    salted = page_hashes(prompt, "tenant-a")
    told = events(heard.until(on_host(salted)))
    assert told == [
        stored(salted, prompt, None, cache_salt="tenant-a"),
        stored(salted, prompt, None, "CPU_PINNED", cache_salt="tenant-a"),
    ]


def test_an_extra_key_is_another_tree_under_the_same_hashes(lab: Lab, heard: KvSubscriber) -> None:
    prompt, hashes = known(lab, heard, 2 * PAGE)
    assert lab.generate(prompt, 2, extra_key="lane").cached_tokens == 0
    told = events(heard.until(on_host(hashes)))
    assert told[0] == stored(hashes, prompt, None)


def test_an_eviction_is_told_before_what_took_the_room(lab: Lab, heard: KvSubscriber) -> None:
    _, hashes = known(lab, heard, 4 * PAGE)
    lab.fill_device()
    messages = heard.until({"type": "BlockRemoved", "medium": "GPU"})
    removed = next(event for event in messages[-1].events if event["type"] == "BlockRemoved")
    assert set(removed) == {"type", "block_hashes", "medium"}
    assert set(hashes) <= set(removed["block_hashes"])
    assert messages[-1].events[-1]["type"] == "BlockStored"
    assert not [
        event for event in events(messages) if event["type"] == "BlockRemoved" and event["medium"] == "CPU_PINNED"
    ], "the copies on the host stay"


def test_an_eviction_from_the_host_is_told_apart(lab: Lab, heard: KvSubscriber) -> None:
    _, hashes = known(lab, heard, 4 * PAGE)
    gone: set[int] = set()
    for _ in range(2 * HOST_RATIO):  # each time a whole device of new pages
        lab.fill_device()
        lab.generate(fresh_prompt(PAGE), 2)
        while not set(hashes) <= gone and (message := heard.next(1.0)) is not None:
            removed = [event for event in message.events if event["type"] == "BlockRemoved"]
            gone |= {page for event in removed if event["medium"] == "CPU_PINNED" for page in event["block_hashes"]}
    assert set(hashes) <= gone


def test_pages_that_come_back_from_the_host_are_stored_again(lab: Lab, heard: KvSubscriber) -> None:
    prompt = fresh_prompt(4 * PAGE + 2)
    hashes = page_hashes(prompt)
    lab.generate(prompt, 2)
    lab.fill_device()
    heard.until(on_host(hashes), {"type": "BlockRemoved", "medium": "GPU"})
    answer = lab.generate(prompt, 2, session_id="later")
    assert answer.cached_tokens == 4 * PAGE
    told = events(heard.until({"type": "BlockStored", "medium": "GPU", "block_hashes": hashes}))
    assert stored(hashes, prompt[: 4 * PAGE], None) in told, "nobody computed them, so no session is named"


def test_pages_that_come_from_storage_are_stored_on_the_host_and_then_on_the_device(
    lab: Lab, heard: KvSubscriber
) -> None:
    prompt, hashes = known(lab, heard, 5 * PAGE + 2)
    lab.flush()
    heard.until(CLEARED)
    assert lab.generate(prompt, 2).details == {
        "device": 0,
        "host": 0,
        "storage": 5 * PAGE,
        "storage_backend": "HiCacheFile",
    }
    told = events(heard.until({"type": "BlockStored", "medium": "GPU"}))
    assert told == [stored(hashes, prompt[: 5 * PAGE], None, "CPU_PINNED"), stored(hashes, prompt[: 5 * PAGE], None)]


def test_a_flush_is_one_event(lab: Lab, heard: KvSubscriber) -> None:
    lab.generate(fresh_prompt(PAGE), 2)
    lab.flush()
    assert heard.until(CLEARED)[-1].events == [CLEARED]


def test_a_replay_repeats_messages_byte_by_byte(lab: Lab, heard: KvSubscriber) -> None:
    messages = []
    for _ in range(2):
        prompt = fresh_prompt(PAGE)
        lab.generate(prompt, 2)
        messages += heard.until(on_host(page_hashes(prompt)))
    assert heard.replay(messages[0].number) == messages
    assert heard.replay(messages[1].number) == messages[1:]
    assert heard.replay(messages[-1].number + 1) == []


def test_who_comes_late_fills_the_gap_with_a_replay(lab: Lab, heard: KvSubscriber) -> None:
    prompt = fresh_prompt(PAGE)
    lab.generate(prompt, 2)
    missed = heard.until(on_host(page_hashes(prompt)))
    with lab.subscribe() as late:
        while (first := late.next(1.0)) is None:
            lab.generate(fresh_prompt(PAGE), 2)
        assert first.number > missed[-1].number
        replayed = late.replay(missed[0].number)
    assert replayed[: len(missed)] == missed
    numbers = [message.number for message in replayed]
    assert numbers == list(range(missed[0].number, numbers[-1] + 1))
    assert first in replayed


def test_a_replay_begins_with_the_oldest_message_that_is_kept(lab: Lab, heard: KvSubscriber) -> None:
    for _ in range(BUFFER_STEPS):
        lab.flush()
    newest = max(message.number for message in [heard.until(CLEARED)[-1] for _ in range(BUFFER_STEPS)])
    replayed = [message.number for message in heard.replay(0)]
    assert replayed == list(range(newest - BUFFER_STEPS + 1, newest + 1))
    again = [message.number for message in heard.replay(0)]
    assert again == replayed, "a second replay is as whole as the first"


def test_a_malformed_replay_request_is_not_answered(lab: Lab, heard: KvSubscriber) -> None:
    heard.ask_replay(b"no empty frame")
    assert heard.replay_answer(0.5) is None
    assert heard.replay(1 << 40) == []


def test_a_flush_needs_the_admin_key(lab: Lab) -> None:
    response = lab.client.post("/flush_cache")
    assert (response.status_code, response.json()) == (401, {"error": "Unauthorized"})
    assert lab.client.post("/flush_cache", headers=ADMIN).status_code == 200
