"""The build hook: with `WARMROUTE_COMPILE=1` a wheel has compiled modules; without it nothing is done here.

A wheel of compiled modules is for one version of Python and one kind of machine, so it is made where it is used.
"""

import importlib
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASKED = os.environ.get("WARMROUTE_COMPILE") == "1"


class CompileHook(BuildHookInterface[Any]):
    """Adds the extensions to the wheel."""

    def dependencies(self) -> list[str]:
        """What the compilation needs: mypyc, and what the modules import, for its types."""
        if not ASKED:
            return []
        libraries = self._script().LIBRARIES
        imported = [name for name in self.metadata.core.optional_dependencies["proxy"] if name.startswith(libraries)]
        return [*imported, "mypy>=2.4,<3", "setuptools>=65"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a folder that lives as long as the build."""
        if not ASKED or version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory(prefix="warmroute-compile-")
        for place, path in self._script().extensions(Path(self._folder.name)).items():
            build_data["force_include"][str(path)] = place
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def _script(self) -> ModuleType:
        sys.path.insert(0, str(Path(self.root) / "scripts"))
        return importlib.import_module("compile")
