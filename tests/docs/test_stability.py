"""The public interface is what docs/reference/public-interface.txt says."""

from functools import cache

import pytest
from scripts import public_interface

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the interface takes 3 s."""
    monkeypatch.setattr(public_interface, "interface", READ)


READ = cache(public_interface.interface)


def test_the_public_interface_is_what_was_written_down() -> None:
    """docs/reference/stability.md says what may change."""
    assert public_interface.differences() == [], "run scripts/public_interface.py, and commit what it writes"


def test_a_name_that_is_gone_and_a_new_one_are_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = public_interface.interface().replace("header x-warmroute-home", "header x-warmroute-at")
    monkeypatch.setattr(public_interface, "interface", lambda: renamed)
    assert {"-header x-warmroute-home", "+header x-warmroute-at"} <= set(public_interface.differences())
