"""The snippets of docs/how-to/integrations.md, and the table that follows from them and from what is installed."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "how-to" / "integrations.md"
AT: Final = Path(os.environ.get("WARMROUTE_PROGRAMS", ROOT))
"""Where programs are installed: `scripts/integrations newest` has a folder of its own."""

NODE: Final = AT / ".node-integrations"

_SNIPPET: Final = re.compile(
    r"^<!-- run (\S+) (plain|client): ([^\n]*) -->\n```(python|js|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_MATRIX: Final = re.compile(r"(?<=<!-- matrix -->\n).*?(?=<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Program:
    """A program or framework: its name, where it is installed, its package, and how its turns get a session key."""

    title: str
    environment: str
    package: str
    session: str

    def version(self) -> str:
        """The installed one."""
        if self.environment == NODE.name:
            return str(json.loads((NODE / "node_modules" / self.package / "package.json").read_text())["version"])
        code = f"from importlib.metadata import version; print(version({self.package!r}))"
        python = AT / self.environment / "bin" / "python"
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


FRAMEWORKS, LITELLM, AIDER = ".venv-integrations", ".venv-litellm", ".venv-aider"
PLUGIN: Final = "[its plugin](https://github.com/warmroute/warmroute/blob/main/integrations/opencode/README.md)"
PROGRAMS: Final = {
    "langchain": Program("[LangChain](#langchain)", FRAMEWORKS, "langchain-openai", "`default_headers`"),
    "openai-agents": Program("[OpenAI Agents SDK](#openai-agents-sdk)", FRAMEWORKS, "openai-agents", "`extra_headers`"),
    "pydantic-ai": Program("[pydantic-ai](#pydantic-ai)", FRAMEWORKS, "pydantic-ai-slim", "`extra_headers`"),
    "instructor": Program("[instructor](#instructor)", FRAMEWORKS, "instructor", "`default_headers`"),
    "litellm": Program("[LiteLLM](#litellm)", LITELLM, "litellm", "`extra_headers`"),
    "llama-index": Program("[llama-index](#llama-index)", LITELLM, "llama-index-llms-openai-like", "`default_headers`"),
    "openai-js": Program("[openai for JavaScript](#openai-for-javascript)", NODE.name, "openai", "`defaultHeaders`"),
    "ai-sdk": Program("[Vercel AI SDK](#vercel-ai-sdk)", NODE.name, "ai", "`headers`"),
    "opencode": Program("[OpenCode](#opencode)", NODE.name, "opencode-ai", f"automatically; more with {PLUGIN}"),
    "aider": Program("[aider](#aider)", AIDER, "aider-chat", "`extra_headers`"),
    "qwen-code": Program("[qwen-code](#qwen-code)", NODE.name, "@qwen-code/qwen-code", "`customHeaders`"),
    "mini-swe-agent": Program("[mini-swe-agent](#mini-swe-agent)", LITELLM, "mini-swe-agent", "`extra_headers`"),
    "claude-code": Program("[Claude Code](#claude-code)", NODE.name, "@anthropic-ai/claude-code", "automatically"),
    "codex": Program("[Codex](#codex)", NODE.name, "@openai/codex", "automatically"),
    "gemini-cli": Program("[Gemini CLI](#gemini-cli)", NODE.name, "@google/gemini-cli", "`GEMINI_CLI_CUSTOM_HEADERS`"),
}


@dataclass(frozen=True)
class Snippet:
    """One snippet. `checks`: `whole` and `stream` turns, a `receipt` in the output, a `report` of our client."""

    program: str
    kind: str
    checks: frozenset[str]
    language: str
    text: str

    def run(self, folder: Path, variables: dict[str, str], timeout_s: float) -> "subprocess.CompletedProcess[str]":
        """Run it in a folder of its own, with a home of its own, on the fleet that the variables name."""
        bins = [
            AT / PROGRAMS[self.program].environment / "bin",
            AT / LITELLM / "bin",
            NODE / "node_modules" / ".bin",
        ]
        path = ":".join([*map(str, bins), os.environ["PATH"]])
        kept = {
            name: os.environ[name]
            for name in ("LANG", "SSL_CERT_FILE", "PYENV_ROOT", "PYTHONPYCACHEPREFIX")
            if name in os.environ
        }
        environment = {**kept, "PATH": path, "HOME": str(folder), **QUIET, **variables}
        name = {"python": "snippet.py", "js": "snippet.mjs", "sh": "snippet.sh"}[self.language]
        (folder / name).write_text(self.text)
        if self.language == "js":
            (folder / "node_modules").symlink_to(NODE / "node_modules")
        words = {"python": [str(bins[0] / "python")], "js": ["node"], "sh": ["bash", "-euo", "pipefail"]}[self.language]
        return subprocess.run(
            [*words, name], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )


QUIET: Final = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
    "IS_SANDBOX": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_CONFIGURED": "true",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}
"""What keeps the programs from asking the internet for prices, updates and the like, which no test needs."""


def snippets() -> list[Snippet]:
    """Those of the page, in its order."""
    found = _SNIPPET.findall(PAGE.read_text())
    return [Snippet(name, kind, frozenset(checks.split()), lang, text) for name, kind, checks, lang, text in found]


def unmarked() -> int:
    """How many code blocks of the page are not run."""
    return len(re.findall(r"^```\w+$", PAGE.read_text(), re.MULTILINE)) - len(snippets())


def matrix() -> str:
    """The table: a row for each program, by what its snippets check."""
    lines = ["| | version | plain `base_url` | our client | session key | receipt |", "|---|---|---|---|---|---|"]
    for name, program in PROGRAMS.items():
        checks = {snippet.kind: snippet.checks for snippet in snippets() if snippet.program == name}
        cells = [_words(checks.get(kind)) for kind in ("plain", "client")]
        receipt = "in its output" if "receipt" in checks["plain"] else "ledger"
        lines.append(f"| {program.title} | {program.version()} | {' | '.join(cells)} | {program.session} | {receipt} |")
    return "\n".join(lines) + "\n"


def written_matrix() -> str:
    """The table as the page has it."""
    found = _MATRIX.search(PAGE.read_text())
    assert found is not None
    return found[0]


def write_matrix(table: str) -> None:
    """Put the table into the page."""
    PAGE.write_text(_MATRIX.sub(lambda _: table, PAGE.read_text()))


def _words(checks: frozenset[str] | None) -> str:
    if checks is None:
        return "-"
    return ", ".join(word for word in ("whole", "stream") if word in checks)
