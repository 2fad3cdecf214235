"""What broke a prefix: long prompts cost no more than their length."""

from typing import Any

import pytest

from warmroute_proxy.core.prompt import breaks
from warmroute_proxy.core.prompt.messages import USER
from warmroute_proxy.core.prompt.parts import LineMark, line_mark

KEY = 7


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
