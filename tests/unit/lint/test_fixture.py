"""The fixture `warmroute_cache`, in a run of pytest of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

AGENT = """
import httpx
import pytest
from warmroute import OpenAI

SYSTEM = "You are an agent. " * 40


def answer(request):
    message = {"role": "assistant", "content": "ok"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return transport.Response(200, json={**head, "choices": [choice]})


try:
    import httpx2 as transport
except ImportError:
    transport = httpx


def run(*days):
    client = OpenAI(base_url="http://mock/v1", api_key="k", session="s",
                    http_client=transport.Client(transport=transport.MockTransport(answer)))
    messages = []
    for day in days:
        messages.append({"role": "user", "content": "go on"})
        system = {"role": "system", "content": f"Today is {day}.\\\\n{SYSTEM}"}
        client.chat.completions.create(model="m", messages=[system, *messages])
        messages.append({"role": "assistant", "content": "ok"})


def test_warm(warmroute_cache):
    run(*["2026-11-20"] * 6)
    warmroute_cache.assert_hit_ratio(0.75)
    warmroute_cache.assert_nothing_broken()


@pytest.mark.filterwarnings("ignore")
def test_cold(warmroute_cache):
    run("2026-11-20", "2026-11-21", "2026-11-22")
    warmroute_cache.assert_hit_ratio(0.75)


@pytest.mark.filterwarnings("ignore")
def test_broken(warmroute_cache):
    run("2026-11-20", "2026-11-21")
    warmroute_cache.assert_nothing_broken()


def test_unseen(warmroute_cache):
    warmroute_cache.assert_hit_ratio(0.75)
"""  # fmt: skip


def test_it_asserts_the_hit_ratio_of_an_agents_test(tmp_path: Path) -> None:
    """A mock of the server, since what is tested is a mocked agent's test."""
    (tmp_path / "test_agent.py").write_text(AGENT.replace("\\\\n", "\\n"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "warmroute.pytest_plugin", "-p", "no:cacheprovider", "."]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "3 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "cached is under 75.0%" in done.stdout
    assert "date at messages[0] (system), line 1" in done.stdout
    assert "no turn of a warmroute client was seen" in done.stdout
