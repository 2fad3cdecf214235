"""What broke a prefix: long prompts cost no more than their length."""

from typing import Any

import msgspec
import pytest

from warmroute_proxy.core.prompt import breaks
from warmroute_proxy.core.prompt.breaks import Break, PromptShape, Texts, find_break
from warmroute_proxy.core.prompt.fingerprint import fingerprint_chat
from warmroute_proxy.core.prompt.messages import USER
from warmroute_proxy.core.prompt.parts import LineMark, head_of, line_mark, message_texts, system_lines

KEY = 7
MARK = "This session is being continued from a previous conversation that ran out of context."


def conversation(*contents: Any) -> msgspec.Raw:
    """Messages that user and assistant write by turns, after a system prompt."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(contents)]
    return msgspec.Raw(msgspec.json.encode([{"role": "system", "content": "You help. " * 900}, *messages]))


def shape(messages: msgspec.Raw) -> PromptShape:
    found = fingerprint_chat(None, messages, KEY)
    return PromptShape(head_of(None, messages, KEY), found.chain.hashes, found.chain.ends, found.messages)


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ("Please summarize this document. It was continued from a previous conversation.", None),
        (f"{MARK} The summary is below.", "compaction"),
        ([{"type": "text", "text": "Notes. " * 400}, {"type": "text", "text": MARK}], "compaction"),
    ],
    ids=["another conversation", "a compaction", "a compaction after notes"],
)
def test_a_first_message_is_a_compaction_only_if_it_begins_with_the_words_of_one(asked: Any, cause: str | None) -> None:
    now = conversation(asked)
    texts = Texts(lambda: system_lines(now), lambda at, count: message_texts(now, at, count))
    before = shape(conversation("Read the files.", "They say this. " * 4_000))
    assert find_break(before, shape(now), texts, KEY) == (cause and Break("message 2 (user)", cause))


class Counted(list[tuple[int, int]]):
    """Notes how much of it was copied."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            Counted.copied += len(range(*at.indices(len(self))))
        return super().__getitem__(at)


def test_a_long_history_is_copied_a_few_times_and_not_once_for_each_message() -> None:
    count = 8_000
    old = [(USER, 100)] * (count - 1) + [(USER, 101)]
    Counted.copied = 0
    assert breaks._cause_in_history(Counted(old), Counted(old[::-1])) == "history-edited"
    assert Counted.copied < 10 * count


@pytest.mark.parametrize(("names", "most"), [(1, 400), (249, 0)])
def test_a_long_line_of_dates_is_not_tried_with_other_days(
    names: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[bytes] = []

    def noting(line: bytes, key: int) -> LineMark:
        hashed.append(line)
        return line_mark(line, key)

    monkeypatch.setattr(breaks, "line_mark", noting)
    line = "Mon Jan " * names
    breaks._cause_of_line(line_mark(b"another", KEY), line_mark(line.encode(), KEY), line, KEY)
    assert (len(hashed) > 0) == (most > 0)
    assert len(hashed) <= most
