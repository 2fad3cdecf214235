"""The steps of `scripts/test`: what each runs, and which steps end before it starts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PYTHON: Final = ".venv/bin/python"
WAITING: Final = ("tests/integration", "tests/docs")
"""Folders whose tests wait for processes half of the time: several run side by side."""

COMPUTING: Final = ("tests/unit", "tests/property", "tests/simulation", "tests/field/fuzz")
"""Folders whose tests compute: one process, since each more would import and collect everything once more."""

SGLANG_FOLDERS: Final = ("tests/contract", "tests/integration/sglang")
FULL_FOLDERS: Final = ("bench", "tests/stores")
"""Folders whose tests are all for `scripts/test full`, beside the marked ones of others."""

ON_OPENAI_2: Final = "tests/integration/sdk/test_docs.py"
"""Run by scripts/openai2; on the newest openai, tests/docs runs the same examples against a fleet."""

HOSTILE: Final = "tests/hostile"
RELEASE: Final = "tests/release"
COMPILED: Final = "build/compiled"
PAGE: Final = "tests/page"
GATEWAY: Final = "tests/gateway"
REGIONS: Final = "tests/field/regions"
APART: Final = (
    *SGLANG_FOLDERS,
    PAGE,
    GATEWAY,
    REGIONS,
    "tests/field/chaos",
    "tests/compiled",
    "tests/field/agents",
    "tests/field/programs",
)
"""Folders whose tests need a set-up of their own: a step of `scripts/test full` runs each."""

BY_FOLDER: Final = "by folder"
"""The tier of a step that runs the tests of many folders: each folder is a tier."""


@dataclass(frozen=True)
class Step:
    """One command of a run.

    `after` names steps that end before this one starts. `compiled`: on what the compiled wheel installs, which
    `scripts/compiled-tests install` has put into build/compiled. `limit_s` ends a step that hangs: four times what the
    longest step takes on two cores beside others.
    """

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    tier: str = ""
    compiled: bool = False
    limit_s: float = 3900.0

    @property
    def shown_as(self) -> str:
        """The tier that the table shows the step in."""
        return self.tier or self.name


def pytest(*arguments: str, processes: int = 0) -> tuple[str, ...]:
    """A command line of pytest; a module's tests stay in one process, which shares the servers of its fixtures."""
    side_by_side = ("-n", str(processes), "--dist", "loadscope", "--no-loadscope-reorder") if processes else ()
    return (PYTHON, "-m", "pytest", *side_by_side, *arguments)


def ignored(folders: Sequence[str]) -> tuple[str, ...]:
    """Options that leave folders out."""
    return tuple(f"--ignore={folder}" for folder in folders)


def containing(word: str, *folders: str) -> tuple[str, ...]:
    """The files of tests in which a word stands: to collect the others, only to leave them out, takes longer."""
    found = (path for folder in folders for path in sorted(Path(folder).rglob("test_*.py")) if word in path.read_text())
    return tuple(map(str, found))


MAIN_ONLY: Final = ("-m", "not full", *ignored(APART))
"""Options that leave out what is no test of the main tier."""


def main_tests(arguments: Sequence[str] = (), *, searched: bool = True) -> tuple[Step, ...]:
    """The tests of the main tier. Where arguments name paths, all tests of those. `searched`: properties are, too."""
    side_by_side = max(4, os.cpu_count() or 1)
    if any(Path(each.partition("::")[0]).exists() for each in arguments):
        return (Step("tests", pytest(*arguments, processes=side_by_side), tier=BY_FOLDER),)
    main = (*MAIN_ONLY, *arguments)
    computing = COMPUTING if searched else (*COMPUTING, "-m", "not full and not hypothesis")
    return (
        Step("tests that wait", pytest(*main, *WAITING, processes=side_by_side), tier=BY_FOLDER),
        Step("tests that compute", pytest(*main, *computing), tier=BY_FOLDER),
    )


