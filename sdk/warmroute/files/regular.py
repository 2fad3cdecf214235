"""Opens files that others may have put there: regular ones only, and only inside certain folders.

A named pipe, a device or a terminal would hold its reader. A link may lead anywhere, so what counts is where the
opened file is: links that stay inside are followed, as the mounts of Kubernetes have them.
"""

import os
import stat
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path, within: Sequence[Path] = ()) -> BufferedReader:
    """A regular file, opened. `within`: the folders that it must be in; empty: anywhere.

    Raises: OSError, and ValueError, if it is not a regular file, or elsewhere.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened, which is an act if it is a device
        raise ValueError("is not a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # another one by now
            raise ValueError("is not a regular file")
        if within:
            _check_place(Path(f"/proc/self/fd/{descriptor}").readlink(), within)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, max_bytes: int, within: Sequence[Path] = ()) -> bytes:
    """The content of a file. Raises: as `open_regular`, and ValueError, if it is too large."""
    with open_regular(path, within) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"is larger than {max_bytes} bytes")
    return content


def _check_place(opened: Path, within: Sequence[Path]) -> None:
    if not any(opened.is_relative_to(os.path.realpath(folder)) for folder in within):
        folders = " and ".join(map(str, within))
        raise ValueError(f"is not in {folders}, nor a link to a file there")
