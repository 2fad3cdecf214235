"""docs/how-to/lint.md shows what `warmroute lint` prints. `WARMROUTE_UPDATE_DOCS=1` writes it there."""

import os
import re
from pathlib import Path

import pytest

from warmroute_cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "lint.md"
_RUN = re.compile(r"<!-- run -->\n```sh\nwarmroute (?P<command>[^\n]+)\n```\n\n```text\n(?P<says>.*?)```", re.DOTALL)


def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    text = PAGE.read_text()
    found = _RUN.search(text)
    assert found is not None
    assert main(found["command"].split()) == 0
    printed = capsys.readouterr().out
    if os.environ.get("WARMROUTE_UPDATE_DOCS"):
        PAGE.write_text(text[: found.start("says")] + printed + text[found.end("says") :])
        return
    assert found["says"] == printed
