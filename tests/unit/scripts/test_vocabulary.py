"""`scripts/vocabulary.py` finds the words that the glossary excludes, and no others."""

import pytest
from scripts.vocabulary import GLOSSARY, Banned, definitions, glossary, offenders, words

TABLE = """
| term | meaning | not |
|---|---|---|
| worker | One rank, | `place` (noun), `holder` |
| turn | One step. | |
| `last_...` | A qualifier. | `last` (alone) |
"""
SOURCE = """
def place(holder):
    self.places = last = holder

class LastPlace:
    last_settled: int
"""


def found(source: str, *excused: str) -> list[tuple[str, str]]:
    by_word = offenders(glossary(TABLE), definitions("proxy/holders.py", source), excused)
    return [(banned.word, definition.name) for banned, each in by_word.items() for definition in each]


def test_the_third_column_is_read() -> None:
    assert glossary(TABLE) == [
        Banned("place", "worker", "noun"),
        Banned("holder", "worker", ""),
        Banned("last", "`last_...`", "alone"),
    ]


def test_words_are_whole() -> None:
    assert words("_KVEvents_of2ndPlace") == ["kv", "events", "of", "nd", "place"]


def test_verbs_and_qualifiers_are_allowed() -> None:
    assert sorted(found(SOURCE)) == [
        ("holder", "holder"),
        ("holder", "holders"),
        ("last", "last"),
        ("place", "LastPlace"),
        ("place", "places"),
    ]


@pytest.mark.parametrize(
    ("source", "excused"),
    [
        ("bootstrap_holder = old_bootstrap_holders = 1", ["bootstrap_holder"]),
        ("holder = 1", ["proxy/holders.py: holder"]),
        ("replaced = display = 1", []),
    ],
)
def test_what_is_excused_is_not_reported(source: str, excused: list[str]) -> None:
    assert [each for each in found(source, *excused) if each[1] != "holders"] == []


def test_an_excuse_is_for_its_own_identifier() -> None:
    assert ("holder", "holder") in found("holder = 1", "bootstrap_holder", "sdk/holders.py: holder")


def test_the_glossary_has_each_term_once() -> None:
    terms = [line.split(" | ")[0] for line in GLOSSARY.read_text().splitlines() if line.startswith("| ")]
    assert len(terms) == len(set(terms))
    assert {banned.word for banned in glossary(GLOSSARY.read_text())} >= {"sibling", "board", "life", "room", "last"}
