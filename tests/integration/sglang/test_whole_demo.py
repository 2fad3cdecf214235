"""The main job on real SGLang: `warmroute demo --engine sglang`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.machine import seconds
from tests.subjects.sglang import Servers

COMMAND = [sys.executable, "-m", "warmroute_cli.main", "demo", "--engine", "sglang", "--state-dir", "state"]


@pytest.mark.timeout(600)
def test_the_demo_shows_what_sglang_reported(sglang_servers: Servers, tmp_path: Path) -> None:
    sglang_servers.stop()  # the demo starts a pair of its own: no more than three servers at a time
    done = subprocess.run(
        [*COMMAND, "--json", "demo.json"], cwd=tmp_path, capture_output=True, text=True, timeout=seconds(580),
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures: dict[str, Any] = json.loads((tmp_path / "demo.json").read_text())
    assert figures["requests"] == figures["receipts"] == figures["ledger_rows"] == len(figures["turns"]) > 50
    assert figures["invariant_violations"] == 0
    assert figures["engine_counters"] == {name: figures[name] for name in ("prompt_tokens", "cached_tokens")}
    assert figures["hit_ratio"] > 0.85
    assert abs(figures["prediction_error"]["p50"]) < 0.01
    assert "Cached tokens as SGLang reported them" in done.stdout
    assert "oc_main #12" in done.stdout
