"""What `warmroute run` gives a program: variables, files, arguments; and how it passes on how the program ended."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.machine import seconds

from warmroute_cli import running
from warmroute_cli.api import ApiError
from warmroute_cli.main import main, parser
from warmroute_cli.run import process, title
from warmroute_cli.run.closing import by_agent, show
from warmroute_cli.run.programs import PROGRAMS, Program, any_program
from warmroute_cli.run.run import Settings, Target, _proxy, git_settings, settings_of
from warmroute_cli.run.run_options import split

TARGET = Target("http://127.0.0.1:8080", "wr-a secret", "kimi-k2.5", 150_000, "session-1")


def settings(name: str, folder: Path, target: Target = TARGET) -> Settings:
    return settings_of(PROGRAMS[name], target, folder, ["/home/somebody/.gitconfig"])


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_every_program_is_pointed_at_the_proxy(name: str, tmp_path: Path) -> None:
    found = settings(name, tmp_path)
    everything = "\n".join([*found.environment.values(), *found.files.values(), *found.command])
    assert "http://127.0.0.1:8080" in everything
    assert "kimi-k2.5" in everything
    assert "$" not in everything.replace('"$schema"', "").replace('"$WARMROUTE_API_KEY"', "")  # pi reads a variable so
    assert PROGRAMS[name].sources


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_key_is_in_the_environment_alone(name: str, tmp_path: Path) -> None:
    found = settings(name, tmp_path)
    assert TARGET.key in found.environment.values()
    assert TARGET.key not in "\n".join([*found.files.values(), *found.command])


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_all_files_and_folders_are_its_own(name: str, tmp_path: Path) -> None:
    found = settings(name, tmp_path)
    assert all(tmp_path in path.parents for path in found.files)
    assert any(value.startswith(str(tmp_path)) for value in found.environment.values())


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_files_can_be_read_wherever_they_lie(name: str, tmp_path: Path) -> None:
    for path, text in settings(name, tmp_path / 'a "folder" \\ of mine').files.items():
        if path.suffix == ".json":
            json.loads(text)
        elif path.suffix == ".toml":
            tomllib.loads(text)


def test_what_an_agent_adds_to_its_settings_stays_while_it_is_pointed_at_another_proxy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codex, gemini = settings("codex", tmp_path), settings("gemini", tmp_path)
    (toml,), (json_file,) = codex.files, gemini.files
    for each in (codex, gemini):
        each.write()
    added = '[mcp_servers.docs]\ncommand = "docs"\n[projects."/x"]\ntrust_level = "trusted"\n'
    toml.write_text(toml.read_text() + added)
    general = {"enableAutoUpdate": False, "vimMode": True}
    json_file.write_text(json.dumps({"ui": {"theme": "Dracula"}, "general": general}))
    settings("codex", tmp_path, replace(TARGET, root="http://127.0.0.1:8081", model="other")).write()
    gemini.write()
    found = tomllib.loads(toml.read_text())
    assert (found["model"], found["model_providers"]["warmroute"]["base_url"]) == ("other", "http://127.0.0.1:8081/v1")
    assert tomllib.loads(added).items() <= found.items()
    kept = json.loads(json_file.read_text())
    assert (kept["ui"], kept["general"]["vimMode"]) == ({"theme": "Dracula"}, True)
    assert kept["model"] == {"name": "kimi-k2.5"}
    assert kept["general"]["enableAutoUpdateNotification"] is False
    assert capsys.readouterr().err == ""
    written = toml.stat().st_mtime_ns, toml.read_text()
    settings("codex", tmp_path, replace(TARGET, root="http://127.0.0.1:8081", model="other")).write()
    assert (toml.stat().st_mtime_ns, toml.read_text()) == written


def test_settings_that_cannot_be_read_are_kept_beside_the_new_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gemini = settings("gemini", tmp_path)
    ((path, text),) = gemini.files.items()
    path.parent.mkdir()
    for mine, before in (("{ // mine\n}", "settings.json.before"), ("[1]", "settings.json.before-2")):
        path.write_text(mine)
        gemini.write()
        assert path.read_text() == text
        assert path.with_name(before).read_text() == mine
        assert f"{before}\n" in capsys.readouterr().err


@pytest.mark.parametrize("context", [8_000, 16_384, 32_768, 40_000, 200_000])
@pytest.mark.parametrize("name", ["opencode", "kimi", "pi"])
def test_a_program_keeps_at_most_a_quarter_of_the_context_free_for_an_answer(
    name: str, context: int, tmp_path: Path
) -> None:
    text = "".join(settings(name, tmp_path, replace(TARGET, context=context)).files.values())
    found = re.findall(r'(?:"output": |max_output_size = |reserved_context_size = |"maxTokens": )(\d+)', text)
    assert {int(each) for each in found} == {min(32_000, context // 4)}


@pytest.mark.parametrize(
    ("program", "cleared"),
    [
        (PROGRAMS["claude"], ["ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_MANTLE"]),
        (PROGRAMS["gemini"], ["GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI"]),
        (any_program("python"), ["ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_USE_FOUNDRY", "GOOGLE_GENAI_USE_VERTEXAI"]),
    ],
)
def test_variables_that_would_lead_elsewhere_are_taken_away(
    program: Program, cleared: list[str], tmp_path: Path
) -> None:
    found = settings_of(program, TARGET, tmp_path, ["/home/somebody/.gitconfig"])
    given = found.variables({"EDITOR": "vi", **dict.fromkeys(cleared, "1")})
    assert given == {"EDITOR": "vi", **found.environment}


def test_what_aider_reads_last_names_the_proxy_as_a_repository_may_have_a_file_of_variables(tmp_path: Path) -> None:
    found = settings("aider", tmp_path)
    assert found.environment["AIDER_OPENAI_API_KEY"] == TARGET.key
    assert f'api_base: "{TARGET.root}/v1"' in found.files[tmp_path / "model.settings.yml"]


@pytest.mark.parametrize(
    ("files", "environ", "git"),
    [
        ([], {}, [".gitconfig"]),
        ([".config/git/config"], {}, [".config/git/config"]),
        ([".config/git/config", ".gitconfig"], {}, [".config/git/config", ".gitconfig"]),
        (["xdg/git/config"], {"XDG_CONFIG_HOME": "xdg"}, ["xdg/git/config"]),
        ([".gitconfig"], {"GIT_CONFIG_GLOBAL": "mine"}, ["mine"]),
    ],
)
def test_a_program_with_another_home_keeps_the_users_git_settings(
    files: list[str], environ: dict[str, str], git: list[str], tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    given = {name: str(tmp_path / value) for name, value in environ.items()}
    assert git_settings(given, tmp_path) == [str(tmp_path / name) for name in git]


def test_each_program_whose_git_would_read_another_folder_gets_the_users_git_settings() -> None:
    moved = {name for name, each in PROGRAMS.items() if {"HOME", "XDG_CONFIG_HOME"} & each.environment.keys()}
    assert moved == {name for name, each in PROGRAMS.items() if "GIT_CONFIG_GLOBAL" in each.environment}


def test_git_reads_both_files_of_a_user(tmp_path: Path) -> None:
    both = [str(tmp_path / name) for name in ("xdg", 'a "plain" one')]
    for path, text in zip(both, ("name = n\n\temail = xdg", "email = plain"), strict=True):
        Path(path).write_text(f"[user]\n\t{text}\n")
    named = next(each for each in PROGRAMS.values() if "$git" in each.environment.values())
    found = settings_of(named, TARGET, tmp_path / "folder", both)
    found.write()
    file = found.environment["GIT_CONFIG_GLOBAL"]
    for name, value in (("name", "n"), ("email", "plain")):
        read = ["git", "config", "--includes", "--file", file, f"user.{name}"]
        assert subprocess.run(read, capture_output=True, text=True, check=True).stdout == f"{value}\n"


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_printed_settings_are_a_script(name: str, tmp_path: Path) -> None:
    found = settings(name, tmp_path / "it's a folder")
    command = found.command[0]
    *lines, _ = found.shell().splitlines()
    printed = subprocess.run(
        ["bash", "-eu", "-c", "\n".join([*lines, "env -0"])], capture_output=True, text=True, check=True
    ).stdout
    variables = dict(line.split("=", 1) for line in printed.split("\0") if "=" in line)
    assert dict(found.environment).items() <= variables.items()
    assert {path: path.read_text() for path in found.files} == dict(found.files)
    assert found.shell().splitlines()[-1].startswith(command)


@pytest.mark.parametrize("words", [["--", "python", "x.py"], ["claude", "--", "-p", "hi"]])
def test_the_printed_command_has_its_arguments(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("warmroute_cli.run.run._model", lambda *_: ("m", 9))
    assert main(["run", "--base-url", "http://h/v1", "--key", "k", "--print", *words]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == " ".join(words).replace("-- ", "")


@pytest.mark.parametrize(
    ("words", "own", "passed"),
    [
        (["run", "claude", "--", "-p", "x", "--", "y"], ["run", "claude"], ["-p", "x", "--", "y"]),
        (["run", "claude"], ["run", "claude"], []),
        (["receipts", "show", "--", "-x"], ["receipts", "show", "--", "-x"], []),
        ([], [], []),
    ],
)
def test_what_stands_behind_the_dashes_is_the_programs(words: list[str], own: list[str], passed: list[str]) -> None:
    assert split(words) == (own, passed)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["claude", "--print"], "no fleet runs in"),
        (["claude", "--base-url", "http://127.0.0.1:1/v1", "--print"], "--base-url needs a key"),
        (["claude", "--base-url", "ftp://x", "--key", "k", "--print"], "is not an address such as"),
        (["claude", "--base-url", "http://x/v2", "--key", "k", "--print"], "is not an address such as"),
        (["claude", "--base-url", "http://127.0.0.1:1/v1", "--key", "k", "--print"], "does not answer"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_code_2(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert main(["run", *words, "--state-dir", str(tmp_path / "state")]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(("warmroute: ", "warmroute run: "))
    assert said in printed.err
    assert printed.out == ""


def test_any_program_gets_the_variables_of_all_apis(tmp_path: Path) -> None:
    found = settings_of(any_program("python"), TARGET, tmp_path, ["/home/somebody/.gitconfig"])
    given = found.variables({"EDITOR": "vi"})
    assert given["OPENAI_BASE_URL"] == "http://127.0.0.1:8080/v1"
    assert given["ANTHROPIC_BASE_URL"] == given["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:8080"
    assert {given[f"{name}_API_KEY"] for name in ("OPENAI", "ANTHROPIC", "GEMINI")} == {TARGET.key}
    assert (found.command, dict(found.files), given["EDITOR"]) == (("python",), {}, "vi")


@pytest.mark.parametrize(
    ("words", "said"), [([], "name a program: opencode, "), (["--", "no-such-program"], "no command 'no-such-program'")]
)
def test_a_program_has_to_be_named(words: list[str], said: str, tmp_path: Path, capsys: Any) -> None:
    assert main(["run", "--state-dir", str(tmp_path / "state"), *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_program_that_is_not_installed_is_named_with_its_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", name, "--state-dir", str(tmp_path / "state")]) == 2
    assert PROGRAMS[name].install in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_an_older_program_with_the_same_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would not read the settings, and ask its own provider."""
    kimi = tmp_path / "kimi"
    kimi.write_text("#!/usr/bin/python3\nimport sys\nfrom kimi_cli.__main__ import main\nsys.exit(main())\n")
    kimi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", "kimi", "--state-dir", str(tmp_path / "state")]) == 2
    said = capsys.readouterr().err
    assert f"{kimi} is an older program, kimi_cli, which kimi has replaced." in said
    assert PROGRAMS["kimi"].install in said
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("model", ["", 'a"b', "a b", "$HOME", "x" * 129])
def test_a_model_has_a_plain_name(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["run", "claude", "--model", model])
    assert "is not the name of a model" in capsys.readouterr().err


