"""The fleet of the programs of a file."""

from collections.abc import Iterator

import pytest
from tests.subjects.copies import CopiedFleet

from warmroute_lab.fleet import LocalFleet


@pytest.fixture(scope="module")
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalFleet]:
    """A fleet with the `OPTIONS` of the file."""
    folder = tmp_path_factory.mktemp("fleet")
    with CopiedFleet(folder, folder / "up", request.module.OPTIONS) as made:
        yield made
