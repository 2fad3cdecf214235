"""The steps of `scripts/test`: what each runs, and which steps must end before it starts.

There are three lists: for `scripts/test`, `scripts/test full` and `scripts/test nightly`. docs/contribute/develop.md
says what each covers, and what it leaves to the next list. A *tier* is a group of tests that is shown as one row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

PYTHON: Final = ".venv/bin/python"
WAITING: Final = ("tests/integration", "tests/docs", "tests/contract")
"""Folders with tests that wait for processes half of the time."""

COMPUTING: Final = ("tests/unit", "tests/apis", "tests/property", "tests/simulation", "tests/field/fuzz")
"""Folders with tests that mostly compute."""

SGLANG_FOLDERS: Final = ("tests/contract", "tests/integration/sglang")
ON_OPENAI_2: Final = "tests/integration/sdk/test_docs.py"
"""The tests of the docs' examples that scripts/openai2 runs on openai 2; on the newest openai, tests/docs runs these
examples against a fleet."""

HOSTILE: Final = "tests/hostile"
COMPILED: Final = "build/compiled"

BY_FOLDER: Final = "by folder"
"""The `tier` of a step that runs the tests of many folders, each of which is shown as a tier."""

MAX_CPU_S: Final = 2.0
"""The CPU time that a test file may use in `scripts/test`. A run names files that used more, since they belong to
`full`."""

MAIN: Final = ("-m", "not full and not nightly and not sglang", "--ignore=tests/integration/sglang")
"""Options that select the tests of `scripts/test`. Of the contract tests, they select those on simulated engines."""

ONE_RUN_OF_SGLANG: Final = "tests/integration/sglang/test_conversation.py"
ONE_RUN_OF_ENVOY: Final = "tests/gateway/test_turns.py"


@dataclass(frozen=True)
class Step:
    """One command of a run.

    `after` names steps that must end before this one starts. `compiled`: whether to test the files of the compiled
    wheel, which `scripts/compiled-tests install` has put into build/compiled. `limit_s` ends a step that hangs: four
    times the time that the longest step takes on two cores beside other steps.
    """

    name: str
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    tier: str = ""
    compiled: bool = False
    limit_s: float = 3900.0

    @property
    def shown_as(self) -> str:
        """The tier in which the table shows the step."""
        return self.tier or self.name


def pytest(*paths: str, options: Sequence[str] = (), processes: int = 1) -> tuple[str, ...]:
    """A command line of pytest. If `processes` is above 1, the processes share the files (`scripts.tiers.workers`)."""
    if processes == 1:
        return (PYTHON, "-m", "pytest", *options, *paths)
    return (PYTHON, "-m", "scripts.tiers.workers", f"--count={processes}", *options, "--", *paths)


def containing(word: str, *folders: str) -> tuple[str, ...]:
    """The test files that contain a word. Collecting the other files only to deselect their tests would take longer."""
    found = (path for folder in folders for path in sorted(Path(folder).rglob("test_*.py")) if word in path.read_text())
    return tuple(map(str, found))


def main_tests(options: Sequence[str], paths: Sequence[str], processes: int = 5) -> Step:
    """The tests of `scripts/test`, or all tests of some paths."""
    chosen = options if paths else (f"--cpu-limit={MAX_CPU_S}", *MAIN, *options)
    command = pytest(*(paths or (*WAITING, *COMPUTING)), options=chosen, processes=processes)
    return Step("tests", command, tier=BY_FOLDER)


def checks() -> tuple[Step, ...]:
    """The steps that only read the sources and run none of them."""
    commands: dict[str, tuple[str, ...]] = {
        "mypy": ("scripts/types",),
        "ruff check": (".venv/bin/ruff", "check"),
        "ruff format": (".venv/bin/ruff", "format", "--check"),
        "import-linter": (".venv/bin/lint-imports",),
        "structure": (PYTHON, "scripts/check_structure.py"),
        "house": (PYTHON, "-m", "scripts.house"),
        "vocabulary": (PYTHON, "scripts/vocabulary.py"),
        "prose": (PYTHON, "scripts/prose/habits.py"),
        "state diagrams": (PYTHON, "scripts/state_diagrams.py", "--check"),
    }
    return tuple(Step(name, command, tier="checks") for name, command in commands.items())


def main_steps(options: Sequence[str] = (), paths: Sequence[str] = ()) -> tuple[Step, ...]:
    """The steps of `scripts/test`, which a contributor runs before a commit; with paths, only their tests."""
    return (*(() if paths else checks()), main_tests(options, paths))


def in_line(*steps: Step) -> tuple[Step, ...]:
    """The steps, changed so that each also waits for the one before it."""
    line: list[Step] = []
    for step in steps:
        before = (line[-1].name,) if line else ()
        line.append(replace(step, after=(*step.after, *before)))
    return tuple(line)


def full_steps() -> tuple[Step, ...]:
    """The steps of `scripts/test full`: set-ups beside the main tests, then two lines of steps and one real run of each
    part.
    """
    main = main_steps()
    done = tuple(step.name for step in main)
    sglang = Step("set-up of SGLang", ("scripts/sglang", "install"))
    set_ups = in_line(
        Step("set-up of stores", ("scripts/stores", "install")),
        Step("set-up of the page", ("scripts/page", "install")),
        Step("set-up of docs", ("scripts/docs", "install")),
        Step("set-up of OpenCode", ("scripts/integrations", "opencode", "install")),
        Step("set-up of a gateway", ("scripts/gateway", "install")),
        Step("compiled wheel", ("scripts/compiled-tests", "install")),
        Step("set-up of deploy", ("scripts/deploy", "install")),
    )
    ready = (*done, set_ups[-1].name)
    marked = containing("mark.full", *WAITING, *COMPUTING)
    of_tests = in_line(
        Step(
            "marked full",
            pytest(*marked, options=("-m", "full and not nightly and not sglang"), processes=4),
            after=ready,
        ),
        Step("stores", pytest("tests/stores", "tests/bench", processes=3), tier=BY_FOLDER),
    )
    of_others = in_line(
        Step("SGLang", pytest(ONE_RUN_OF_SGLANG), after=(*ready, sglang.name)),
        Step("OpenCode", ("scripts/integrations", "opencode")),
        Step("page", ("scripts/page",)),
        Step("docs", ("scripts/docs",)),
        Step("gateway", ("scripts/gateway", ONE_RUN_OF_ENVOY)),
        Step("wheel", pytest("tests/compiled/test_wheel.py"), compiled=True),
        Step("deploy", ("scripts/deploy",)),
        Step("vulnerabilities", (PYTHON, "scripts/audit.py")),
        Step("costs of requests", ("scripts/costs",)),
        Step("hostile", pytest(HOSTILE, processes=3)),
    )
    return (sglang, *set_ups, *main, *of_tests, *of_others)


def nightly_steps(names: Iterable[str] = ()) -> tuple[Step, ...]:
    """The steps of `scripts/test nightly`, which `full` leaves out. With names, only those steps and the set-ups that
    they need.
    """
    wheel, stores, programs = "compiled wheel", "set-up of stores", "set-up of programs"
    set_ups = (
        Step("set-up of SGLang", ("scripts/sglang", "install")),
        *in_line(
            Step(wheel, ("scripts/compiled-tests", "install")),
            Step(stores, ("scripts/stores", "install")),
            Step("set-up of deploy", ("scripts/deploy", "install")),
            Step("set-up of a gateway", ("scripts/gateway", "install")),
            Step(programs, ("scripts/integrations", "install")),
        ),
    )
    marked = containing("mark.nightly", *WAITING, *COMPUTING, "tests/bench", "tests/stores")
    marked = tuple(each for each in marked if each != ON_OPENAI_2)
    searched = containing("hypothesis", *COMPUTING)
    wide = ("-m", "hypothesis", "--hypothesis-profile", "full")
    steps = (
        *set_ups,
        # A single process, so that each SGLang server is started only once.
        Step("SGLang", pytest(*SGLANG_FOLDERS), after=("set-up of SGLang", wheel), compiled=True),
        # Growing memory shows only after minutes of steady requests, which need half a core. Other steps run meanwhile.
        Step("soak", (PYTHON, "-m", "bench", "soak", "--minutes", "6"), after=(wheel,), compiled=True),
        *in_line(
            Step(
                "marked tests",
                pytest(*marked, options=("-m", "nightly", "-o", "faulthandler_timeout=1500"), processes=2),
                after=(stores,),
            ),
            Step(
                "hostile, compiled",
                pytest(HOSTILE, options=("-m", "not uncompiled"), processes=3),
                after=(wheel,),
                compiled=True,
            ),
            Step("compiled", ("scripts/compiled-tests",), compiled=True),
            Step("chaos", pytest("tests/field/chaos"), compiled=True),
            Step("regions", pytest("tests/field/regions")),
            Step("release", pytest("tests/release"), after=(wheel,)),
            Step("deploy", ("scripts/deploy", "-m", "nightly"), after=("set-up of deploy",)),
        ),
        *in_line(
            Step("search of properties", pytest(*searched, options=wide, processes=2), after=(programs,)),
            Step("SDK on openai 2", ("scripts/openai2",)),
            Step("programs", ("scripts/integrations",)),
            Step("agents", ("scripts/integrations", "harness")),
            Step("gateway", ("scripts/gateway",)),
        ),
    )
    return chosen(steps, tuple(names))


def chosen(steps: Sequence[Step], names: Sequence[str]) -> tuple[Step, ...]:
    """The named steps and the set-ups before them; all steps if there are no names. Raises: KeyError, for an unknown
    name.
    """
    if not names:
        return tuple(steps)
    by_name = {step.name: step for step in steps}
    kept: set[str] = set()
    for name in names:
        kept |= {name, *set_ups_before(by_name[name], by_name)}
    return tuple(
        replace(step, after=tuple(each for each in step.after if each in kept)) for step in steps if step.name in kept
    )


def set_ups_before(step: Step, by_name: dict[str, Step]) -> set[str]:
    """The names of all set-ups that must end before a step, directly or through other steps."""
    found: set[str] = set()
    for name in step.after:
        if name.startswith("set-up") or name == "compiled wheel":
            found.add(name)
        found |= set_ups_before(by_name[name], by_name)
    return found
