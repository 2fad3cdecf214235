"""`client.cache.explain()`: what it says about turns that the client itself made cold, and about losses."""

from typing import TYPE_CHECKING, Any

import pytest

import warmroute

pytestmark = pytest.mark.full

if TYPE_CHECKING:
    from tests.integration.sdk.conftest import Driver

SYSTEM = {"role": "system", "content": "You are brief. Today is 2026-11-20."}
ASK = {"role": "user", "content": "list the files"}
CALL = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
DID = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "a.txt b.txt"}
NEXT = {"role": "user", "content": "and now?"}


TOOLS = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("read", "edit", "bash")]
BEFORE: dict[str, Any] = {"messages": [SYSTEM, ASK, DID, RESULT], "tools": TOOLS}


def explained(driver: "Driver", *turns: dict[str, Any]) -> str:
    """The explanation of the last of some turns of one session."""
    client = driver.client(session="s")
    for turn in turns:
        driver.run(client.chat.completions.create(**{"model": "m", **turn}))
    assert client.cache.report().internal_errors == 0
    text: str = client.cache.explain("s")
    assert text == client.cache.explain()
    return text


CHANGES = [
    (
        {"messages": [{**SYSTEM, "content": "You are brief. Today is 2026-11-21."}, ASK, DID, RESULT]},
        "date at messages[0] (system), line 1: a date or time changed",
    ),
    ({"tools": [TOOLS[2], *TOOLS[:2]]}, "tool-order at tools[0] 'bash'"),
    ({"model": "other"}, "model at model: the model changed"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=[said for _, said in CHANGES])
def test_the_first_part_that_the_client_changed_is_named(driver: "Driver", change: dict[str, Any], said: str) -> None:
    with pytest.warns(warmroute.PrefixWarning, match="computed again"):
        text = explained(driver, BEFORE, {**BEFORE, **change})
    assert f"On your side: {said}" in text
    assert "To change: " in text


def test_a_turn_is_compared_with_the_one_that_it_continues(driver: "Driver") -> None:
    title = {"messages": [{"role": "system", "content": "You write titles."}, ASK]}
    assert "nothing broke the prefix" in explained(
        driver, BEFORE, title, {**BEFORE, "messages": [*BEFORE["messages"], NEXT]}
    )


def test_losses_are_explained_with_their_tokens(driver: "Driver") -> None:
    text = explained(driver, BEFORE)
    assert "0 of 400 prompt tokens were cached (0.0%), in region east" in text
    assert "400 prompt tokens (cold) were never sent before with this beginning of the prompt" in text
    assert "On your side" not in text


def test_every_loss_class_of_the_contract_has_its_sentence(driver: "Driver") -> None:
    from warmroute.contract.receipt import LOSS_CLASSES

    def all_of_them(usage: dict[str, Any]) -> None:
        usage["prompt_tokens_details"]["cached_tokens"] = 0
        usage["warmroute"]["cached"] = {"device": 0, "host": 0, "storage": 0}
        usage["warmroute"]["loss"] = {name: index + 1 for index, name in enumerate(LOSS_CLASSES)}

    driver.server.tamper = all_of_them
    text = explained(driver, BEFORE)
    for name in LOSS_CLASSES:
        assert f"({name}) " in text


def test_a_session_without_turns_has_nothing_to_explain(driver: "Driver") -> None:
    client = driver.client()
    assert client.cache.explain() == "No turn was seen yet."
    assert client.cache.explain("s") == "No turn of session s was seen."


def test_an_explanation_is_of_the_session_that_was_asked_for(driver: "Driver") -> None:
    client = driver.client()
    for key, messages in (("a", [SYSTEM, ASK]), ("b", [ASK])):
        with warmroute.session(key):
            driver.run(client.chat.completions.create(model="m", messages=messages))
    assert "session a: 0 of 200" in client.cache.explain("a")
    assert "session b: 0 of 100" in client.cache.explain()
