"""`warmroute launch --engine sglang-cpu` of a plan with LMCache: real SGLang and the real daemon of LMCache 0.5.6."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.subjects.launched import MODEL, Launched
from tests.subjects.ports import free_ports
from tests.subjects.processes import until
from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.request import PlanRequest
from warmroute_backend.ports import Ports
from warmroute_backend.sglang.server import START_TIMEOUT_S

pytestmark = pytest.mark.timeout(900)
CHUNK_TOKENS = 256
"""LMCache's: what is no whole chunk is not kept."""

PROMPT = "You are a careful assistant, and you say what you have not checked. " * 60


def cached_plan() -> Plan:
    asked = PlanRequest(known_model(MODEL), parse_cluster("8xH100"), split=(0, 0), speculation=False, lmcache=True)
    plan = make_plan(asked)
    kv, http = free_ports(2)
    (engine,) = (replace(each, ports=Ports(*free_ports(5))) for each in plan.engines)
    return replace(plan, engines=(engine,), site=replace(plan.site, lmcache_port=kv, lmcache_http_port=http))


def test_kv_outlives_an_engine_in_the_daemon_and_the_engine_ends_with_it(tmp_path: Path) -> None:
    with Launched(tmp_path, cached_plan(), engine="sglang-cpu") as launched:
        launched.start().wait_up(START_TIMEOUT_S * 2)
        assert set(launched.status()) == {"lmcache", "aggregated-0", "proxy"}
        first = launched.usage(PROMPT)
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        whole = first["prompt_tokens"] // CHUNK_TOKENS * CHUNK_TOKENS
        assert whole > CHUNK_TOKENS

        assert launched.act("restart", "aggregated-0").returncode == 0
        again = launched.usage(PROMPT)["warmroute"]["cached"]
        assert again["device"] == 0
        assert sum(again.values()) == whole, "the new engine has nothing of its own"

        before = launched.pids()
        os.kill(before["lmcache"], signal.SIGKILL)
        ended = {before["lmcache"], before["aggregated-0"]}
        until(lambda: not ended & set(launched.pids().values()), "both are new", START_TIMEOUT_S)
        launched.wait_up(START_TIMEOUT_S * 2)
        assert launched.usage(PROMPT)["prompt_tokens_details"]["cached_tokens"] == 0
