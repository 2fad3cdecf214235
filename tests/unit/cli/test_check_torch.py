"""Which torch `scripts/sglang install` takes: one built for the CPU, told from pip's report before it is downloaded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "sglang_cpu" / "check_torch.py"


def check(report: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT)], input=report, capture_output=True, text=True, check=False)


def report(version: str, *requires: str) -> str:
    return json.dumps({"install": [{"metadata": {"version": version, "requires_dist": list(requires)}}]})


@pytest.mark.parametrize(
    "said", [report("2.9.1+cpu", "nvidia-cublas-cu12==12"), report("2.9.1", "filelock"), report("2.9.1")]
)
def test_a_cpu_build_is_taken(said: str) -> None:
    assert (check(said).returncode, check(said).stderr) == (0, "")


@pytest.mark.parametrize("needs", ["nvidia-cublas-cu12==12; platform_system == 'Linux'", "cuda-bindings>=12"])
def test_a_cuda_build_is_refused_with_what_to_do(needs: str) -> None:
    done = check(report("2.9.1", "filelock", needs))
    assert done.returncode == 1
    assert "torch 2.9.1" in done.stderr
    assert "PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu" in done.stderr


def test_without_a_report_pip_has_said_what_is_wrong() -> None:
    assert (check("").returncode, check("").stderr) == (1, "")
