"""The warmroute proxy: decisions in `core`, all I/O in `server`."""

from importlib.util import find_spec
from typing import Final

COMPILED: Final = find_spec("warmroute_proxy.native__mypyc") is not None
"""Whether the request path runs as C extensions (scripts/compile.py); else it runs as Python source."""

BUILD: Final = "compiled" if COMPILED else "pure"
"""`COMPILED` as a word, for `warmroute --version`, `/ready` and the metric `warmroute_build_info`."""
