"""Agents made with Python frameworks, through the proxy by its address alone: each turn is as warm as it can be.

A framework runs in an environment of its own, `.venv-agents/NAME`, which `scripts/integrations agents` makes.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.field.programs.pages import QUIET, ROOT
from tests.machine import seconds

from warmroute.contract import receipt as receipts

from . import network, page
from .cases import CANARY, call, order
from .lineages import Turn, hit, ideal_hit, losses
from .stage import Stage

pytestmark = pytest.mark.timeout(seconds(240))
ENVIRONMENTS: Final = ROOT / ".venv-agents"
PINS: Final = ROOT / "scripts" / "integrations_pins" / "agents"
AGENTS: Final = Path(__file__).parent / "frameworks"
STEPS: Final = 8
HEAD: Final = (
    "framework",
    "version",
    "dialect",
    "signal",
    "turns",
    "sessions",
    "hit",
    "ideal",
    "not cached: tokens by class",
)
_TABLE: Final = re.compile(r"(?<=<!-- agents -->\n).*?(?=<!-- end of agents -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Framework:
    """`last`: the step with which its agent ends."""

    title: str
    package: str
    script: str
    last: str = "answer All is done."


FRAMEWORKS: Final = {
    "pydantic-ai": Framework("Pydantic AI", "pydantic-ai-slim", "pydantic_ai_agent.py"),
    "smolagents": Framework(
        "smolagents", "smolagents", "smolagents_agent.py", call("final_answer", answer="All is done.")
    ),
    "openai-agents": Framework("OpenAI Agents SDK", "openai-agents", "openai_agents_agent.py"),
    "deepagents": Framework("deepagents", "deepagents", "deepagents_agent.py"),
    "langchain": Framework("LangChain", "langchain", "langchain_agent.py"),
    "crewai": Framework("CrewAI", "crewai", "crewai_agent.py"),
    "agno": Framework("Agno", "agno", "agno_agent.py"),
    "strands": Framework("Strands Agents", "strands-agents", "strands_agent.py"),
}


def pinned(framework: Framework) -> str:
    """The version that `scripts/integrations agents` installs."""
    pins = "\n".join(path.read_text() for path in PINS.glob("*.txt"))
    found: str = re.findall(rf"^{re.escape(framework.package)}(?:\[.*\])?==(.*)$", pins, re.MULTILINE)[0]
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """What came of it."""

    framework: Framework
    done: "subprocess.CompletedProcess[str]"
    turns: Sequence[Turn]

    def cells(self) -> list[str]:
        """Its row of the page."""
        lost = sorted(losses(self.turns).items(), key=lambda loss: -loss[1])
        routes = {turn.row["route"] for turn in self.turns}
        return [
            self.framework.title,
            pinned(self.framework),
            "chat" if routes == {"/v1/chat/completions"} else ", ".join(sorted(routes)),
            "none",
            str(len(self.turns)),
            str(len({turn.row["session"] for turn in self.turns})),
            f"{hit(self.turns):.1%}",
            f"{ideal_hit(self.turns)[1]:.1%}",
            ", ".join(f"{name} {tokens:,}" for name, tokens in lost),
        ]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("agents"))
    with made.fleet:
        yield made


@pytest.fixture(scope="module", params=list(FRAMEWORKS))
def run(request: pytest.FixtureRequest, stage: Stage) -> Run:
    name: str = request.param
    framework = FRAMEWORKS[name]
    python = ENVIRONMENTS / name / "bin" / "python"
    assert python.exists(), "scripts/integrations agents makes it"
    before = set(stage.fleet.taps.chats)
    steps = [call("note", text=f"{CANARY} {number}") for number in range(STEPS)]
    environment = {
        **QUIET, **network.variables(), "PATH": os.environ["PATH"], "HOME": str(stage.folder),
        "OPENAI_BASE_URL": stage.fleet.proxies["east"].base_url, "OPENAI_API_KEY": stage.fleet.api_key,
        "OPENAI_MODEL": "kimi-k2.5",
    }  # fmt: skip
    command = [str(python), str(AGENTS / framework.script), order(*steps, framework.last)]
    done = subprocess.run(
        command, cwd=stage.folder, env=environment, capture_output=True, text=True, timeout=seconds(200), check=False
    )
    rids = [rid for rid in stage.fleet.taps.chats if rid not in before]
    rows = stage.rows_of(rids)
    return Run(framework, done, [Turn(row, stage.fleet.taps.chats[row["rids"][-1]].body) for row in rows])


def test_it_ends_well_and_has_called_its_tool(run: Run) -> None:
    assert run.done.returncode == 0, run.done.stderr[-3000:]
    assert len(run.turns) >= STEPS, run.done.stderr[-3000:]
    assert "All is done." in run.done.stdout


def test_each_turn_has_a_sound_receipt(run: Run) -> None:
    for turn in run.turns:
        assert turn.row["outcome"] == "completed"
        assert receipts.check(turn.row["usage"]) == []


def test_its_turns_are_as_warm_as_can_be(run: Run) -> None:
    assert hit(run.turns) >= ideal_hit(run.turns)[1] - 0.01


def test_the_page_has_its_row(run: Run) -> None:
    """`WARMROUTE_UPDATE_DOCS=1 scripts/integrations agents` writes it."""
    if os.environ.get("WARMROUTE_UPDATE_DOCS") == "1":
        _write(run.cells())
    assert _written()[run.framework.title][:6] == run.cells()[:6]


def _written() -> dict[str, list[str]]:
    found = _TABLE.search(page.PAGE.read_text())
    assert found is not None
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()]
    assert tuple(rows[0]) == HEAD
    return {row[0]: row for row in rows[2:]}


def _write(cells: list[str]) -> None:
    rows = {**_written(), cells[0]: cells}
    titles = [framework.title for framework in FRAMEWORKS.values()]
    lines = [
        HEAD,
        ["---", "---", "---", "---", "--:", "--:", "--:", "--:", "---"],
        *(rows[each] for each in titles if each in rows),
    ]
    head, rule, *cells_of = (" | ".join(line) for line in lines)
    text = "".join([f"| {head} |\n", f"|{rule.replace(' ', '')}|\n", *(f"| {line} |\n" for line in cells_of)])
    page.PAGE.write_text(_TABLE.sub(lambda _: text, page.PAGE.read_text()))
