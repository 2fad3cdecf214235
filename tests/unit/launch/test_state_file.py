"""The state file: written as a whole, read back the same, refused where it is damaged; one launcher at a time."""

from pathlib import Path

import pytest

from warmroute_backend.launch.identity import Identity
from warmroute_backend.launch.program import LaunchError
from warmroute_backend.launch.state_file import Entry, Record, load, locked, save
from warmroute_backend.launch.states import State

ENTRY = Entry(
    "decode-0", "decode", State.READY, "d1", "/logs/decode-0.log", "http://127.0.0.1:1", {"http": 1},
    identity=Identity(7, 8), members=[Identity(9, 10)], starts=2, ready_s=3.5, has_served=True, restarts_s=[1.0],
)  # fmt: skip
RECORD = Record("id", "boot", "/plan.toml", "embedded", 0, Identity(1, 2), {"decode-0": ENTRY})


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    save(tmp_path, RECORD)
    assert load(tmp_path) == RECORD
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1}', '{"version": 1, "entries": {"a": {}}}', "null"])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(LaunchError, match="is damaged: look for processes"):
        load(tmp_path)


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"version": 9}')
    with pytest.raises(LaunchError, match="another version"):
        load(tmp_path)


def test_one_launcher_has_the_directory(tmp_path: Path) -> None:
    again = locked(tmp_path / "new", "taken")
    with locked(tmp_path / "new", "taken"), pytest.raises(LaunchError, match="taken"), again:
        pytest.fail("it was taken")
    with locked(tmp_path / "new", "taken"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be used"), locked(tmp_path / "file", "taken"):
        pytest.fail("it is a file")