@pytest.mark.parametrize(("script", "status"), [("exit 7", 7), ("exit 0", 0), ("kill -KILL $$", 137)])
def test_the_status_is_the_programs(script: str, status: int) -> None:
    assert process.run(["sh", "-c", script], os.environ) == status


IN_A_TERMINAL = """
import os, pty, sys
from warmroute_cli.run import process

input_end, output_end = os.pipe()
pid, terminal = pty.fork()
if not pid:
    os.dup2(input_end, 0)
    script = "trap 'echo got it' INT; echo ready; read line; read line; echo ended"
    os._exit(process.run(["sh", "-c", script], os.environ))
shown = b""
for seen, then in ((b"ready", lambda: os.write(terminal, bytes([3]))),
                   (b"got it", lambda: os.write(output_end, b"one\\ntwo\\n")),
                   (b"ended", lambda: os.waitpid(pid, 0))):
    while seen not in shown:
        shown += os.read(terminal, 1000)
    then()
print(shown.count(b"got it"))
"""


def test_keys_of_a_terminal_reach_the_program_once_even_where_its_input_is_none() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_TERMINAL], capture_output=True, text=True, check=False, timeout=seconds(20)
    )
    assert done.stdout == "1\n", done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_reach_the_program_which_decides(number: signal.Signals, tmp_path: Path) -> None:
    waits = f"trap 'echo got it; exit 5' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.1; done"
    code = f"import os; from warmroute_cli.run import process; exit(process.run(['sh', '-c', {waits!r}], os.environ))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        run.send_signal(number)
        assert run.stdout.readline() == "got it\n"
        assert run.wait(seconds(20)) == 5


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_printed_settings_hide_the_key_and_take_it_from_a_variable(name: str, tmp_path: Path) -> None:
    script = settings(name, tmp_path).shell(TARGET.key)
    assert TARGET.key not in script
    *lines, _ = script.splitlines()
    environment = {**os.environ, "WARMROUTE_KEY": TARGET.key}
    command = ["bash", "-eu", "-c", "\n".join([*lines, "env -0"])]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    variables = dict(line.split("=", 1) for line in printed.split("\0") if "=" in line)
    assert dict(settings(name, tmp_path).environment).items() <= variables.items()
    without = {name: value for name, value in os.environ.items() if name != "WARMROUTE_KEY"}
    failed = subprocess.run(command, capture_output=True, text=True, check=False, env=without)
    assert failed.returncode != 0
    assert "put the API key into it, or print it with --show-key" in failed.stderr


