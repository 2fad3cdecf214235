"""The version of this release. `importlib.metadata` knows it, too, but is a tenth of the start of a process."""

from typing import Final

VERSION: Final = "0.1.0"
