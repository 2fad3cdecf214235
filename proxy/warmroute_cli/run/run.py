"""`warmroute run`: chooses the proxy and the model, starts the program, and reports when it ends.

The proxy is the one at `--base-url`; without the option, one of the fleet that runs in the state directory; if no fleet
runs, one of a new fleet, which runs as long as the program.
"""

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
import uuid
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import Final
from urllib.parse import quote, urlsplit

from warmroute_cli import running, state
from warmroute_cli.api import Api, ApiError
from warmroute_cli.arguments import CannotRun
from warmroute_cli.processes import stopping_on_signals
from warmroute_cli.run import closing, kept_settings, process, title
from warmroute_cli.run.programs import PROGRAMS, Program, any_program
from warmroute_lab.up import started

OWNERS_ONLY: Final = 0o700
KEY_VARIABLE: Final = "WARMROUTE_KEY"
"""The variable from which printed settings take the API key, so that the key is not shown."""


@dataclass(frozen=True, slots=True)
class Target:
    """The proxy's address without a path, its key, and the model. `context`: tokens of the model's context."""

    root: str
    key: str
    model: str
    context: int
    session: str


@dataclass(frozen=True, slots=True)
class Settings:
    """A program's settings with all values filled in. `files`: path -> text."""

    environment: Mapping[str, str]
    cleared: tuple[str, ...]
    files: Mapping[Path, str]
    command: tuple[str, ...]

    def write(self) -> None:
        """Write the files, in folders that only their owner can read. What the program has added to them stays."""
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True, mode=OWNERS_ONLY)
            kept_settings.write(path, text)

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environ.items() if name not in self.cleared} | dict(self.environment)

    def shell(self, hidden: str = "") -> str:
        """The settings as shell lines. `hidden`: a key to replace by the variable `WARMROUTE_KEY`."""
        lines = [f"unset {' '.join(self.cleared)}"] if self.cleared else []
        if hidden:
            lines.append(f': "${{{KEY_VARIABLE}:?put the API key into it, or print it with --show-key}}"')
        for name, value in self.environment.items():
            shown = f'"${KEY_VARIABLE}"' if hidden and value == hidden else shlex.quote(value)
            lines.append(f"export {name}={shown}")
        for path, text in self.files.items():
            lines += [f"mkdir -p {shlex.quote(str(path.parent))}", f"cat >{shlex.quote(str(path))} <<'EOF'"]
            lines += [text.rstrip("\n"), "EOF"]
        return "\n".join([*lines, shlex.join(self.command)])


