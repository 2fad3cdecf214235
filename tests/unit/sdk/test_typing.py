"""Types stay: mypy and pyright on `typed.py`, and the parameters of the installed openai.

It runs on both generations of openai. The checkers may be another environment's, whose Python is
`WARMROUTE_TEST_CHECKERS`.
"""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import openai
import pytest
from tests.machine import seconds

from warmroute._client import AsyncOptions, Options

ROOT = Path(__file__).parents[3]
TYPED = ROOT / "tests" / "unit" / "sdk" / "typed.py"
CHECKERS = os.environ.get("WARMROUTE_TEST_CHECKERS", sys.executable)


@pytest.mark.parametrize(("client", "options"), [(openai.OpenAI, Options), (openai.AsyncOpenAI, AsyncOptions)])
def test_each_parameter_of_openais_is_known(client: Any, options: Any) -> None:
    known = {name for name in inspect.signature(client).parameters if not name.startswith("_")}
    assert known <= get_type_hints(options).keys()


@pytest.mark.skipif(openai.VERSION >= "3", reason="the project's own check of types reads typed.py, on this openai")
@pytest.mark.timeout(seconds(200))
def test_mypy_knows_parameters_and_overloads(tmp_path: Path) -> None:
    command = [CHECKERS, "-m", "mypy", "--strict", "--follow-imports=silent", "--warn-unused-ignores"]
    command += ["--python-executable", sys.executable, "--cache-dir", str(tmp_path), str(TYPED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Success"), done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(seconds(200))
def test_pyright_knows_parameters_and_overloads(tmp_path: Path) -> None:
    config = {"include": [str(TYPED)], "typeCheckingMode": "standard", "enableTypeIgnoreComments": False}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [CHECKERS, "-m", "basedpyright", "--project", str(tmp_path), "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--outputjson"], cwd=ROOT, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    wrong = [at for at, line in enumerate(TYPED.read_text().splitlines()) if "# type: ignore" in line]
    assert [each["range"]["start"]["line"] for each in found] == wrong, done.stdout
