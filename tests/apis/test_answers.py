"""What clients get of what engines answer: the golden cases of `cases/`. Adding a case is adding files (`case.py`).

`WARMROUTE_UPDATE_GOLDEN=1 pytest tests/apis` writes what clients get now into the expected files: read the difference.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apis.case import Run, charged, runs, shown
from tests.apis.folded import FOLDS, failed
from tests.apis.played import Answered, Scene

UPDATE: Final = os.environ.get("WARMROUTE_UPDATE_GOLDEN") == "1"
OTHER_READS: Final = ("at once", pytest.param("by byte", marks=pytest.mark.nightly))
BOTH: Final = sorted({run.folder for run in runs() if run.stream} & {run.folder for run in runs() if not run.stream})


def name_of(run: Run | Path) -> str:
    folder = run.folder if isinstance(run, Run) else run
    return f"{folder.parent.name}/{folder.name}{'' if isinstance(run, Path) else '+stream' if run.stream else '+whole'}"


def play(folder: Path, run: Run, feed: str) -> Answered:
    setup, (path, body) = run.setup, run.request()
    scene = Scene(
        folder / feed.replace(" ", "-"), run.says(feed), engines=setup.get("engine", ""),
        kind=setup.get("kind", "openai"), extra=setup.get("model", ""),
    )  # fmt: skip
    return scene.play(path, body, leaves_at=setup.get("leaves_at", "").encode())


@pytest.mark.parametrize("run", runs(), ids=name_of)
def test_what_a_client_gets(run: Run, tmp_path: Path) -> None:
    found = play(tmp_path, run, "by event")
    got, charge = shown(found, run), charged(found)
    if UPDATE:
        _write(run, got, charge)
    assert got == run.expected.read_text()
    assert charge == _charge(run)
    if "leaves_at" not in run.setup:
        _check_money(run, found, got, charge)


@pytest.mark.full
@pytest.mark.parametrize("feed", OTHER_READS)
@pytest.mark.parametrize("run", [run for run in runs() if run.stream and "leaves_at" not in run.setup], ids=name_of)
def test_a_client_gets_the_same_whatever_the_reads_of_the_engines_answer(run: Run, feed: str, tmp_path: Path) -> None:
    found = play(tmp_path, run, feed)
    assert shown(found, run) == run.expected.read_text()
    assert charged(found) == _charge(run)


def _check_money(run: Run, answered: Answered, got: str, charge: dict[str, Any]) -> None:
    """What is no answer is charged nothing; an answer is."""
    if answered.status != 200 or (run.stream and failed(run.api, got)):
        assert charge.get("nanousd", 0) == 0
    else:
        assert charge["outcome"] == "completed"
        assert charge["nanousd"] > 0
        if run.stream:
            FOLDS[run.api][0](got)


@pytest.mark.parametrize("folder", BOTH, ids=name_of)
def test_a_stream_and_a_whole_answer_say_the_same(folder: Path) -> None:
    stream, whole = Run(folder, stream=True), Run(folder, stream=False)
    streamed, reply = stream.expected.read_text(), whole.expected.read_text()
    if reply.startswith("HTTP") or failed(stream.api, streamed):
        assert reply.startswith("HTTP")
        assert streamed.startswith("HTTP") or failed(stream.api, streamed)
        return
    of_stream, of_whole = FOLDS[stream.api]
    found, expected = of_stream(streamed), of_whole(json.loads(reply))
    if any("completion_tokens" in charge["estimated"] for charge in _charges(stream).values()):
        found.pop("usage")  # one is estimated by events, the other one by its length
        expected.pop("usage")
    assert found == expected


def _charges(run: Run) -> dict[str, Any]:
    path = run.folder / "charge.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _charge(run: Run) -> Any:
    return _charges(run)["streamed" if run.stream else "whole"]


def _write(run: Run, got: str, charge: dict[str, Any]) -> None:
    run.expected.write_text(got)
    found = {**_charges(run), "streamed" if run.stream else "whole": charge}
    lines = [f' "{name}": {json.dumps(found[name])}' for name in sorted(found)]
    (run.folder / "charge.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
