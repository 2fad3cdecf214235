"""The public interface is what docs/reference/public-interface.txt says."""

import pytest
from scripts import public_interface


def test_the_public_interface_is_what_was_written_down() -> None:
    """`scripts/public_interface.py` writes the file again; docs/reference/stability.md says what may change."""
    assert public_interface.differences() == []


def test_a_name_that_is_gone_and_a_new_one_are_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = public_interface.interface().replace("header x-warmroute-home", "header x-warmroute-at")
    monkeypatch.setattr(public_interface, "interface", lambda: renamed)
    assert public_interface.differences() == ["-header x-warmroute-home", "+header x-warmroute-at"]