def settings_of(program: Program, target: Target, folder: Path, git: Sequence[str]) -> Settings:
    """The settings of a program. `git`: the files with the user's Git settings. Several are included in one file."""
    several = {folder / "gitconfig": "".join(f'[include]\n\tpath = "{_escaped(path)}"\n' for path in git)}
    needs_file = len(git) > 1 and "$git" in program.environment.values()
    values = {
        "root": target.root,
        "base_url": f"{target.root}/v1",
        "key": target.key,
        "model": target.model,
        "context": str(target.context),
        "output": str(min(MAX_ANSWER_TOKENS, target.context // 4)),
        "session": target.session,
        "folder": str(folder),
        "git": git[0] if len(git) == 1 else str(folder / "gitconfig"),
    }
    escaped = {name: _escaped(value) for name, value in values.items()}
    return Settings(
        environment={name: Template(text).substitute(values) for name, text in program.environment.items()},
        cleared=program.cleared,
        files={
            **{folder / name: Template(text).substitute(escaped) for name, text in program.files.items()},
            **(several if needs_file else {}),
        },
        command=(program.command, *(Template(text).substitute(values) for text in program.arguments)),
    )


def _escaped(text: str) -> str:
    """Escape a text for double quotes in JSON, TOML and YAML. DEL is escaped for TOML."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


FOLDER = "run"
WATCH = "warmroute usage --watch"
DEFAULT_CONTEXT_TOKENS = 200_000
MAX_ANSWER_TOKENS: Final = 32_000
SCRIPT_BYTES = 4_096
"""How much of a command's file is read: enough for a script that pip has written."""

AS_ROOT = "warmroute: as root, claude refuses --dangerously-skip-permissions: in a container set IS_SANDBOX=1"


def run(arguments: Namespace) -> int:
    """Run the program, and return its exit status. Raises: CannotRun and ApiError, if it was not started."""
    program = _program(arguments)
    if arguments.print:
        root, key = _address(arguments)
        print(_settings(arguments, program, root, key).shell("" if arguments.show_key else key))
        return 0
    _check_installed(arguments.program, program)
    with _proxy(arguments) as (root, key, watch):
        return _run(arguments, program, root, key, watch)


def _program(arguments: Namespace) -> Program:
    """The settings of the named program, or of the program that is the first word after `--`."""
    if arguments.program is not None:
        return PROGRAMS[arguments.program]
    if not arguments.passed:
        raise CannotRun(f"name a program: {', '.join(PROGRAMS)}; or any other one behind --, with its arguments")
    command, *arguments.passed = arguments.passed
    arguments.program = Path(command).name
    return any_program(command)


def _run(arguments: Namespace, program: Program, root: str, key: str, watch: str) -> int:
    settings = _settings(arguments, program, root, key)
    try:
        state.make(arguments.state_dir)
        _folder(arguments).mkdir(parents=True, exist_ok=True, mode=OWNERS_ONLY)
        settings.write()
    except OSError as error:
        raise CannotRun(f"{error.filename} cannot be written: {error.strerror}") from None
    print(f"warmroute: {arguments.program} asks {root}", file=sys.stderr, flush=True)
    if arguments.program == "claude" and os.geteuid() == 0 and not os.environ.get("IS_SANDBOX"):
        print(AS_ROOT, file=sys.stderr, flush=True)
    print(f"warmroute: beside it, in another terminal: {watch}", file=sys.stderr, flush=True)
    began_s = time.time()
    try:
        with title.shown(Api(f"{root}/v1", key), began_s):
            status = process.run(settings.command, settings.variables(os.environ))
    except OSError as error:
        raise CannotRun(f"{program.command} cannot be started: {error.strerror}") from None
    closing.show(Api(f"{root}/v1", key), began_s)
    return status


def _check_installed(name: str, program: Program) -> None:
    found = shutil.which(program.command)
    if found is None:
        raise CannotRun(f"{name} is not installed: there is no command {program.command!r}. {program.install}")
    if program.older and f"from {program.older}" in _script(found):
        raise CannotRun(f"{found} is an older program, {program.older}, which {name} has replaced. {program.install}")


def _script(path: str) -> str:
    """The beginning of a command's file; empty if it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            return file.read(SCRIPT_BYTES).decode(errors="replace")
    except OSError:
        return ""


@contextlib.contextmanager
def _proxy(arguments: Namespace) -> Iterator[tuple[str, str, str]]:
    """Find or start a proxy. Yields its address, without a path, its key, and a shell line that watches its usage."""
    if arguments.base_url is not None:
        root, key = _address(arguments)
        hidden = f'"${{{KEY_VARIABLE}:?put the API key into it}}"'
        yield root, key, f"OPENAI_BASE_URL={shlex.quote(f'{root}/v1')} OPENAI_API_KEY={hidden} {WATCH}"
        return
    if (found := running.find_named(arguments.state_dir)) is not None:
        with running.used(found.state_dir):
            yield found.addresses[0].url, found.api_key, _watching(found.state_dir)
        return
    print(f"starting a fleet of embedded engines in {arguments.state_dir}", file=sys.stderr, flush=True)
    with stopping_on_signals(), started(arguments.state_dir, arguments) as fleet:
        yield next(iter(fleet.proxies.values())).url, fleet.api_key, _watching(arguments.state_dir)
        running.wait_until_unused(arguments.state_dir, _explain_wait)


def _watching(state_dir: Path) -> str:
    return f"{WATCH}{running.option(state_dir)}"


def _explain_wait() -> None:
    print("another `warmroute run` uses this fleet: it stays until that ends, or Ctrl-C", file=sys.stderr, flush=True)


def _address(arguments: Namespace) -> tuple[str, str]:
    if arguments.base_url is not None:
        key = arguments.key or os.environ.get("OPENAI_API_KEY")
        if not key:
            raise CannotRun("--base-url needs a key: give --key, or put it into OPENAI_API_KEY")
        return _root(arguments.base_url), key
    fleet = running.find(arguments.state_dir)
    if fleet is None:
        raise CannotRun(f"no fleet runs in {arguments.state_dir}: give --base-url and --key, or start `warmroute up`")
    return fleet.addresses[0].url, fleet.api_key


def _root(base_url: str) -> str:
    parts = urlsplit(base_url)
    path = parts.path.rstrip("/")
    if parts.scheme not in ("http", "https") or not parts.hostname or path not in ("", "/v1") or parts.query:
        raise CannotRun(f"--base-url {base_url!r} is not an address such as http://host:8080/v1")
    return f"{parts.scheme}://{parts.netloc}"


def _settings(arguments: Namespace, program: Program, root: str, key: str) -> Settings:
    model, context = _model(Api(f"{root}/v1", key), arguments.model, program.model)
    session = f"{arguments.program}-{uuid.uuid4().hex[:12]}"
    target = Target(root, key, model, context, session)
    found = settings_of(program, target, _folder(arguments), git_settings(os.environ, Path.home()))
    return replace(found, command=(*found.command, *arguments.passed))


def git_settings(environ: Mapping[str, str], home: Path) -> list[str]:
    """The files with the user's Git settings, in Git's order, for programs that get another home."""
    if given := environ.get("GIT_CONFIG_GLOBAL"):
        return [given]
    plain, other = home / ".gitconfig", Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "git" / "config"
    return [str(path) for path in (other, plain) if path.exists()] or [str(plain)]


def _folder(arguments: Namespace) -> Path:
    """The folder for the program's files. It stays after the program, so that sessions can be resumed."""
    found: Path = (arguments.state_dir / FOLDER / arguments.program).absolute()
    return found


def _model(api: Api, chosen: str | None, made_for: str) -> tuple[str, int]:
    """The model and its context in tokens: the chosen model, else the program's own, else the first that is served."""
    if chosen is not None:
        return chosen, _context(api.ask(f"/models/{quote(chosen)}"))
    if made_for:
        try:
            return made_for, _context(api.ask(f"/models/{quote(made_for)}"))
        except ApiError as error:
            if error.status != 404:
                raise
    served = api.ask("/models")["data"]
    if not served:
        raise CannotRun("the proxy serves no model to this key")
    return str(served[0]["id"]), _context(served[0])


def _context(model: dict[str, object]) -> int:
    found = model.get("max_model_len")
    return found if isinstance(found, int) else DEFAULT_CONTEXT_TOKENS
