"""What the pages of the planner say is so: the page of plans is today's, and examples run."""

import argparse
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.subjects.checkout import ROOT, blocks, warmroute_in

from bench import plan_targets, plans
from warmroute_backend.plan.hardware import GPUS, gpus_with
from warmroute_cli.plan import plan_options

pytestmark = pytest.mark.full

DOCS = ROOT / "docs"
REFERENCE = (DOCS / "reference" / "plan.md").read_text()


def test_the_page_of_plans_is_what_the_command_prints_today() -> None:
    assert plans.PAGE.read_text() == plans.page(), "run: python -m bench.plans"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_page_of_targets_is_what_the_search_finds_today() -> None:
    assert plan_targets.PAGE.read_text() == plan_targets.page(), "run: python -m bench.plan_targets"


def test_the_examples_of_the_how_to_run_one_after_the_other(tmp_path: Path) -> None:
    warmroute_in(tmp_path)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = "".join(blocks((DOCS / "how-to" / "plan.md").read_text(), "sh"))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=seconds(50),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2 engines, nothing is wrong" in done.stdout
    assert "--max-running-requests 48" in (tmp_path / "deployment/systemd/sglang-decode-0.service").read_text()


def test_every_option_is_in_the_reference_and_no_other() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    plan_options.add(parser)
    documented = {name for line in REFERENCE.splitlines() if line.startswith("| `--") for name in options(line)}
    assert documented == {name for action in parser._actions for name in action.option_strings}


def options(line: str) -> list[str]:
    return re.findall(r"`(--[a-z0-9-]+)", line.split(" | ", maxsplit=1)[0])


@pytest.mark.parametrize("name", sorted(GPUS))
def test_a_known_gpu_is_in_the_reference(name: str) -> None:
    assert re.search(rf"^GPUs: .*\b{name}\b", REFERENCE, re.MULTILINE)


def test_the_tables_of_gpus_of_the_reference_are_read() -> None:
    found = gpus_with(tomllib.loads(blocks(REFERENCE, "toml")[0])["gpu"], "the page")
    assert found["H200"].host_memory_gib == 1024
    assert found["H200"].memory_mib == GPUS["H200"].memory_mib
    assert found["H200-NVL"].per_node == 8