def checks() -> tuple[Step, ...]:
    """What reads the sources and runs nothing of them."""
    commands: dict[str, tuple[str, ...]] = {
        "ruff check": (".venv/bin/ruff", "check"),
        "ruff format": (".venv/bin/ruff", "format", "--check"),
        "import-linter": (".venv/bin/lint-imports",),
        "structure": (PYTHON, "scripts/check_structure.py"),
        "vocabulary": (PYTHON, "scripts/vocabulary.py"),
        "state diagrams": (PYTHON, "scripts/state_diagrams.py", "--check"),
        "mypy": (".venv/bin/mypy",),
    }
    steps: list[Step] = []
    for name, command in commands.items():
        steps.append(Step(name, command, after=(steps[-1].name,) if steps else (), tier="checks"))
    return tuple(steps)


def main_steps(arguments: Sequence[str] = ()) -> tuple[Step, ...]:
    """`scripts/test`: what a contributor runs before a commit."""
    return (*checks(), *main_tests(arguments))


def full_steps() -> tuple[Step, ...]:
    """`scripts/test full`: set-ups beside the main tier, then three lines, since each leaves cores idle at times."""
    main = (*checks(), *main_tests(searched=False))
    done = tuple(step.name for step in main)
    wheel, stores, programs = "compiled wheel", "set-up of stores", "set-up of programs"
    gateway = "set-up of a gateway"
    set_ups = (
        Step("set-up of SGLang", ("scripts/sglang", "install")),
        Step(stores, ("scripts/stores", "install")),
        Step(programs, ("scripts/integrations", "install"), after=(stores,)),
        Step("set-up of the page", ("scripts/page", "install"), after=(programs,)),
        Step("set-up of docs", ("scripts/docs", "install"), after=(programs,)),
        Step(gateway, ("scripts/gateway", "install"), after=("set-up of docs",)),
        Step(wheel, ("scripts/compiled-tests", "install")),
        Step("set-up of deploy", ("scripts/deploy", "install"), after=(stores, wheel)),
    )
    marked = containing("mark.full", *WAITING, *COMPUTING)
    more = pytest("-m", "full", *FULL_FOLDERS, *marked, *ignored((*SGLANG_FOLDERS, ON_OPENAI_2)), processes=3)
    properties = containing("hypothesis", *COMPUTING)
    search = pytest("-m", "hypothesis", "--hypothesis-profile", "full", *properties, processes=2)
    of_the_proxy = (
        # Memory that grows is seen in minutes of steady requests. They need half a core, so the rest goes on beside.
        Step("soak", (PYTHON, "-m", "bench", "soak", "--minutes", "6"), after=(*done, wheel), compiled=True),
        Step("full tests", more, after=(*done, stores)),
        Step("hostile", pytest(HOSTILE, processes=3), after=("full tests", wheel), compiled=True),
        Step("compiled", ("scripts/compiled-tests",), after=("hostile",), compiled=True),
        Step("chaos", pytest("tests/field/chaos"), after=("compiled",), compiled=True),
        Step("regions", pytest(REGIONS), after=("chaos", stores)),
        Step("release", pytest(RELEASE), after=("regions", wheel)),
        Step("deploy", ("scripts/deploy",), after=("release", "set-up of deploy")),
        Step("vulnerabilities", (PYTHON, "scripts/audit.py"), after=("deploy",)),
        Step("costs of requests", ("scripts/costs",), after=("vulnerabilities",)),
    )
    of_others = (
        Step("search of properties", search, after=done),
        Step("SDK on openai 2", ("scripts/openai2",), after=("search of properties",)),
        Step("programs and frameworks", ("scripts/integrations",), after=("SDK on openai 2", programs)),
        Step("coding agents", ("scripts/integrations", "harness"), after=("programs and frameworks",)),
        Step("page", ("scripts/page",), after=("coding agents", "set-up of the page", "set-up of docs")),
        Step("docs", ("scripts/docs",), after=("page",)),
        Step("gateway", ("scripts/gateway",), after=("docs", gateway)),
    )
    # One process, so that each SGLang is started once.
    sglang = Step("SGLang", pytest(*SGLANG_FOLDERS), after=(*done, "set-up of SGLang", wheel), compiled=True)
    return (*set_ups, *main, sglang, *of_the_proxy, *of_others)
