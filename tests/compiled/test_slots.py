"""`scripts/slots.h` remembers where a field or a method was: what has changed since is found where it is now."""

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest
from scripts import compile as compiling

PROBE = """
from typing import Any

def field(thing: Any) -> Any:
    return thing.field

def named(thing: Any, name: str) -> Any:
    return getattr(thing, name)

def called(thing: Any) -> Any:
    return thing.method(7)
"""


class Slotted:
    __slots__ = ("field", "other")

    def __init__(self, field: Any) -> None:
        self.field = field
        self.other = "other"

    def method(self, number: int) -> Any:
        return "sound", number


class Structure(msgspec.Struct, frozen=True):
    other: Any
    field: Any


class Plain:
    def __init__(self, field: Any) -> None:
        self.field = field

    def method(self, number: int) -> Any:
        return "plain", number


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("probe")
    (folder / "slots_probe.py").write_text(PROBE)
    made = compiling.extensions(folder, [str(folder / "slots_probe.py")], "slots_probe")
    for place, path in made.items():
        path.rename(folder / place)
    sys.path.insert(0, str(folder))
    found = importlib.import_module("slots_probe")
    assert found.__file__ is not None
    assert found.__file__.endswith(".so")
    yield found
    sys.path.remove(str(folder))


def test_fields_of_many_kinds_of_objects_at_one_place(probe: ModuleType) -> None:
    things = [Slotted(1), Structure(0, 2), Plain(3), Slotted(4), Structure(0, 5), Slotted(6)]
    assert [probe.field(thing) for thing in things * 2] == [1, 2, 3, 4, 5, 6] * 2


def test_many_fields_at_one_place(probe: ModuleType) -> None:
    thing = Slotted(1)
    assert [probe.named(thing, name) for name in ("field", "other", "field", "other")] == [1, "other", 1, "other"]


def test_a_field_that_is_not_set_is_an_error(probe: ModuleType) -> None:
    thing = Slotted(1)
    assert probe.field(thing) == 1
    del thing.field
    for _ in range(2):
        with pytest.raises(AttributeError, match="field"):
            probe.field(thing)
    thing.field = 2
    assert probe.field(thing) == 2
    with pytest.raises(AttributeError, match="field"):
        probe.field(object())


def test_a_class_that_changes(probe: ModuleType) -> None:
    class Kind(Slotted):
        __slots__ = ()

    changing: Any = Kind
    thing = Kind(1)
    assert [probe.field(thing), probe.called(thing)] == [1, ("sound", 7)]
    changing.field = property(lambda _: "a property")
    changing.method = lambda *_: "another"
    assert [probe.field(thing), probe.called(thing)] == ["a property", "another"]
    del changing.field, changing.method
    assert [probe.field(thing), probe.called(thing)] == [1, ("sound", 7)]


def test_a_method_that_an_instance_has_of_its_own(probe: ModuleType) -> None:
    thing: Any = Plain(1)
    assert probe.called(thing) == ("plain", 7)
    thing.method = lambda number: ("its own", number)
    assert probe.called(thing) == ("its own", 7)
    assert probe.called(Slotted(1)) == ("sound", 7)


def test_a_method_that_takes_itself_away(probe: ModuleType) -> None:
    class Once(Slotted):
        __slots__ = ()

        def method(self, number: int) -> Any:
            del Once.method
            return "once", number

    assert [probe.called(Once(1)) for _ in range(2)] == [("once", 7), ("sound", 7)]


def test_references_are_counted(probe: ModuleType) -> None:
    value = object()
    thing, structure = Slotted(value), Structure(0, value)
    before = sys.getrefcount(value), sys.getrefcount(thing)
    for _ in range(1000):
        probe.field(thing)
        probe.field(structure)
        probe.called(thing)
    assert (sys.getrefcount(value), sys.getrefcount(thing)) == before
