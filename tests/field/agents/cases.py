"""What each program is told to do, and what may break its prefixes: a table.

Each prompt orders its turns (docs/contribute/scripted-answers.md). `CANARY` stands in all of them, and in what tools
answer, so that logs can be searched for it.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .stage import SMALL, Start

CANARY: Final = "quetzalcoatlus"


@dataclass(frozen=True, slots=True)
class Case:
    """`starts`: by the folder of the project. `agents`: how many lineages its turns have. `titles`: how many more they
    may have, where a thread asks for titles until it has one.

    `resumed`: which start goes on with the first one's conversation. `compacted`: words that only a prompt after a
    compaction has. `breaks`: words at the place where a prefix breaks -> the classes that receipts give what was lost.
    `lacks`: what the program does not have of `sub-agents`, `resuming` and `compaction` -> why. `tools`: whether it
    calls any. `regions`: of the proxies that its starts are pointed at. `recording`: of what is played where it cannot
    run.
    """

    title: str
    package: str
    starts: Callable[[Path], list[Start]]
    agents: int
    titles: int = 0
    resumed: int | None = None
    compacted: str = ""
    breaks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    tools: bool = True
    regions: tuple[str, ...] = ("east",)
    recording: str = ""


def order(*lines: str) -> str:
    """A prompt whose steps are these lines."""
    return "\n".join([f"Please work on {CANARY}.", *(f"obey: {line}" for line in lines)])


def call(tool: str, **arguments: Any) -> str:
    """A step that calls a tool."""
    return f"call {tool} {json.dumps(arguments)}"


def _claude(project: Path) -> list[Start]:
    def bash(text: str) -> str:
        return call("Bash", command=f"echo {CANARY} {text}", description=text)

    sub = order(bash("in the sub-agent"), "answer The sub-agent is done.")
    first = order(
        bash("one"),
        call("Read", file_path=str(project / "a.txt")),
        f"{bash('three')}; {bash('four')}",
        f"think 40; {bash('five')}",
        call("Agent", description="sub", prompt=sub, subagent_type="general-purpose"),
        bash("seven"),
        "run 300",
        "answer All is done.",
    )
    more = order(bash("again"), "answer It went on.")
    after = order(bash("after compaction"), "answer It ends.")
    options = ("--dangerously-skip-permissions",)
    return [
        Start((*options, "-p", first)),
        Start((*options, "-c", "-p", more), region="west"),
        Start((*options, "-c", "-p", "/compact")),
        Start((*options, "-c", "-p", after)),
    ]


def _opencode(project: Path) -> list[Start]:
    def bash(text: str) -> str:
        return call("bash", command=f"echo {CANARY} {text}", description=text)

    sub = order(bash("in the sub-agent"), "answer The sub-agent is done.")
    first = order(
        bash("one"),
        call("read", filePath=str(project / "a.txt")),
        f"{bash('three')}; {bash('four')}",
        f"think 40; {bash('five')}",
        call("task", description="sub", prompt=sub, subagent_type="general"),
        bash("seven"),
        bash("eight"),
        "answer All is done.",
    )
    more = order(bash("again"), "answer It went on.")
    reads = [call("read", filePath=str(project / "big.txt"), offset=begin, limit=700) for begin in (1, 700, 1400)]
    return [
        Start(("run",), first),
        Start(("run", "--continue"), more, region="west"),
        Start(("run",), order("; ".join(reads), bash("before compaction"), "answer It ends."), model=SMALL),
    ]


def _qwen(project: Path) -> list[Start]:
    def shell(text: str) -> str:
        return call("run_shell_command", command=f"echo {CANARY} {text}", description=text, is_background=False)

    sub = order(shell("in the sub-agent"), "answer The sub-agent is done.")
    first = order(
        shell("one"),
        call("read_file", file_path=str(project / "a.txt")),
        f"{shell('three')}; {shell('four')}",
        f"think 40; {shell('five')}",
        call("agent", description="sub", prompt=sub, subagent_type="general-purpose"),
        shell("seven"),
        shell("eight"),
        "answer All is done.",
    )
    more = order(shell("again"), "answer It went on.")
    return [
        Start(("--yolo", "-p", first)),
        Start(("--yolo", "-c", "-p", more)),
        Start(("--yolo", "-c", "-p", "/compress")),
        Start(("--yolo", "-c", "-p", order(shell("after compaction"), "answer It ends."))),
    ]


def _gemini(project: Path) -> list[Start]:
    def shell(text: str) -> str:
        return call("run_shell_command", command=f"echo {CANARY} {text}", description=text)

    ended = call("complete_task", result="Done.")
    sub = order(shell("in the sub-agent"), ended, "answer The sub-agent is done.")
    first = order(
        shell("one"),
        call("read_file", file_path=str(project / "a.txt")),
        f"{shell('three')}; {shell('four')}",
        f"think 40; {shell('five')}",
        call("invoke_agent", agent_name="generalist", prompt=sub),
        shell("seven"),
        shell("eight"),
        "answer All is done.",
    )
    more = order(shell("again"), "answer It went on.")
    options = ("--yolo", "--skip-trust")
    return [
        Start((*options, "-p", first)),
        Start((*options, "--resume", "latest", "-p", more)),
    ]


def _aider(_project: Path) -> list[Start]:
    def edit(old: str, new: str) -> str:
        block = f"a.txt\n```\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n```\n"
        return f"obey: answer {json.dumps(block)}"

    elsewhere = "http://127.0.0.1:9/v1"
    env = f"OPENAI_API_KEY=sk-mine\nOPENAI_API_BASE={elsewhere}\nOPENAI_BASE_URL={elsewhere}\n"
    lines = ["hello", *(f"{CANARY} {number}" for number in range(10))]
    edits = [edit(old, new) for old, new in itertools.pairwise(lines)]
    options = ("--no-fancy-input", "--no-pretty", "--yes-always", "a.txt")
    return [
        Start(options, "\n".join([*edits[:8], "/exit", ""]), files={".env": env}),
        Start(("--restore-chat-history", *options), "\n".join([edits[8], "/exit", ""])),
        Start(("--restore-chat-history", "--max-chat-history-tokens", "200", *options), f"{edits[9]}\n/exit\n"),
    ]


def _mini(_project: Path) -> list[Start]:
    turns = [call("bash", command=f"echo {CANARY} {number}") for number in range(8)]
    done = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    return [Start(("--yolo", "--exit-immediately", "--task", order(*turns, done)))]


def _codex(_project: Path) -> list[Start]:
    def shell(text: str) -> str:
        return call("exec_command", cmd=f"echo {CANARY} {text}")

    sub = order(shell("in the sub-agent"), "answer The sub-agent is done.")
    first = order(
        shell("one"),
        shell("two"),
        f"{shell('three')}; {shell('four')}",
        f"think 40; {shell('five')}",
        call("multi_agent_v1__spawn_agent", message=sub),
        call("exec_command", cmd="sleep 2"),
        shell("seven"),
        "answer All is done.",
    )
    more = order(shell("again"), "answer It went on.")
    summary = order(shell("after compaction"), "answer It ends.")  # the prompts before it come again, and count no more
    long = order(call("exec_command", cmd="cat big.txt"), f"answer {json.dumps(summary)}")
    options = ("exec", "--dangerously-bypass-approvals-and-sandbox")
    return [
        Start((*options, first)),
        Start((*options, "resume", "--last", more)),
        Start((*options, "-c", "model_auto_compact_token_limit=10500", long)),
    ]


def _vibe(project: Path) -> list[Start]:
    def bash(text: str) -> str:
        return call("bash", command=f"echo {CANARY} {text}")

    sub = order(bash("in the sub-agent"), "answer The sub-agent is done.")
    spawned = f"""async function main() {{
        await tools.agents.spawn({{name: "sub", message: {json.dumps(sub)}}});
        while ((await tools.agents.list({{}})).agents.some(agent => agent.pending_turn))
            await tools.self.sleep({{seconds: 0.2}});
    }}"""
    first = order(
        bash("one"),
        call("read_file", path=str(project / "a.txt")),
        f"{bash('three')}; {bash('four')}",
        f"think 40; {bash('five')}",
        bash("six"),
        bash("seven"),
        bash("eight"),
        "answer All is done.",
    )
    more = order(call("run_typescript", code=spawned), bash("again"), "answer It went on.")
    options = ("--yolo", "--trust")
    return [Start((*options, "-p", first)), Start((*options, "-c", "-p", more))]


def _gptme(_project: Path) -> list[Start]:
    def shell(text: str) -> str:
        return call("shell", command=f"echo {CANARY} {text}")

    task = f"{'This is what the title is made of. ' * 6}\n"  # 200 characters: no orders are among them
    sub = task + order(shell("in the sub-agent"), call("complete"), "answer The sub-agent is done.")
    first = order(
        shell("one"),
        shell("two"),
        f"{shell('three')}; {shell('four')}",
        f"think 40; {shell('five')}",
        call("ipython", code=f"subagent('sub', {json.dumps(sub)})\nsubagent_wait('sub')"),
        shell("seven"),
        shell("eight"),
        call("complete"),
    )
    more = order(shell("again"), call("complete"))
    options = ("--non-interactive", "--tool-format", "tool", "--tools", "+subagent", "--name", "work")
    return [Start((*options, task + first)), Start((*options, "--resume", task + more))]


def _kimi(_project: Path) -> list[Start]:
    def bash(text: str) -> str:
        return call("Bash", command=f"echo {CANARY} {text}")

    sub = order(bash("in the sub-agent"), "answer The sub-agent is done.")
    first = order(
        bash("one"),
        call("Read", path="a.txt"),
        f"{bash('three')}; {bash('four')}",
        f"think 40; {bash('five')}",
        call("Agent", description="sub", prompt=sub),
        bash("seven"),
        bash("eight"),
        "answer All is done.",
    )
    more = order(bash("again"), "answer It went on.")
    summary = order(bash("after compaction"), "answer It ends.")  # the prompts before it come again, and count no more
    read = call("Read", path="big.txt", n_lines=1200)
    long = order(bash("before compaction"), read, f"answer {json.dumps(summary)}")
    return [Start(("-p", first)), Start(("-c", "-p", more)), Start(("-p", long), model=SMALL)]


def _pi(_project: Path) -> list[Start]:
    def bash(text: str) -> str:
        return call("bash", command=f"echo {CANARY} {text}")

    first = order(
        bash("one"),
        call("read", path="a.txt"),
        f"{bash('three')}; {bash('four')}",
        f"think 40; {bash('five')}",
        bash("six"),
        bash("seven"),
        bash("eight"),
        "answer All is done.",
    )
    more = order(bash("again"), "answer It went on.")
    reads = [call("read", path="big.txt", offset=begin, limit=1000) for begin in (1, 1001)]
    after = order(bash("after compaction"), "answer It ends.")
    return [
        Start(("-p", first)),
        Start(("-p", "--continue", more)),
        Start(("-p", order(*reads, *reads, reads[0], bash("before compaction"), "answer It is long.")), model=SMALL),
        Start(("-p", "--continue", after), model=SMALL),
    ]


def _copilot(project: Path) -> list[Start]:
    def bash(text: str) -> str:
        return call("bash", command=f"echo {CANARY} {text}", description=text)

    sub = order(bash("in the sub-agent"), "answer The sub-agent is done.")
    first = order(
        bash("one"),
        call("view", path=str(project / "a.txt")),
        f"{bash('three')}; {bash('four')}",
        f"think 40; {bash('five')}",
        call("task", name="sub", description="sub", prompt=sub, agent_type="general-purpose", mode="sync"),
        bash("seven"),
        bash("eight"),
        "answer All is done.",
    )
    more = order(bash("again"), "answer It went on.")
    return [
        Start(("--allow-all-tools", "-p", first)),
        Start(("--allow-all-tools", "--continue", "-p", more)),
    ]


CASES: Final = {
    "opencode": Case(
        "OpenCode",
        "opencode-ai",
        _opencode,
        agents=6,
        resumed=1,
        compacted="What did we do so far?",
        breaks={"What did we do so far?": ("prefix_changed",)},
        regions=("east", "west"),
        recording="opencode",
    ),
    "claude": Case(
        "Claude Code",
        "@anthropic-ai/claude-code",
        _claude,
        agents=2,
        resumed=1,
        compacted="This session is being continued from a previous conversation",
        breaks={
            "For this reply only": ("prefix_changed",),  # asked again for the summary, since ours is none
            "This session is being continued": ("prefix_changed",),
        },
        regions=("east", "west"),
        recording="claude-code",
    ),
    "codex": Case(
        "Codex",
        "@openai/codex",
        _codex,
        agents=4,
        resumed=1,
        compacted="Another language model started to solve this problem",
        recording="codex",
    ),
    "gemini": Case(
        "Gemini CLI",
        "@google/gemini-cli",
        _gemini,
        agents=3,
        resumed=1,
        lacks={"compaction": "`/compress` in `-p` asks for a summary, and goes on with the whole history"},
        recording="gemini",
    ),
    "qwen": Case(
        "Qwen Code",
        "@qwen-code/qwen-code",
        _qwen,
        agents=6,
        resumed=1,
        compacted="Recently accessed file (full current content embedded)",
        recording="gemini",
    ),
    "aider": Case(
        "aider",
        "aider-chat",
        _aider,
        agents=7,
        resumed=1,
        compacted="I spoke to you previously about a number of things",
        breaks={
            "obey: answer": ("prefix_changed", "cold"),  # the reminder behind the last message; messages of commits
            "I spoke to you": ("prefix_changed", "cold"),  # the summary
            "# Files": ("prefix_changed", "cold"),
        },
        lacks={"sub-agents": "it has none"},
        tools=False,
        recording="aider",
    ),
    "mini-swe-agent": Case(
        "mini-swe-agent",
        "mini-swe-agent",
        _mini,
        agents=1,
        lacks=dict.fromkeys(("sub-agents", "resuming", "compaction"), "it has none"),
        recording="mini-swe-agent",
    ),
    "vibe": Case(
        "Mistral Vibe",
        "mistral-vibe",
        _vibe,
        agents=3,
        resumed=1,
        lacks={"compaction": "it has one, which is not tried: it keeps the prompt, whose orders would begin again"},
    ),
    "gptme": Case(
        "gptme",
        "gptme",
        _gptme,
        agents=4,
        titles=4,
        resumed=1,
        lacks={"compaction": "it has one, which is not tried: it asks for it in its own terminal"},
    ),
    "kimi": Case(
        "Kimi Code",
        "@moonshot-ai/kimi-code",
        _kimi,
        agents=3,
        resumed=1,
        compacted="The conversation so far has been compacted",
        breaks={"The conversation so far has been compacted": ("prefix_changed",)},
    ),
    "pi": Case(
        "pi",
        "@earendil-works/pi-coding-agent",
        _pi,
        agents=4,
        resumed=1,
        compacted="compacted into the following summary",
        lacks={"sub-agents": "it has none"},
    ),
    "copilot": Case(
        "Copilot CLI",
        "@github/copilot",
        _copilot,
        agents=3,
        resumed=1,
        lacks={"compaction": "it has one, which is not tried"},
    ),
}
