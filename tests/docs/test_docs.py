"""The documents say what is so: examples run against a real fleet."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.subjects.checkout import ROOT, blocks, warmroute_in
from tests.subjects.copies import CopiedFleet
from tests.subjects.processes import until

from warmroute_cli.running import Address, announced
from warmroute_cli.state import locked_state
from warmroute_lab.fleet import FleetOptions, LocalFleet
from warmroute_proxy.server.base.config_file import load_config

USAGE = (ROOT / "docs/reference/usage.md").read_text()
QUICKSTART = (ROOT / "docs/tutorial/first-hour.md").read_text()


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("docs")
    with locked_state(folder), CopiedFleet(folder, folder / "up", FleetOptions(speed=20)) as fleet, found(fleet):
        proxy = fleet.proxies["east"]
        keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY"), fleet.api_key)
        address = proxy.base_url.removesuffix("/v1")
        urls = {"OPENAI_BASE_URL": proxy.base_url, "ANTHROPIC_BASE_URL": address, "GOOGLE_GEMINI_BASE_URL": address}
        yield {**os.environ, **urls, **keys}


def found(fleet: LocalFleet) -> AbstractContextManager[None]:
    """Commands that need the admin key find the fleet, as they find that of `warmroute up`."""
    addresses = [Address(proxy.region, proxy.url, proxy.admin_url) for proxy in fleet.proxies.values()]
    return announced(fleet.state_dir, addresses)


def run(command: list[str], environment: dict[str, str], folder: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=seconds(50)
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_complete(line: str, environment: dict[str, str]) -> bool:
    answer = json.loads(run(["bash", "-euo", "pipefail", "-c", line], environment))
    return answer["complete"] is True


@pytest.mark.parametrize("number", range(len(blocks(USAGE, "sh"))))
def test_a_shell_example_about_usage_is_answered(environment: dict[str, str], number: int) -> None:
    for line in blocks(USAGE, "sh")[number].splitlines():
        until(partial(is_complete, line, environment), "both regions have counted")  # one may miss a probe


def test_the_answer_about_usage_has_the_fields_that_are_shown(environment: dict[str, str]) -> None:
    curl = blocks(USAGE, "sh")[0].splitlines()[0]
    answer = json.loads(run(["bash", "-c", curl], environment))
    shown = json.loads(blocks(USAGE, "json")[0])
    assert list(shown) == list(answer)


@pytest.mark.parametrize("number", range(len(blocks(QUICKSTART, "sh"))))
def test_a_shell_example_of_the_quickstart_shows_a_receipt(environment: dict[str, str], number: int) -> None:
    out = run(["bash", "-euo", "pipefail", "-c", blocks(QUICKSTART, "sh")[number]], environment)
    assert re.search(r'"warmroute":\s*{\s*"v":\s*1', out)
    assert out.endswith("\n")  # the next prompt of the shell begins a line


EACH_ALONE = """
import contextlib, io, json
printed = []
for example in {examples!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(example, example, "exec"), {{"__name__": "__main__"}})
    printed.append(out.getvalue())
