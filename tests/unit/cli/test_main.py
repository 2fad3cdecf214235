"""The command line: what it says, and with which exit code."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from warmroute import __version__
from warmroute_cli.main import main, parser
from warmroute_proxy import COMPILED


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"warmroute {__version__}{' (compiled)' if COMPILED else ''}\n"


@pytest.mark.parametrize(
    "words",
    [[], ["unknown"], ["demo", "--sessions", "0"], ["demo", "--speed", "-1"], ["demo", "--harness", "x"], ["proxy"]],
)
def test_wrong_usage_is_a_sentence_and_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--speed", "fast"], "argument --speed: 'fast' is not a number above 0"),
        (["demo", "--sessions", "1.5"], "argument --sessions: '1.5' is not a whole number above 0"),
        (["proxy", "--config", "x", "--processes", "0"], "argument --processes: '0' is not a whole number above 0"),
        (["replay", "x", "--workers", "4:"], "argument --workers: '' is not a whole number from 1 to 1024"),
        (["replay", "x", "--kv-tokens", "1M:1:1:1"], "'1M:1:1:1' is not DEVICE[:HOST[:STORE]] in tokens, like 3M:10M"),
        (["replay", "x", "--change", "9:restart"], "'9:restart' is not SECOND:KIND:WORKER, like 600:restart:3"),
        (["replay", "x", "--naming-share", "2"], "argument --naming-share: '2' is not a number from 0 to 1"),
        (["replay", "x", "--rtt-ms", "nan"], "argument --rtt-ms: 'nan' is not a number above 0"),
    ],
)
def test_a_wrong_value_is_told_what_is_wanted(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert said in capsys.readouterr().err


def test_a_key_fits_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key"]) == 0
    words = capsys.readouterr().out.split()
    key = next(word for word in words if word.startswith("wr-"))
    assert words[-1] == f'["{hashlib.sha256(key.encode()).hexdigest()}"]'


@pytest.mark.parametrize("command", ["demo", "up"])
def test_a_state_directory_that_cannot_be_used_is_a_sentence(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main([command, "--state-dir", str(tmp_path / "file" / "state")]) == 2
    assert capsys.readouterr().err.startswith("warmroute: the state directory")


def test_defaults_of_a_demo() -> None:
    found = parser().parse_args(["demo"])
    assert (found.seed, found.json, list(found.harness)) == (1, None, [])


def test_only_the_chosen_subcommand_is_imported() -> None:
    code = "import sys, warmroute_cli.main as m; m.parser(); print({'openai', 'rich', 'uvloop'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_missing_extra_is_a_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("warmroute_cli.main.NEEDED", ("json", "no_such_module"))
    assert main(["key"]) == 2
    assert capsys.readouterr().err == "warmroute: no_such_module not installed: pip install 'warmroute[proxy]'\n"
