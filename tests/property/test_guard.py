"""Whatever a conversation holds: appending breaks nothing, a change is seen, and repair leaves alone what is whole."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from warmroute.guard.memory import Memory
from warmroute.guard.repair import Rule, repaired

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TEXT = st.text(min_size=1, max_size=30)
PIECE = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXT | st.lists(PIECE, min_size=1, max_size=3)},
    optional={"reasoning_content": TEXT, "tool_calls": st.lists(JSON, max_size=2), "name": TEXT},
)
FUNCTION = st.fixed_dictionaries({"name": TEXT, "parameters": JSON})
TOOL = st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION})
HISTORY = st.lists(MESSAGE, min_size=1, max_size=8)


def turn(memory: Memory, body: dict[str, Any], *rules: Rule) -> Any:
    found = repaired(memory, "s", body, rules)
    memory.keep("s", found.reading)
    return found


@given(HISTORY, st.lists(TOOL, max_size=3), st.data())
def test_appending_breaks_nothing_and_no_rule_touches_it(history: Any, tools: Any, data: st.DataObject) -> None:
    memory = Memory(max_text_bytes=data.draw(st.sampled_from([0, 500, 1_000_000])))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(history)), min_size=1)))
    for cut in cuts:
        body = {"model": "m", "tools": copy.deepcopy(tools), "messages": copy.deepcopy(history[:cut])}
        found = turn(memory, body, *Rule)
        assert found.reading.broken is None
        assert found.body is body
        if data.draw(st.booleans()):
            twin = Memory()
            twin.load("s", json.loads(json.dumps(memory.save("s"))))
            memory = twin


@given(HISTORY, st.lists(TOOL, max_size=2), st.data())
def test_a_changed_text_is_found_where_it_is(history: Any, tools: Any, data: st.DataObject) -> None:
    system = {"role": "system", "content": "You are an agent."}
    memory = Memory()
    body = {"model": "m", "tools": tools, "messages": [system, *history, {"role": "user", "content": "the end"}]}
    assert turn(memory, body).reading.broken is None
    at = data.draw(st.integers(0, len(history) - 1))
    changed = copy.deepcopy(history)
    changed[at]["content"] = "something that was never said before"
    found = turn(memory, {**body, "messages": [system, *changed, *body["messages"][len(history) + 1 :]]})
    assert found.reading.broken is not None
    assert found.reading.broken.where.startswith(f"messages[{at + 1}]")
    assert 0 <= found.reading.broken.kept_bytes <= found.reading.before.size


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["messages", "input", "tools", "system", "model", "prompt", "contents"]), JSON)
    )
)
def test_no_body_is_too_odd_to_be_read(bodies: Any) -> None:
    memory = Memory()
    for body in bodies:
        turn(memory, body, *Rule)
    json.dumps(memory.save("s"))