print(json.dumps(printed))
"""
"""Runs examples in one process, since importing openai takes a second, and prints what each printed."""

WITH_EXAMPLES = [
    "tutorial/first-hour.md",
    *[f"reference/{name}.md" for name in ("sdk", "messages", "responses", "gemini")],
]


@pytest.mark.parametrize("page", [*WITH_EXAMPLES, "contribute/scripted-answers.md"])
def test_the_python_examples_run(environment: dict[str, str], page: str) -> None:
    examples = blocks((ROOT / "docs" / page).read_text(), "python")
    assert examples
    examples = [example.replace('model="demo"', 'model="kimi-k2.5"') for example in examples]
    printed = json.loads(run([sys.executable, "-c", EACH_ALONE.format(examples=examples)], environment))
    assert [example for example, text in zip(examples, printed, strict=True) if not text] == []


def in_kind(text: str) -> set[str]:
    """Lines without their numbers; those about a loss class are left out, since each fleet has lost others."""
    lines = [line for line in text.splitlines() if not re.search(r"^not cached: |prompt tokens? \(\w+\)", line)]
    return {re.sub(r"\d[\d.,]*", "N", line) for line in lines}


def test_the_quickstart_shows_what_its_programs_print(environment: dict[str, str]) -> None:
    run(["bash", "-c", blocks(QUICKSTART, "sh")[0]], environment)
    pairs = re.findall(
        r"^```python\n([^`]*)^```$(?:(?!^```).)*^```text\n([^`]*)^```$", QUICKSTART, re.MULTILINE | re.DOTALL
    )
    assert len(pairs) == 2
    for program, shown in pairs:
        assert in_kind(run([sys.executable, "-c", program], environment)) == in_kind(shown)


def test_the_config_of_the_quickstart_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "warmroute.toml"
    path.write_text(blocks(QUICKSTART, "toml")[0])
    assert load_config(path).proxy.region == "here"


def test_the_commands_that_find_what_broke_a_cache_are_answered(environment: dict[str, str], tmp_path: Path) -> None:
    run(["bash", "-c", blocks(QUICKSTART, "sh")[0]], environment)
    warmroute_in(tmp_path)
    environment = environment | {"PATH": f"{tmp_path}:{environment['PATH']}"}

    def answered(block: str) -> str:
        return run(["bash", "-euo", "pipefail", "-c", block], environment)

    by_session, listed, shown, *others = blocks((ROOT / "docs/how-to/troubleshooting.md").read_text(), "sh")
    session = re.findall(r"\(([0-9a-f]{6})\) ", answered(by_session))[0]
    turns = re.findall(r"^(wr-[0-9a-f]{24}) ", answered(listed.replace("HASH", session)), re.MULTILINE)
    rows = json.loads(answered("warmroute receipts list --limit 200 --json"))["data"]
    assert turns == [row["id"] for row in rows if row["session"].startswith(session)]
    assert answered(shown.replace("wr-ID", turns[0])).startswith(turns[0])
    for page in ("save-money", "bill"):
        others += blocks((ROOT / f"docs/how-to/{page}.md").read_text(), "sh")
    for block in others:
        assert answered(block)


def test_the_page_about_bills_computes_a_price() -> None:
    page = (ROOT / "docs/how-to/bill.md").read_text()
    rows = re.findall(r"^\| (?:computed|cached|answer) \| ([\d,]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    amounts = [Decimal(tokens.replace(",", "")) * Decimal(rate) / 1_000_000 for tokens, rate, _ in rows]
    assert amounts == [Decimal(usd) for _, _, usd in rows]
    assert f"| price | | | {sum(amounts)} |" in page
    assert f"Cost: {sum(amounts)} USD" in QUICKSTART


HELLO = """
import os, openai
client = openai.OpenAI(default_headers={"user-agent": "opencode/1.0", "x-session-affinity": "of the tutorial"})
messages = [{"role": "system", "content": "You are OpenCode, a careful assistant. " * 400}]
for words in ("say hello", "and once more"):
    messages.append({"role": "user", "content": words})
    answer = client.chat.completions.create(model="kimi-k2.5", messages=messages)
    messages.append({"role": "assistant", "content": answer.choices[0].message.content})
"""


def beginnings(text: str) -> set[str]:
    """The first words of lines: headings, labels such as `Cached:`, and names of engines."""
    words = {line.split()[0] for line in text.splitlines() if line.split()}
    return {word for word in words if re.fullmatch(r"[A-Z]\w+:|session|receipt|all|(?:east|west)-\w+", word)}


def test_the_tutorial_shows_what_its_commands_print(environment: dict[str, str], tmp_path: Path) -> None:
    """The agent is played by a client that calls itself by the same name."""
    warmroute_in(tmp_path)
    environment = environment | {"PATH": f"{tmp_path}:{environment['PATH']}", "COLUMNS": "80"}
    run([sys.executable, "-c", HELLO], environment)
    pairs = re.findall(r"^```bash\n([^`]*)^```\n+```text\n([^`]*)^```$", QUICKSTART, re.MULTILINE)
    assert len(pairs) == 4
    for script, shown in pairs[:3]:  # the fourth stops the fleet
        said = run(["bash", "-euo", "pipefail", "-c", script], environment, tmp_path)
        assert max(map(len, said.splitlines())) <= 80
        assert beginnings(shown) <= beginnings(said), script
    shown_head, *shown_engines = shown.splitlines()
    head, *engines = said.splitlines()
    assert head == shown_head
    assert [line.split()[:3] for line in engines] == [line.split()[:3] for line in shown_engines]
    assert [len(line.split()) for line in engines] == [len(line.split()) for line in shown_engines]
