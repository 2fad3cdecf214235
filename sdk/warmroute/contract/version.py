"""The version of this release, which the build reads here.

`importlib.metadata` knows it, too, but is a tenth of the start of a process.
"""

from typing import Final

VERSION: Final = "0.1.0"
