"""Types stay: mypy on `typed.py`, and the parameters of the installed openai. It runs on both generations of openai."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import openai
import pytest
from tests.machine import seconds

from warmroute._options import AsyncOptions, Options

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("client", "options"), [(openai.OpenAI, Options), (openai.AsyncOpenAI, AsyncOptions)])
def test_each_parameter_of_openais_is_known(client: Any, options: Any) -> None:
    known = {name for name in inspect.signature(client).parameters if not name.startswith("_")}
    assert known <= get_type_hints(options).keys()


@pytest.mark.timeout(seconds(200))
def test_a_type_checker_knows_parameters_and_overloads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--warn-unused-ignores"]
    command += ["--cache-dir", str(tmp_path), "tests/unit/sdk/typed.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Success"), done.stdout + done.stderr