class _Api:
    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.answers = answers

    def ask(self, _path: str, _parameters: dict[str, str], timeout_s: float) -> dict[str, Any]:
        del timeout_s
        return self.answers.pop(0)


def test_turn_hit_and_cost_are_shown_when_they_change() -> None:
    none = {"turns": 0, "hit_ratio": None, "price_nanousd": 0}
    one = {"turns": 12, "hit_ratio": 0.8731, "price_nanousd": 12_300_000}
    answers: list[dict[str, Any]] = [none, one, one]
    written: list[str] = []
    title.keep_showing(_Api(answers), 0.0, written.append, lambda _s: not answers)  # type: ignore[arg-type]
    assert written == ["warmroute: turn 12, hit 87.3%, 0.0123 USD"]


SHOW_ONE_TURN = """
import threading
from warmroute_cli.run import title

title.EVERY_S = 0.01
asked = threading.Event()


class Api:
    def __init__(self):
        self.turns = 0

    def ask(self, *_, **__):
        self.turns += 1
        if self.turns > 2:
            asked.set()
        return {"turns": 12, "hit_ratio": 0.8731, "price_nanousd": 12_300_000}


with title.shown(Api(), 0.0):
    asked.wait()
"""


def on_terminal(columns: int, files: Sequence[int]) -> str:
    """What a terminal shows of one turn, where these outputs go to files."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover
        termios.tcsetwinsize(0, (24, columns))
        for descriptor in files:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        os.execv(sys.executable, [sys.executable, "-c", SHOW_ONE_TURN])
    found = b""
    with contextlib.suppress(OSError):  # the terminal is closed with its last process
        while piece := os.read(terminal, 4096):
            found += piece
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0
    return found.decode()


def test_where_both_outputs_go_to_files_the_last_line_has_the_turns_else_the_title() -> None:
    text = "warmroute: turn 12, hit 87.3%, 0.0123 USD"
    assert on_terminal(100, [1, 2]) == f"\r{text}\x1b[K\r\x1b[K"
    assert on_terminal(20, [1, 2]) == f"\r{text[:19]}\x1b[K\r\x1b[K"
    assert on_terminal(100, [1]) == f"\x1b[22;0t\x1b]0;{text}\x07\x1b[23;0t"


@pytest.mark.parametrize("given", ["--base-url", "--state-dir"])
def test_the_line_for_another_terminal_asks_the_same_proxy_from_any_folder(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = tmp_path / "bin" / "warmroute"
    called.parent.mkdir()
    called.write_text("""#!/bin/sh\nprintf '%s\\n' "$OPENAI_BASE_URL" "$OPENAI_API_KEY" "$@"\n""")
    called.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "my state"
    state.mkdir()
    fleet = running.Running(Path("my state"), [running.Address("east", "http://127.0.0.1:8080", "")], "wr-a", "")
    monkeypatch.setattr(running, "find_named", lambda _: fleet)
    words = ["--base-url", "http://127.0.0.1:8080/v1", "--key", "wr-a"] if given == "--base-url" else []
    with _proxy(parser("run").parse_args(["run", "claude", *words])) as (root, key, watch):
        assert (root, key) == ("http://127.0.0.1:8080", "wr-a")
    environment = {"PATH": f"{called.parent}:{os.environ['PATH']}"}
    if given == "--base-url":
        assert "wr-a" not in watch
        assert subprocess.run(["sh", "-c", watch], env=environment, capture_output=True, check=False).returncode != 0
        environment["WARMROUTE_KEY"] = "wr-a"
    lines = subprocess.run(["sh", "-c", watch], env=environment, text=True, capture_output=True, check=True).stdout
    asked = ["http://127.0.0.1:8080/v1", "wr-a", "usage", "--watch"]
    expected = asked if given == "--base-url" else ["", "", "usage", "--watch", "--state-dir", str(state)]
    assert lines.splitlines() == expected


