"""The command line: what it says, and with which exit code."""

import asyncio
import hashlib
import os
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, cast

import pytest
from tests.machine import seconds

from warmroute import __version__
from warmroute_backend.sglang.installation import CHECKOUT_VARIABLE
from warmroute_cli import directory
from warmroute_cli.installed import install_command
from warmroute_cli.main import COMMANDS, NEEDED, main, parser
from warmroute_cli.run.run_options import split
from warmroute_proxy import BUILD

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[3]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"warmroute {__version__} ({BUILD})\n"


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    listed = capsys.readouterr().err
    assert [each.name for group in COMMANDS.values() for each in group if f"\n  {each.name} " not in listed] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["unknown"], "error:"),
        (["demo", "--harness", "x"], "error:"),
        (["demo", "--sessions", "0"], "error:"),
        (["demo", "--speed", "-1"], "error:"),
        (["up", "--speed", "fast"], "argument --speed: 'fast' is not a number above 0"),
        (["demo", "--sessions", "1.5"], "argument --sessions: '1.5' is not a whole number above 0"),
        (["proxy", "--config", "x", "--processes", "0"], "argument --processes: '0' is not a whole number above 0"),
        (["proxy"], "the following arguments are required: --config"),
        (["proxy", "--schema", "--config", "x"], "argument --config: not allowed with argument --schema"),
        (["proxy", "--schema", "--check"], "--schema goes with no other option"),
        (["proxy", "--schema", "--check", "--probe"], "--schema goes with no other option"),
        (["proxy", "--schema", "--processes", "2"], "--schema goes with no other option"),
        (["replay", "x", "--workers", "4:"], "argument --workers: '' is not a whole number from 1 to 1024"),
        (["replay", "x", "--kv-tokens", "1M:1:1:1"], "'1M:1:1:1' is not DEVICE[:HOST[:STORE]] in tokens, like 3M:10M"),
        (["replay", "x", "--change", "9:restart"], "'9:restart' is not SECOND:KIND:WORKER, like 600:restart:3"),
        (["replay", "x", "--naming-share", "2"], "argument --naming-share: '2' is not a number from 0 to 1"),
        (["demo", "--tight", "--sessions", "4"], "--sessions has no effect with --tight"),
        (["demo", "--engine", "sglang", "--speed", "5"], "--speed has no effect with --engine sglang"),
        (["replay", "x", "--seed", "-1"], "argument --seed: '-1' is not a whole number"),
        (["replay", "x", "--rtt-ms", "nan"], "argument --rtt-ms: 'nan' is not a number above 0"),
    ],
)
def test_wrong_usage_is_told_what_is_wanted_with_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
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


