"""Sound bodies of each dialect with one odd value anywhere: refused with the place, or translated; never a failure."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.field.fuzz.dialects import TRANSLATORS, check

from warmroute_proxy.dialects.raw_json import BadRequest

pytestmark = pytest.mark.full

ODD: list[Any] = [None, True, 0, -1, 1.5, 10**30, "", "x", "\ud800", [], {}, [[]], [{}], [None], {"type": 3}, {"a": {}}]
GONE = object()


def sound(name: str) -> Any:
    return json.loads((Path(__file__).parent / "corpus" / "dialects" / name).read_text())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a body has a value."""
    if path:
        yield path
    found = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in found:
        yield from places(inner, (*path, key))


def with_odd(body: Any, path: tuple[Any, ...], odd: Any) -> bytes:
    found = copy.deepcopy(body)
    at = found
    for key in path[:-1]:
        at = at[key]
    if odd is GONE:
        del at[path[-1]]
    else:
        at[path[-1]] = odd
    return json.dumps(found).encode()


@pytest.mark.parametrize("name", TRANSLATORS)
def test_one_odd_value_anywhere(name: str) -> None:
    body = sound(name)
    refused = 0
    for path in places(body):
        for odd in (GONE, *ODD):
            raw = with_odd(body, path, odd)
            check(raw)
            try:
                TRANSLATORS[name](raw)
            except BadRequest as error:
                refused += 1
                assert str(error)
            except (ValueError, RecursionError):
                assert odd == "\ud800"
    assert refused > 100


@pytest.mark.parametrize("name", TRANSLATORS)
def test_the_sound_body_is_translated(name: str) -> None:
    assert TRANSLATORS[name](json.dumps(sound(name)).encode()).body
