"""A terminal of 80 columns: what commands print fits it, and no word is broken."""

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from warmroute_cli.main import COMMANDS, main, parser

NAMES = [command.name for group in COMMANDS.values() for command in group]


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def parsers(found: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser, and those of its subcommands."""
    yield found
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from parsers(one)


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_fits_and_breaks_no_word(name: str) -> None:
    for one in list(parsers(parser(name)))[:: 1 if name else 1_000]:
        lines = one.format_help().splitlines()
        assert [line for line in lines if len(line) > 80] == []
        assert [line for line in lines if re.search(r"\w-$", line)] == []
        wanted = {word for action in one._actions for word in re.findall(r"--[\w-]+", action.help or "")}
        assert wanted <= set(re.findall(r"--[\w-]+", "\n".join(lines)))


def test_lint_shows_where_two_long_lines_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, systems = (
        tmp_path / "requests.jsonl",
        [f"{'Be careful. ' * 40}It is {day}." for day in ("Monday", "a Friday")],
    )
    messages = [[{"role": "system", "content": system}, {"role": "user", "content": "hello"}] for system in systems]
    path.write_text("\n".join(json.dumps({"model": "m", "messages": each}) for each in messages))
    assert main(["lint", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-1].startswith("2 turns of 1 session")


def test_a_plan_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "kimi-k2.5", "--gpus", "8xH200"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_the_cost_of_conform_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "http://127.0.0.1:9", "--dry-run", "--api", "openai", "anthropic", "gemini"]) == 0
    said = capsys.readouterr().err
    assert max(map(len, said.splitlines())) <= 80
    assert "--price states" in said
