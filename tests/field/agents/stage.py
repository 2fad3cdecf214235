"""The fleet of all programs, with relays in front of its engines, and the start of a program there."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx
from tests.field.programs.pages import AIDER, AT, LITELLM, NODE, QUIET
from tests.machine import seconds
from tests.subjects.copies import CopiedFleet

from warmroute_cli.run.programs import PROGRAMS
from warmroute_cli.state import admin_key
from warmroute_lab.fleet import CONTEXT_TOKENS, FleetOptions
from warmroute_proxy.server.ledger.ledger import read_rows

from . import network
from .shapes import ShapeTaps
from .taps import Taps

SPEED: Final = 25
START_TIMEOUT_S: Final = 60.0
ROWS_TIMEOUT_S: Final = 10.0
AGENTS: Final = AT / ".venv-agents"
"""An environment for each framework, and for each program of Python that needs one of its own."""

BINS: Final = (
    NODE / "node_modules" / ".bin",
    AT / LITELLM / "bin",
    AT / AIDER / "bin",
    *(AGENTS / name / "bin" for name in ("mistral-vibe", "gptme")),
)
SMALL: Final = "m"
"""A model whose context is so small here that programs compact."""

SMALL_TOKENS: Final = 60_000


class TappedFleet(CopiedFleet):
    """The fleet of `warmroute up`, with a relay of this process in front of each engine, and one more model."""

    def __init__(self, state_dir: Path, run_dir: Path, options: FleetOptions) -> None:
        super().__init__(state_dir, run_dir, options)
        self.taps = Taps()
        self.shapes = ShapeTaps()
        self._relayed = False

    def _config(self, region: str, relay_urls: dict[str, str]) -> str:
        if not self._relayed:
            self.engines = [replace(engine, url=self.taps.before(engine.url)) for engine in self.engines]
            self._relayed = True
        before, model, after = super()._config(region, relay_urls).partition(f'name = "{SMALL}"')
        tokens = f"context_tokens = {CONTEXT_TOKENS}"
        return before + model + after.replace(tokens, f"context_tokens = {SMALL_TOKENS}", 1)

    def stop(self) -> None:
        super().stop()
        self.taps.stop()
        self.shapes.stop()

    def rows(self) -> list[dict[str, Any]]:
        """All rows of both regions, by the time when their requests came."""
        found: list[dict[str, Any]] = []
        for proxy in self.proxies.values():
            path = proxy.state_dir / "ledger.sqlite"
            found += read_rows(path) if path.exists() else []
        for row in found:
            row.update({name: json.loads(row[name]) for name in ("rids", "usage") if row[name]})
        return sorted(found, key=lambda row: row["opened_at"])


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a program. `arguments` are its own; `region`: of the proxy that it is pointed at.

    `files`: what lies in the project then.
    """

    arguments: tuple[str, ...]
    stdin: str = ""
    region: str = "east"
    model: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


class Stage:
    """Where programs run. A program has one folder for its project, and one for what `warmroute run` keeps."""

    def __init__(self, folder: Path, policy: str = "cost") -> None:
        self.folder = folder
        options = FleetOptions(speed=SPEED, obey_prompts=True, policy="cost" if policy == "cost" else "round_robin")
        self.fleet = TappedFleet(folder, folder / "up", options)

    def project(self, name: str) -> Path:
        """A repository with one file, and a home beside it."""
        project = self.folder / name / "project"
        if not project.exists():
            project.mkdir(parents=True)
            (self.folder / name / "home").mkdir()
            (project / "a.txt").write_text("hello\n")
            (project / "big.txt").write_text(
                "".join(f"line {number} of a file that is long enough\n" for number in range(2200))
            )
            git = ["git", "-c", "user.name=n", "-c", "user.email=n@localhost"]
            for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
                subprocess.run([*git, *words], cwd=project, check=True)
        return project

    def start(self, program: str, start: Start) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        project = self.project(program)
        for name, text in start.files.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)
        known = [program] if program in PROGRAMS else []  # any other is named by its arguments
        command = [sys.executable, "-m", "warmroute_cli.main", "run", *known]
        command += [
            "--base-url",
            self.fleet.shapes.before(self.fleet.proxies[start.region].base_url) + "/v1",
            "--state-dir",
            str(project.parent / "kept"),
        ]
        command += ["--model", start.model] if start.model else []
        return subprocess.run(
            [*command, "--", *start.arguments], cwd=project, env=self.environment(program), input=start.stdin,
            capture_output=True, text=True, timeout=seconds(START_TIMEOUT_S), check=False,
        )  # fmt: skip

    def environment(self, program: str) -> dict[str, str]:
        """What a program is started with."""
        kept = {name: os.environ[name] for name in ("LANG", "PYENV_ROOT", "PYTHONPYCACHEPREFIX") if name in os.environ}
        names = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@localhost"}
        names |= {"GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@localhost"}
        path = ":".join([*map(str, BINS), os.environ["PATH"]])
        home = str(self.project(program).parent / "home")
        own = {"PATH": path, "HOME": home, "OPENAI_API_KEY": self.fleet.api_key, "TERM": "dumb"}
        return {**kept, **names, **QUIET, **own, **network.variables()}

    def opened_sockets(self) -> int:
        """How many WebSockets programs have opened in the first region so far."""
        headers = {"authorization": f"Bearer {admin_key(self.fleet.state_dir)}"}
        metrics = httpx.get(f"{self.fleet.proxies['east'].admin_url}/metrics", headers=headers).text
        return sum(map(int, re.findall(r'^warmroute_requests_total\{.*status="101"\} (\d+)', metrics, re.MULTILINE)))

    def rows_of(self, rids: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of these requests, once all are in the ledgers."""
        deadline_s = time.monotonic() + seconds(ROWS_TIMEOUT_S)
        while True:
            rows = [row for row in self.fleet.rows() if set(row["rids"]) & set(rids)]
            if {rid for row in rows for rid in row["rids"]} >= set(rids) or time.monotonic() > deadline_s:
                return rows
            time.sleep(0.05)