@pytest.mark.parametrize("words", [["--tight"], ["--engine", "sglang"], []])
def test_figures_that_cannot_be_written_end_a_demo_before_it_starts(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No state directory was made."""
    path, state_dir = tmp_path / "absent" / "figures", tmp_path / "state"
    assert main(["demo", *words, "--json", str(path), "--state-dir", str(state_dir)]) == 2
    assert capsys.readouterr().err == f"warmroute: {path} cannot be written: No such file or directory\n"
    assert not state_dir.exists()


@pytest.mark.parametrize("words", [["--tight"], []])
def test_a_demo_on_sglang_says_what_to_do_where_sglang_is_not_installed(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHECKOUT_VARIABLE, str(tmp_path))
    assert main(["demo", *words, "--engine", "sglang", "--state-dir", str(tmp_path / "state")]) == 2
    assert "run `scripts/sglang install`" in capsys.readouterr().err


def test_the_command_that_follows_a_new_tenant_can_be_copied(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Tenants:
        def __init__(self, *_: object) -> None: ...
        async def add(self, *_: object) -> None: ...

    monkeypatch.setattr(directory, "TenantAdmin", Tenants)
    given = parser("tenants").parse_args(["tenants", "add", "team-a", "--config", "my proxy.toml"])
    asyncio.run(directory._add(given, cast("Any", None), cast("Any", None)))
    warmroute, *words = shlex.split(capsys.readouterr().out.split("`")[1])
    made = parser("keys").parse_args(words)
    assert (warmroute, made.action, made.tenant, made.config) == ("warmroute", "make", "team-a", given.config)


def test_only_the_chosen_subcommand_is_imported() -> None:
    code = "import sys, warmroute_cli.main as m; m.parser(); print({'openai', 'rich', 'uvloop'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


BARE = """
import sys
for name in {absent}:
    sys.modules[name] = None
from warmroute_cli.main import main
sys.exit(main({words}))
"""
WITHOUT_EXTRAS = [
    ["demo"], ["up"], ["usage"], ["receipts", "list"], ["receipts", "show", "wr-1"], ["proxy", "--config", "x"],
    ["engines", "list"], ["key"], ["replay", "--recorded"],
]  # fmt: skip


def bare(words: list[str], extras: list[str]) -> subprocess.CompletedProcess[str]:
    """The command where nothing of these extras is installed."""
    absent = [name for extra in extras for name in NEEDED[extra]]
    code = BARE.format(absent=absent, words=words)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=seconds(30)
    )


@pytest.mark.parametrize("words", WITHOUT_EXTRAS, ids=" ".join)
def test_without_its_extra_a_subcommand_says_in_a_line_what_to_install(words: list[str]) -> None:
    done = bare(words, ["proxy", "replay"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("warmroute: cryptography, fastapi, ")
    assert done.stderr.count("\n") == 1
    assert ("proxy,replay]" if words[0] == "replay" else "proxy]") in done.stderr


def test_only_replay_needs_the_extra_replay() -> None:
    done = bare(["replay", "--recorded"], ["replay"])
    assert done.returncode == 2
    assert done.stderr.startswith("warmroute: numpy not installed: ")
    assert bare(["key"], ["replay"]).returncode == 0


MODULES = {"pyzmq": "zmq", "grpcio": "grpc", "xds-protos": "envoy"}
"""Of packages that are named otherwise."""


def test_every_module_of_the_extras_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in NEEDED.items():
        packages = {line.split(">=")[0] for line in project[extra]}
        assert {MODULES.get(package, package.replace("-", "_")) for package in packages} == set(modules)


class FakeCopy(Distribution):
    """An installed copy, with the record that pip leaves of where it came from."""

    def __init__(self, origin: str | None) -> None:
        self._origin = origin

    def read_text(self, filename: str) -> str | None:
        return self._origin if filename == "direct_url.json" else None

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return Path(path)


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "install 'warmroute[replay]'"),
        ('{"url": "file:///srv/my%20warm", "dir_info": {"editable": true}}', "install -e '/srv/my warm[replay]'"),
        ('{"url": "file:///srv/warm", "dir_info": {}}', "install '/srv/warm[replay]'"),
        (
            '{"url": "https://example.org/w.whl", "archive_info": {}}',
            "install 'warmroute[replay] @ https://example.org/w.whl'",
        ),
    ],
)
def test_a_hint_is_the_command_for_this_copy(origin: str | None, command: str) -> None:
    assert install_command("replay", FakeCopy(origin)) == f"{sys.executable} -m pip {command}"


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["up", "--prot", "5"], "usage: warmroute up "),
        (["receipts", "list", "--lmit", "5"], "usage: warmroute receipts list "),
    ],
)
def test_an_unknown_option_shows_the_usage_of_its_own_command(
    words: list[str], usage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(usage)
    assert f"unrecognized arguments: {words[-2]} 5" in said


EXAMPLES = [command.example for group in COMMANDS.values() for command in group]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_example_of_each_subcommand_is_one(example: str) -> None:
    words, _ = split(shlex.split(example)[1:])
    assert parser().parse_args(words).command.example == example


def test_help_names_every_subcommand_under_what_it_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"{purpose}:\n" in shown for purpose in COMMANDS)
    words = " ".join(shown.split())
    assert [example for example in EXAMPLES if example not in words] == []


def test_the_target_of_each_subcommand_is_there() -> None:
    for command in (each for group in COMMANDS.values() for each in group):
        module, _, function = command.target.partition(":")
        name = module if module.startswith(("warmroute.", "warmroute_lab.")) else f"warmroute_cli.{module}"
        assert callable(getattr(import_module(name), function))


@pytest.mark.parametrize("words", ["ask /metrics", "reload", "engines list", "usage", "top --once"])
def test_a_config_that_is_missing_is_told_in_a_sentence(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--config", str(tmp_path / "none.toml")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"warmroute {words.split(maxsplit=1)[0]}: ")
    assert "none.toml: 1 problem\ncannot be read" in error
