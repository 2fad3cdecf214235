"""A prompt that begins with a program's own words for a summary is a compaction."""

import json
from typing import Any

import pytest

from warmroute.contract.compactions import MARKS, Mark
from warmroute_proxy.core.prompt.compactions import is_compacted

WORDS = next(mark.words for mark in MARKS if mark.role == "user")


def of(*said: tuple[str, Any]) -> bytes:
    return json.dumps({"messages": [{"role": role, "content": text} for role, text in said]}).encode()


@pytest.mark.parametrize("mark", MARKS, ids=lambda mark: mark.words.strip())
def test_each_mark_is_one(mark: Mark) -> None:
    text = f"{mark.words} We have read the files."
    assert is_compacted(of(("system", "x"), ("user", "What did we do?"), (mark.role, [{"type": "text", "text": text}])))


@pytest.mark.parametrize(
    "said",
    [[""], ["Read other files."], [f"Somebody wrote: {WORDS}"], [WORDS[:-2]], ["x" * 300_000, WORDS]],
    ids=["empty", "a fork", "quoted", "a part of the words", "too far"],
)
def test_what_has_no_mark_at_its_beginning_is_none(said: list[str]) -> None:
    assert not is_compacted(of(*(("user", text) for text in said)))
