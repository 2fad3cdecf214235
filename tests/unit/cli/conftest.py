"""What tests of the command share."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

_SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "convert_sessions.py"


@pytest.fixture(scope="module")
def convert() -> ModuleType:
    spec = importlib.util.spec_from_file_location("convert_sessions", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
