"""Versions of what serves, in the Python that has SGLang: it is asked in a process of its own, and nothing is imported
there. Mooncake and NIXL are distributed under a name for each CUDA, so it is asked which of their modules it finds.
"""

import json
import subprocess
from typing import Final

from warmroute_backend.doctor.facts import Versions

PACKAGES: Final = (
    "sglang",
    "torch",
    "mooncake-transfer-engine",
    "mooncake-transfer-engine-cuda13",
    "mooncake-transfer-engine-non-cuda",
    "lmcache",
    "nixl",
    "nixl-cu12",
    "nixl-cu13",
    "sgl-kernel",
    "flashinfer-python",
)
MODULES: Final = ("mooncake", "nixl", "lmcache")
TIMEOUT_S: Final = 60.0
_ASK: Final = """
import importlib.metadata as metadata, importlib.util as util, json, re, sys
names, modules = (each.split() for each in sys.argv[1:])
found = {}
for name in names:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
cuda = None
if "torch" in found:
    try:
        path = metadata.distribution("torch").locate_file("torch/version.py")
        cuda = (re.search(r"^cuda[^=]*= *['\\"]([\\d.]+)", open(path).read(), re.M) or [None, None])[1]
    except OSError:
        pass
modules = [name for name in modules if util.find_spec(name) is not None]
print(json.dumps({"python": sys.version.split()[0], "packages": found, "cuda": cuda, "modules": modules}))
"""


def read_versions(python: str) -> Versions:
    """What a Python has. `problem` where it cannot be asked."""
    try:
        done = subprocess.run(  # noqa: S603 (the operator's own Python)
            [python, "-c", _ASK, " ".join(PACKAGES), " ".join(MODULES)],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return (
            Versions(**json.loads(done.stdout))
            if done.returncode == 0
            else Versions("", problem=_last_line(done.stderr))
        )
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return Versions("", problem=f"{python} cannot be asked: {error}")


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
