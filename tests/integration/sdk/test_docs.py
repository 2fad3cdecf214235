"""The examples of docs/reference/sdk.md run as they stand."""

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.sdk.conftest import MockServer

pytestmark = pytest.mark.nightly  # by scripts/openai2; tests/docs runs them on the newest openai

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sdk.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(server: "MockServer", number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[number]],
        env={"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "wr-example", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_page_has_its_examples() -> None:
    assert len(EXAMPLES) == 7