class Usage:
    """The usage of some turns of which a region's are missing. `fails`: a path -> how the call fails."""

    def __init__(self, turns: int, **fails: ApiError) -> None:
        self.turns = turns
        self.fails = fails

    def ask(self, path: str, _parameters: Any = None) -> dict[str, Any]:
        if (error := self.fails.get(path.rpartition("/")[2])) is not None:
            raise error
        row = {"agent": None, "session": "a" * 16, "settled_at": 0.0, "outcome": "completed", "price_nanousd": 0}
        rows = [{**row, **COUNTS, "id": each, "loss": {"moved": 10}} for each in ("one", "two")]
        if path == "/usage":
            east_only = {
                "regions": {"east": "counted", "west": "no answer"},
                "complete": False,
                "losses": {"moved": 20},
            }
            groups = {"groups": [{}], "groups_left_out": 0, "hit_ratio": 0.5, "saved_nanousd": 0}
            return {**row, **COUNTS, **east_only, **groups, "turns": self.turns}
        if path == "/usage/receipts":
            return {"data": rows}
        return {"usage": {"warmroute": {"id": path, "turn": 1, "session": None, "loss": {"moved": 10}}}}


COUNTS = {"prompt_tokens": 20, "cached_tokens": 10, "completion_tokens": 1}


