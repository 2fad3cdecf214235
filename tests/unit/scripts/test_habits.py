"""`scripts/prose/habits.py` finds the three habits in docstrings, comments and messages, and nothing else."""

import pytest
from scripts.prose.habits import habits, offences, texts

KNOWN = habits()


def found(source: str) -> list[str]:
    return [offence for text in texts("a.py", source) for offence in offences(KNOWN, text)]


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ('"""One.\n\nA file that is\nno regular file.\n"""', 3, "is no"),
        ("# A list that\n# is none.\nx = 1", 1, "is none"),
        ('raise ValueError(f"{x} is no address")', 1, "is no"),
        ('parser.add_argument("--wait", help="wait so many seconds")', 1, "so many"),
        ("x = 1  # so much is kept", 1, "so much"),
        ('def f():\n    """The same of an answer."""', 2, "The same of"),
    ],
)
def test_a_habit_is_found_with_its_line(source: str, line: int, words: str) -> None:
    (offence,) = found(source)
    assert offence.startswith(f"a.py:{line}: '{words}"), offence


@pytest.mark.parametrize(
    "source",
    [
        '"""There is no such engine; None if there are none. It is no longer kept, and no more than 3 are no other."""',
        "assert x is None  # None is returned if y is not there",
        'open("is_none", "so_many")',
    ],
)
def test_plain_english_is_left_alone(source: str) -> None:
    assert not found(source)
