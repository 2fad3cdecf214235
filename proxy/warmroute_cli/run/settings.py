"""Variables, files and arguments of one start of a program, from its row of the table and a proxy."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from warmroute_cli.run.programs import Program

OWNERS_ONLY: Final = 0o700
KEY_VARIABLE: Final = "WARMROUTE_KEY"
"""Where printed settings take the API key from, which they do not show."""


@dataclass(frozen=True, slots=True)
class Target:
    """Which proxy, by its address without a path, and what to ask it for. `context`: tokens of the model's context."""

    root: str
    key: str
    model: str
    context: int
    session: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What is filled in. `files`: path -> text."""

    environment: Mapping[str, str]
    cleared: tuple[str, ...]
    files: Mapping[Path, str]
    command: tuple[str, ...]

    def write(self) -> None:
        """Write the files, in folders that only their owner can read."""
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True, mode=OWNERS_ONLY)
            path.write_text(text, encoding="utf-8")

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in environ.items() if name not in self.cleared} | dict(self.environment)

    def shell(self, hidden: str = "") -> str:
        """The same as lines of a shell. `hidden`: a key that is not to be shown, but taken from `WARMROUTE_KEY`."""
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


def settings_of(program: Program, target: Target, folder: Path, home: str) -> Settings:
    values = {
        "root": target.root,
        "base_url": f"{target.root}/v1",
        "key": target.key,
        "model": target.model,
        "context": str(target.context),
        "session": target.session,
        "folder": str(folder),
        "home": home,
    }
    escaped = {name: _escaped(value) for name, value in values.items()}
    return Settings(
        environment={name: Template(text).substitute(values) for name, text in program.environment.items()},
        cleared=program.cleared,
        files={folder / name: Template(text).substitute(escaped) for name, text in program.files.items()},
        command=(program.command, *(Template(text).substitute(values) for text in program.arguments)),
    )


def _escaped(text: str) -> str:
    """A text inside double quotes of JSON, TOML and YAML, of which TOML takes no bare DEL."""
    return json.dumps(text, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")
