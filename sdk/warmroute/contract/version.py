"""The version of this release. The build reads it here.

`importlib.metadata` has the version, too, but importing it takes a tenth of the start time of a process.
"""

from typing import Final

VERSION: Final = "0.1.0"
