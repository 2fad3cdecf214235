"""`python -m scripts.gpu --toy` with the CPU's torch: each measurement runs, and the planner refuses its file."""

import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.machine import seconds
from warmroute_backend.sglang.installation import installation
from warmroute_cli.main import main

ROOT = Path(__file__).parents[3]
"""Not where the modules lie: compiled ones lie in another folder."""


def test_each_measurement_runs_at_toy_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "toy.toml"
    command = [str(installation().python), "-m", "scripts.gpu", "--toy", "--out", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds(100), check=False)
    assert done.returncode == 0, done.stderr
    assert "no GPU was used" in done.stdout
    found = tomllib.loads(path.read_text())
    what = [each["what"] for each in found["measurement"]]
    assert "memory, reading" in what
    for part in ("qkv bf16", "down fp8", "attention of a prompt", "attention of a step", "a layer, 64", "a layer, 4"):
        assert any(part in each for each in what), part
    assert all("int4" in each for each in found["measured"]["left_out"]), "torch has int4 on a GPU alone"
    assert main(["plan", "--list", "--measured", str(path)]) == 2
    assert "no GPU was used" in capsys.readouterr().err
