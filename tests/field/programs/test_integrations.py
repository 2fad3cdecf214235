"""Each snippet of docs/how-to/integrations.md runs as it stands: its turns are in the ledger, under its session key."""

import os
import re
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.machine import seconds

from warmroute_lab.fleet import FleetOptions, LocalFleet

from .pages import (
    AT,
    FRAMEWORKS,
    LITELLM,
    NODE,
    PROGRAMS,
    ROOT,
    Snippet,
    matrix,
    snippets,
    unmarked,
    write_matrix,
    written_matrix,
)

KEY = "my-agent"
SESSION_ID = "11111111-2222-4333-8444-555555555555"
OWN_KEYS = {"opencode": r"\bses_\w+", "codex": r"\bsession id: (\S+)"}
"""Programs that make their own key, and how they show it."""

TIMEOUT_S = 60.0
pytestmark = pytest.mark.timeout(seconds(100))
OPTIONS = FleetOptions(speed=50)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    for folder in (FRAMEWORKS, LITELLM, NODE.name):
        assert (AT / folder).exists(), f"{folder} is not there: run scripts/integrations install"


def variables(fleet: LocalFleet) -> dict[str, str]:
    return {"OPENAI_BASE_URL": fleet.proxies["east"].base_url, "OPENAI_API_KEY": fleet.api_key}


def own(snippet: Snippet) -> tuple[Snippet, str]:
    """The snippet with a session key of its own."""
    key = str(uuid.uuid4())
    text = snippet.text.replace(KEY, key).replace(SESSION_ID, key)
    return Snippet(snippet.program, snippet.kind, snippet.checks, snippet.language, text), key


def turns(fleet: LocalFleet, session: str) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {fleet.api_key}", "x-session-affinity": session}
    answer = httpx.get(f"{fleet.proxies['east'].base_url}/usage/receipts", headers=headers, timeout=seconds(30))
    rows: list[dict[str, Any]] = answer.raise_for_status().json()["data"]
    return rows


@pytest.mark.parametrize("snippet", snippets(), ids=lambda snippet: f"{snippet.program}-{snippet.kind}")
def test_a_snippet_runs_as_it_stands(snippet: Snippet, fleet: LocalFleet, tmp_path: Path) -> None:
    mine, key = own(snippet)
    done = mine.run(tmp_path, variables(fleet), seconds(TIMEOUT_S))
    assert done.returncode == 0, done.stdout + done.stderr
    if snippet.program in OWN_KEYS:
        [key] = set(re.findall(OWN_KEYS[snippet.program], done.stdout + done.stderr))
    rows = turns(fleet, key)
    assert rows, "no turn of this session"
    assert {row["outcome"] for row in rows} == {"completed"}
    assert {"stream" if row["stream"] else "whole" for row in rows} == snippet.checks & {"whole", "stream"}
    ids = set(re.findall(r"\bwr-[0-9a-f]{24}\b", done.stdout))
    assert ids <= {row["id"] for row in rows}
    assert ids or "receipt" not in snippet.checks
    if "report" in snippet.checks:
        prompt, cached = (sum(row[name] for row in rows) for name in ("prompt_tokens", "cached_tokens"))
        assert f"{key}: {len(rows)} turns, {prompt:,} prompt tokens, cached {cached:,}" in done.stdout
        assert "violation" not in done.stdout


def test_every_code_block_of_the_page_runs() -> None:
    assert unmarked() == 0
    assert {snippet.program for snippet in snippets()} == set(PROGRAMS)


def test_the_table_is_that_of_what_is_installed() -> None:
    table = matrix()
    if os.environ.get("WARMROUTE_UPDATE_DOCS") == "1":
        write_matrix(table)
    if AT != ROOT:
        return  # the newest versions: the page tells of the pinned ones
    assert written_matrix() == table, "WARMROUTE_UPDATE_DOCS=1 scripts/integrations -k table writes it"


@pytest.mark.parametrize(("stream_usage", "cached"), [(True, True), (False, False)])
def test_langchain_shows_usage_of_streams_only_when_it_is_told_to(
    stream_usage: bool, cached: bool, fleet: LocalFleet, tmp_path: Path
) -> None:
    code = f"""
from langchain_openai import ChatOpenAI
llm = ChatOpenAI(model="kimi-k2.5"{", stream_usage=True" if stream_usage else ""})
print([chunk.usage_metadata for chunk in llm.stream("hello") if chunk.usage_metadata])
"""
    snippet = Snippet("langchain", "plain", frozenset(), "python", code)
    assert ("cache_read" in snippet.run(tmp_path, variables(fleet), seconds(TIMEOUT_S)).stdout) == cached


@pytest.mark.parametrize("given", ["root_client", "root_client client"])
def test_langchain_makes_clients_of_its_own_for_those_that_are_missing(
    given: str, fleet: LocalFleet, tmp_path: Path
) -> None:
    values = {"root_client": "client", "client": "client.chat.completions"}
    arguments = ", ".join(f"{name}={values[name]}" for name in given.split())
    code = f"""
import asyncio
import warmroute
from langchain_openai import ChatOpenAI
client = warmroute.OpenAI()
llm = ChatOpenAI(model="kimi-k2.5", {arguments})
llm.invoke("hello")
asyncio.run(llm.ainvoke("hello"))
print("counted", client.cache.report().turns)
"""
    printed = Snippet("langchain", "client", frozenset(), "python", code).run(
        tmp_path, variables(fleet), seconds(TIMEOUT_S)
    )
    assert f"counted {len(given.split()) - 1}" in printed.stdout, printed.stderr
