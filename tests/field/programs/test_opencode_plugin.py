"""integrations/opencode: packed, installed into the real OpenCode, and driven there, in a terminal too."""

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from tests.machine import seconds
from tests.subjects.copies import CopiedFleet

from warmroute_lab.fleet import PAGE_SIZE, FleetOptions, LocalFleet

from .pages import NODE, QUIET, ROOT
from .terminal import Terminal

PACKAGE: Final = ROOT / "integrations" / "opencode"
BINS: Final = NODE / "node_modules" / ".bin"
READY: Final = "Ask anything"
EXPLORE: Final = [
    {"description": "look", "prompt": 'obey: call glob {"pattern": "*"}\nobey: answer Found.'},
    {"description": "look more", "prompt": 'obey: call glob {"pattern": "*.md"}\nobey: answer Found more.'},
]
TASKS: Final = "; ".join(f"call task {json.dumps(task | {'subagent_type': 'explore'})}" for task in EXPLORE)
LOOK: Final = 'obey: call bash {"command": "echo hi", "description": "say hi"}\n'
PROMPT: Final = f"{LOOK}obey: {TASKS}\nobey: answer All done.\n"
pytestmark = pytest.mark.timeout(seconds(200))
OPTIONS = FleetOptions(speed=20, obey_prompts=True)


def toast(screen: str) -> str:
    """The words of a toast, which OpenCode wraps between two bars over whatever is below."""
    return " ".join(" ".join(re.findall(r"┃([^┃\n]+)┃ *$", screen, re.MULTILINE)).split())


def answered(text: str) -> str:
    """The pattern of an answer on the screen; a prompt has a bar before it."""
    return rf"(?m)^ +{re.escape(text)}"


def rewritten(turn: dict[str, Any]) -> int:
    """How many tokens of a turn were computed again, which an append alone would have left in the cache."""
    return sum(tokens for name, tokens in turn["loss"].items() if name not in {"new", "page_rounding", "not_kept"})


@dataclass
class Project:
    """A folder with a home of its own, whose OpenCode has the packed plugin, or none."""

    folder: Path
    fleet: LocalFleet
    tarball: Path | None
    options: dict[str, Any] = field(default_factory=dict)
    compaction: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        self.home.mkdir(parents=True)
        state = self.home / ".local" / "state" / "opencode"
        state.mkdir(parents=True)
        (state / "kv.json").write_text('{"animations_enabled": false}')  # a spinner computes all the time
        (self.folder / "AGENTS.md").write_text("Be brief.\n")
        self.set(self.options)

    def set(self, options: dict[str, Any]) -> None:
        """Write OpenCode's configuration, with these options of the plugin."""
        config = provider_block(self.fleet, ROOT / "integrations" / "opencode" / "dist" / "cli.js")
        plugin = [[f"opencode-warmroute@file:{self.tarball}", options]] if self.tarball else []
        config |= {"plugin": plugin, "autoupdate": False, "compaction": self.compaction}
        (self.folder / "opencode.json").write_text(json.dumps(config))

    def variables(self) -> dict[str, str]:
        """What OpenCode is started with."""
        own = {"HOME": str(self.home), "PATH": f"{BINS}:{os.environ['PATH']}", "OPENAI_API_KEY": self.fleet.api_key}
        if self.tarball:  # OpenCode installs the plugin and its interface once, which takes longer than a start of it
            own |= {f"XDG_{name}_HOME": str(self.tarball.parent / name.lower()) for name in ("CACHE", "CONFIG")}
        return {**QUIET, "LANG": "C.UTF-8", "TERM": "xterm-256color", "TZ": "UTC", **own}

    def run(self, prompt: str, *arguments: str, before: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        """`opencode run`, with the prompt as it is."""
        return subprocess.run(
            [*before, "opencode", "run", *arguments], cwd=self.folder, env=self.variables(), input=prompt,
            capture_output=True, text=True, timeout=seconds(90), check=False,
        )  # fmt: skip

    def terminal(self) -> Terminal:
        """OpenCode's own screen."""
        made = Terminal("opencode", self.folder, self.variables())
        made.shows(READY, 60)
        return made

    def log(self) -> str:
        """What OpenCode has logged."""
        return "".join(path.read_text() for path in self.home.rglob("opencode/log/*.log"))


def provider_block(fleet: LocalFleet, command: Path) -> dict[str, Any]:
    """The configuration that the package's own command prints, with one of the models."""
    environment = {**os.environ, "OPENAI_API_KEY": fleet.api_key}
    words = ["node", str(command), "--base-url", fleet.proxies["east"].base_url]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, env=environment, timeout=seconds(30))
    config: dict[str, Any] = json.loads(printed.stdout)
    return config


