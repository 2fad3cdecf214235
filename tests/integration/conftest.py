"""What all integration tests share: which deadlines of the product stay as they are."""

import pytest

from tests.subjects import patience


@pytest.fixture(autouse=True)
def deadlines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a test is about, by its marker `real_deadlines`."""
    if marker := request.node.get_closest_marker("real_deadlines"):
        monkeypatch.setenv(patience.SETTING, patience.real(marker.args))
