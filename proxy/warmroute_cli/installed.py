"""Finds out how this copy of warmroute was installed and started, so that hints show commands that work when pasted."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import Distribution


def called_as() -> str:
    """The word that starts this program in the user's shell: `warmroute`, or a path to it."""
    called, found = Path(sys.argv[0]), shutil.which("warmroute")
    if called.name != "warmroute" or (found is not None and Path(found).resolve() == called.resolve()):
        return "warmroute"
    return shlex.quote(str(called))


def missing(modules: Sequence[str], extra: str) -> str | None:
    """A line with the missing modules and the command that installs them; None if all are installed."""
    absent = [name for name in modules if find_spec(name) is None]
    if not absent:
        return None
    return f"{', '.join(absent)} not installed: {install_command(extra)}"


def install_command(extra: str, copy: "Distribution | None" = None) -> str:
    """The pip command that adds an extra to this copy, which is a checkout, a file, or a release."""
    from importlib.metadata import PackageNotFoundError, distribution  # slow: only on demand
    from urllib.parse import unquote, urlsplit

    try:
        copy = copy or distribution("warmroute")
        origin = json.loads(copy.read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url = origin.get("url", "")
    pip = [sys.executable, "-m", "pip", "install"]
    if "dir_info" not in origin:
        return shlex.join([*pip, f"warmroute[{extra}] @ {url}" if url else f"warmroute[{extra}]"])
    folder = unquote(urlsplit(url).path)
    editable = ["-e"] if origin["dir_info"].get("editable") else []
    return shlex.join([*pip, *editable, f"{folder}[{extra}]"])