def turns(fleet: LocalFleet) -> list[dict[str, Any]]:
    """All turns of the tenant, oldest first."""
    headers = {"authorization": f"Bearer {fleet.api_key}"}
    url = f"{fleet.proxies['east'].base_url}/usage/receipts?limit=200"
    rows: list[dict[str, Any]] = httpx.get(url, headers=headers, timeout=seconds(30)).raise_for_status().json()["data"]
    return rows[::-1]


@pytest.fixture(scope="module")
def tarball(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as npm packs it."""
    assert (PACKAGE / "node_modules").exists(), "integrations/opencode is not set up: run scripts/integrations install"
    folder = tmp_path_factory.mktemp("packed")
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, cwd=PACKAGE, capture_output=True, timeout=seconds(60), check=True)
    [packed] = folder.glob("*.tgz")
    return packed


@dataclass
class Driven:
    """What one session in a terminal has shown, and the turns that it has left in the ledger."""

    at_first: str
    after_turn: str
    explained: str
    warned: str
    cut_off: str
    log: str
    turns: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [turn for turn in self.turns if turn["kind"] == kind]


@pytest.fixture(scope="module")
def driven(tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Driven:
    """A turn with a tool and two sub-agents, a compaction, an edit of AGENTS.md; at last proxies die."""
    folder = tmp_path_factory.mktemp("driven")
    with CopiedFleet(folder, folder / "up", FleetOptions(speed=5, obey_prompts=True)) as fleet:
        project = Project(folder / "project", fleet, tarball, {"freezeDate": True}, {"prune": True})
        with project.terminal() as terminal:
            terminal.enter(PROMPT)
            at_first = terminal.shows("compaction", 60, toast)
            terminal.shows(answered("All done."), 60)
            after_turn = terminal.shows("tokens cached", 20, toast)
            terminal.command("warmroute")
            explained = terminal.shows(r"The last cold request was|None of the last", 20)
            terminal.command("compact")
            terminal.shows("Compaction", 30)
            terminal.shows(r"Compaction · .* · \d", 30)
            terminal.enter("obey: answer Gone on.\n")
            terminal.shows(answered("Gone on."), 30)
            (project.folder / "AGENTS.md").write_text("Be brief, please.\n")
            terminal.enter("obey: answer Went on.\n")
            terminal.shows(answered("Went on."), 30)
            warned = terminal.shows(r"AGENTS\.md", 20, toast)
            found = turns(fleet)
            terminal.enter("obey: run 8000\n")
            terminal.shows(r"obey: run 8000[\s\S]*?([a-z]+ ){9}|(([a-z]+ ){9}.*\n){10}", 60)
            fleet.stop_proxies()
            cut_off = terminal.shows("Cannot connect to API", 60)
            terminal.command("warmroute")
            cut_off += terminal.shows("does not answer", 30)
    return Driven(at_first, after_turn, explained, warned, cut_off, project.log(), found)


def test_each_request_says_who_sends_it_and_what_for(driven: Driven) -> None:
    assert {(turn["kind"], turn["agent"]) for turn in driven.turns} == {
        ("main", "build"),
        ("title", "title"),
        ("sub", "explore"),
        ("compaction", "compaction"),
    }
    session = driven.of("main")[0]["session"]
    assert {turn["session"] for kind in ("main", "title", "compaction") for turn in driven.of(kind)} == {session}
    assert {turn["parent"] for turn in driven.turns} == {None, session}
    assert all((turn["parent"] == session) == (turn["kind"] == "sub") for turn in driven.turns)


def test_parallel_sub_agents_are_sessions_of_their_own_that_grow(driven: Driven) -> None:
    subs: dict[str, list[dict[str, Any]]] = {}
    for turn in driven.of("sub"):
        subs.setdefault(turn["session"], []).append(turn)
    assert len(subs) == 2
    for first, second in subs.values():
        assert (first["turn"], second["turn"]) == (1, 2)
        assert "prefix_changed" not in second["loss"]
        # Known as a whole, wherever it is: where its worker is busy, placement may compute so little anew elsewhere.
        known = second["cached_tokens"] + sum(second["loss"].get(name, 0) for name in ("moved", "elsewhere"))
        assert known > first["prompt_tokens"] * 0.9, second["loss"]


def test_after_a_turn_the_screen_shows_what_it_came_to(driven: Driven) -> None:
    assert re.search(r"\d+% of [\d,]+ tokens cached in [789] requests \$0\.\d+, \$0\.\d+ saved", driven.after_turn)


def test_pruning_is_warned_of_with_the_first_turn(driven: Driven) -> None:
    assert "compaction.prune is on" in driven.at_first


def test_the_command_explains_the_last_cold_turn_and_sends_nothing(driven: Driven) -> None:
    assert re.search(r"\(sub, agent explore\)|\(main, agent build\)|\(title, agent title\)|None of", driven.explained)
    assert len(driven.of("main")) == 5  # three of the first prompt, one for each of the others


def test_an_edit_of_a_file_of_instructions_is_warned_of(driven: Driven) -> None:
    assert "AGENTS.md has changed in the system prompt" in driven.warned
    assert rewritten(driven.of("main")[-1]) > 0


def test_the_plugin_leaves_no_error_in_the_log(driven: Driven) -> None:
    assert 'message="the plugin has failed' not in driven.log
    assert "node_modules/opencode-warmroute" not in driven.log


def test_a_proxy_that_dies_leaves_opencode_its_own_error(driven: Driven) -> None:
    assert "Cannot connect to API" in driven.cut_off
    assert "does not answer" in driven.cut_off
    assert "opencode-warmroute" not in driven.cut_off
    assert "    at " not in driven.cut_off


def again(fleet: LocalFleet, project: Project, *days: int, continued: bool = False) -> list[dict[str, Any]]:
    """Start OpenCode once for each number of days from now, in one session; its turns."""
    before = {turn["id"] for turn in turns(fleet)}
    for number, day in enumerate(days):
        prompt = f"{LOOK}obey: answer Turn {number}.\n"
        words = ("--continue",) if number or continued else ()
        moved = ("faketime", "-f", f"+{day}d") if day else ()
        assert f"Turn {number}." in project.run(prompt, *words, before=moved).stdout
    return [turn for turn in turns(fleet) if turn["id"] not in before and turn["turn"] > 1]


def lost(of: list[dict[str, Any]]) -> int:
    """Prompt tokens of turns that no cache had."""
    return sum(turn["prompt_tokens"] - turn["cached_tokens"] for turn in of)


def test_over_midnight_the_frozen_date_keeps_it_as_warm_as_without_the_plugin_on_one_day(
    fleet: LocalFleet, tarball: Path, tmp_path: Path
) -> None:
    project = Project(tmp_path / "plugged", fleet, tarball, {"freezeDate": True})
    ours = again(fleet, project, 0, 1)
    assert [rewritten(turn) for turn in ours] == [0, 0, 0]
    plain = again(fleet, Project(tmp_path / "without", fleet, None), 0, 0)
    assert len(plain) == 3
    assert lost(ours) <= lost(plain) + PAGE_SIZE * len(ours)  # whose last pages are full to another degree
    project.set({"freezeDate": False})
    assert rewritten(again(fleet, project, 1, continued=True)[0]) > 0  # the day of the session is over


def test_the_package_passes_its_own_tests() -> None:
    done = subprocess.run(
        ["npm", "test"], cwd=PACKAGE, capture_output=True, text=True, timeout=seconds(120), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_needs_nothing_at_run_time_and_names_no_registry() -> None:
    assert "dependencies" not in json.loads((PACKAGE / "package.json").read_text())
    assert '"resolved"' not in (PACKAGE / "package-lock.json").read_text()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--base-url", "nowhere"], "give the proxy's URL"),
        (["--key-variable", "NO_SUCH_KEY"], "NO_SUCH_KEY holds no key"),
        (["--base-url", "http://127.0.0.1:9/v1"], "fetch failed"),
        (["--wrong"], "--wrong"),
    ],
)
def test_the_command_says_what_is_wrong(words: list[str], wanted: str, tarball: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    command = ["node", str(PACKAGE / "dist" / "cli.js"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds(60), check=False)
    assert done.returncode == 1
    assert wanted in done.stderr
    assert "    at " not in done.stderr
