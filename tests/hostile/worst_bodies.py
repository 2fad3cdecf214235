"""Bodies of each dialect that cost the most for their bytes: a place of its grammar, filled with one value many times.

A place is a list or an object of a body that a reader looks into. Each is filled with values that fit there and with
those that are cheap to write: empty objects, numbers, names. Three sizes of a filling matter: as much as fits, the most
that a count of the bytes lets pass in the event loop, and the most that a translator has steps for.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.hostile.reading import GEMINI, MESSAGES, RESPONSES
from warmroute_proxy.dialects.work import MOST_BRACKETS, STEPS_IN_LOOP
from warmroute_proxy.server.intake.parsed_request import CHAT

SIZE: Final = 2_000_000
_EDGE: Final = MOST_BRACKETS  # of `is_dense`

_TEXT: Final = '{"type":"text","text":"%x"}'
_CALL: Final = '{"id":"%x","type":"function","function":{"name":"f","arguments":"{}"}}'
_USER: Final = '{"role":"user","content":"a"}'
_VALUES: Final = ("{}", "[]", "1", '""', '{"a":1}', "[[[]]]", '"\\"%x"', " 1 ")
_MEMBERS: Final = ('"%x":1', '"%x":{}', '"\\"%x":[]', ' "%x" : "" ')

_CHAT: Final = '{"model":"m","messages":['
_MESSAGES: Final = '{"model":"m","max_tokens":1,"messages":['
_MODEL: Final = _MESSAGES + _USER + ',{"role":"assistant","content":['
_RESPONSES: Final = '{"model":"m","input":['
_GEMINI: Final = '{"contents":['
_SAID: Final = '{"parts":[{"text":"a"}]}'


class Place(NamedTuple):
    """A list or an object of a body: what stands before and behind it, and values that fit into it."""

    path: str
    name: str
    before: str
    behind: str
    fitting: tuple[str, ...]
    is_object: bool = False


def _lists(path: str, **places: tuple[str, str, tuple[str, ...]]) -> Iterator[Place]:
    for name, (before, behind, fitting) in places.items():
        yield Place(path, name, before, behind, fitting)


def _objects(path: str, **places: tuple[str, str]) -> Iterator[Place]:
    for name, (before, behind) in places.items():
        yield Place(path, name, before, behind, (), is_object=True)


def _places() -> Iterator[Place]:
    yield from _lists(
        CHAT,
        messages=(_CHAT, "]", (_USER, '{"role":"user","content":"%x"}', '{"role":""}', '{"role":"tool"}')),
        parts=(_CHAT + '{"role":"user","content":[', "]}]", (_TEXT, '{"type":"image_url","image_url":{"url":"%x"}}')),
        calls=(_CHAT + _USER + ',{"role":"assistant","tool_calls":[', "]}]", (_CALL,)),
        tools=(_CHAT + _USER + '],"tools":[', "]", ('{"type":"function","function":{"name":"%x"}}',)),
        stop=(_CHAT + _USER + '],"stop":[', "]", ('"%x"',)),
        modalities=(_CHAT + _USER + '],"modalities":[', "]", ('"text"',)),
        stop_token_ids=(_CHAT + _USER + '],"stop_token_ids":[', "]", ("7",)),
        schema=(
            _CHAT + _USER + '],"tools":[{"type":"function","function":{"name":"a","parameters":{"anyOf":[',
            "]}}}]",
            ('{"type":"string"}', "[{}]"),
        ),
    )
    yield from _objects(
        CHAT,
        body=(_CHAT + _USER + "],", ""),
        message=(_CHAT + '{"role":"user","content":"a",', "}]"),
        part=(_CHAT + '{"role":"user","content":[{"type":"text","text":"a",', "}]}]"),
        metadata=(_CHAT + _USER + '],"metadata":{', "}"),
        logit_bias=(_CHAT + _USER + '],"logit_bias":{', "}"),
        arguments=(_CHAT + _USER + '],"chat_template_kwargs":{', "}"),
    )
    yield from _lists(
        MESSAGES,
        messages=(_MESSAGES, "]", (_USER, '{"role":"user","content":"%x"}', '{"role":"user","content":[%b]}')),
        blocks=(
            _MESSAGES + '{"role":"user","content":[',
            "]}]",
            (_TEXT, '{"type":"image","source":{"type":"url","url":"https://%x"}}'),
        ),
        calls=(_MODEL, "]}," + _USER + "]", ('{"type":"tool_use","id":"%x","name":"a","input":{}}',)),
        thoughts=(_MODEL, "]}," + _USER + "]", ('{"type":"thinking","thinking":"%x","signature":"a"}',)),
        results=(
            _MODEL + '{"type":"tool_use","id":"a","name":"a","input":{}}]},{"role":"user","content":[',
            "]}]",
            ('{"type":"tool_result","tool_use_id":"a","content":"%x"}', '{"type":"tool_result","tool_use_id":"a"}'),
        ),
        result=(
            _MODEL + '{"type":"tool_use","id":"a","name":"a","input":{}}]},{"role":"user","content":['
            '{"type":"tool_result","tool_use_id":"a","content":[',
            "]}]}]",
            (_TEXT,),
        ),
        system=(_MESSAGES + _USER + '],"system":[', "]", (_TEXT,)),
        tools=(_MESSAGES + _USER + '],"tools":[', "]", ('{"name":"%x","input_schema":{}}', '{"type":"x","name":"%x"}')),
        stops=(_MESSAGES + _USER + '],"stop_sequences":[', "]", ('"%x"',)),
    )
    yield from _objects(
        MESSAGES,
        body=(_MESSAGES + _USER + "],", ""),
        message=(_MESSAGES + '{"role":"user","content":"a",', "}]"),
        block=(_MESSAGES + '{"role":"user","content":[{"type":"text","text":"a",', "}]}]"),
        input=(_MODEL + '{"type":"tool_use","id":"a","name":"a","input":{', "}}]}," + _USER + "]"),
        tool_choice=(_MESSAGES + _USER + '],"tool_choice":{', "}"),
        thinking=(_MESSAGES + _USER + '],"thinking":{"type":"enabled",', "}"),
    )
    yield from _lists(
        RESPONSES,
        items=(_RESPONSES, "]", (_USER, '{"role":"user","content":"%x"}', '{"type":"web_search_call"}')),
        parts=(_RESPONSES + '{"role":"user","content":[', "]}]", ('{"type":"input_text","text":"%x"}',)),
        reasoning=(_RESPONSES + _USER + ",", "]", ('{"type":"reasoning","encrypted_content":"%x"}',)),
        thoughts=(_RESPONSES + _USER + ',{"type":"reasoning","content":[', "]}]", (_TEXT,)),
        calls=(
            _RESPONSES + _USER + ",",
            "]",
            (
                '{"type":"function_call","call_id":"%x","name":"a","arguments":"{}"}',
                '{"type":"custom_tool_call","call_id":"%x","name":"a","input":"%x"}',
            ),
        ),
        tools=(_RESPONSES + _USER + '],"tools":[', "]", ('{"type":"function","name":"%x"}', '{"type":"web"}')),
        namespace=(
            _RESPONSES + _USER + '],"tools":[{"type":"namespace","name":"n","tools":[',
            "]}]",
            ('{"type":"custom","name":"%x"}',),
        ),
        include=(_RESPONSES + _USER + '],"include":[', "]", ('"%x"',)),
    )
    yield from _objects(
        RESPONSES,
        body=(_RESPONSES + _USER + "],", ""),
        item=(_RESPONSES + '{"role":"user","content":"a",', "}]"),
        text=(_RESPONSES + _USER + '],"text":{', "}"),
        schema=(_RESPONSES + _USER + '],"text":{"format":{"type":"json_schema","name":"a","schema":{', "}}}"),
        reasoning=(_RESPONSES + _USER + '],"reasoning":{', "}"),
    )
    tools = '],"tools":[{"functionDeclarations":[{"name":"a","parameters":{'
    yield from _lists(
        GEMINI,
        contents=(_GEMINI, "]", (_SAID, '{"parts":[{"text":"%x"}]}')),
        parts=(_GEMINI + '{"parts":[', "]}]", ('{"text":"%x"}', '{"fileData":{"fileUri":"https://%x"}}')),
        calls=(_GEMINI + _SAID + ',{"role":"model","parts":[', "]}]", ('{"functionCall":{"name":"a","id":"%x"}}',)),
        results=(
            _GEMINI + '{"role":"model","parts":[{"functionCall":{"name":"a","id":"a"}}]},{"parts":[',
            "]}]",
            ('{"functionResponse":{"name":"a","id":"a","response":{"a":"%x"}}}',),
        ),
        signatures=(_GEMINI + '{"role":"model","parts":[', "]}]", ('{"text":"","thoughtSignature":"%x"}',)),
        instruction=(_GEMINI + _SAID + '],"systemInstruction":{"parts":[', "]}", ('{"text":"%x"}',)),
        functions=(_GEMINI + _SAID + '],"tools":[{"functionDeclarations":[', "]}]", ('{"name":"%x"}',)),
        tools=(_GEMINI + _SAID + '],"tools":[', "]", ('{"googleSearch":{}}',)),
        any_of=(_GEMINI + _SAID + tools + '"anyOf":[', "]}}]}]", ('{"type":"STRING"}', '{"nullable":true}')),
        enum=(_GEMINI + _SAID + tools + '"enum":[', "]}}]}]", ('"%x"',)),
        answer=(
            _GEMINI + _SAID + '],"generationConfig":{"responseSchema":{"anyOf":[',
            "]}}",
            ('{"type":"STRING"}',),
        ),
        stops=(_GEMINI + _SAID + '],"generationConfig":{"stopSequences":[', "]}", ('"%x"',)),
    )
    yield from _objects(
        GEMINI,
        body=(_GEMINI + _SAID + "],", ""),
        content=(_GEMINI + '{"parts":[{"text":"a"}],', "}]"),
        part=(_GEMINI + '{"parts":[{"text":"a",', "}]}]"),
        properties=(_GEMINI + _SAID + tools + '"properties":{', "}}}]}]"),
        config=(_GEMINI + _SAID + '],"generationConfig":{', "}"),
    )


PLACES: Final = tuple(_places())


def fillings(place: Place) -> tuple[str, ...]:
    """Values, or members, that a place is filled with; `%x` is another number each time."""
    return place.fitting + (_MEMBERS if place.is_object else _VALUES)


def body(place: Place, filling: str, most: int) -> bytes:
    """A body of `SIZE` bytes with at most so many values in a place; the rest of it is one long text."""
    room = SIZE - len(place.before) - len(place.behind) - len(',"x":""}') - 1
    width = len(filling) + 6
    count = min(most, room // width)
    if "%x" in filling:
        values = filling.count("%x")
        inside = ",".join([filling % ((number,) * values) for number in range(0x100000, 0x100000 + count)])
    else:
        inside = ",".join([filling.replace("%b", _TEXT % 7)] * count)
    end = place.behind + ',"x":"'
    begun = place.before + inside + end
    return (begun + "x" * (SIZE - len(begun) - 2) + '"}').encode()


def counts(filling: str) -> tuple[int, ...]:
    """How many values of a filling matter: all, those that a look at the bytes lets pass, those that there are steps
    for, and half of these, of which all are read.
    """
    brackets = max(filling.count("{") + filling.count("["), 1)
    passing = min(_EDGE // brackets, 3 * _EDGE // max(filling.count(":"), 1), 6 * _EDGE // (filling.count(",") + 1))
    steps = STEPS_IN_LOOP + SIZE // 16_384
    return SIZE, passing - 64, steps - 8, steps // 2