@pytest.mark.parametrize("turns", [0, 2])
def test_the_report_says_whose_turns_are_missing(turns: int, capsys: pytest.CaptureFixture[str]) -> None:
    show(Usage(turns), 0.0)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    assert "missing:   turns of west (no answer)" in said
    assert "no turn came" not in said


@pytest.mark.parametrize(
    ("path", "status", "kept"),
    [
        ("one", 404, ["prefixes:  20 tokens were computed again", "usage/receipts/two", "1 receipt could not be read"]),
        ("one", 0, ["prefixes:  20 tokens were computed again", "the rest is unknown: gone"]),
        ("receipts", 503, ["the rest is unknown: gone"]),
    ],
)
def test_what_the_report_knows_stays_when_a_later_call_fails(
    path: str, status: int, kept: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    show(Usage(2, **{path: ApiError("gone", status)}), 0.0)  # type: ignore[arg-type]
    said = capsys.readouterr().err
    for line in ("2 turns in 1 session", *kept):
        assert line in said


def test_the_closing_table_is_by_agent_with_the_ideal_beside_the_hit() -> None:
    def row(agent: str | None, cached: int, loss: dict[str, int], **more: Any) -> dict[str, Any]:
        prompt = cached + sum(loss.values())
        found = {"agent": agent, "kind": None, "prompt_tokens": prompt, "cached_tokens": cached, "loss": loss}
        return {**found, "price_nanousd": 1_000_000, "outcome": "completed", **more}

    rows = [
        row(None, 0, {"cold": 1_000}),
        row(None, 500, {"new": 100, "moved": 400}),
        row("explore", 900, {"new": 100}),
        row(None, 100, {"new": 1}, kind="warm"),
        row(None, 0, {}, outcome="credited"),
    ]
    table = by_agent(rows, 80)
    assert max(map(len, table)) <= 80
    cells = {words[0]: words[1:] for line in table if (words := line.split())}
    assert cells["main"] == ["2", "2,000", "500", "25.0%", "45.0%", "0.002"]
    assert cells["explore"] == ["1", "1,000", "900", "90.0%", "90.0%", "0.001"]
