"""Reads files that others may have put there: regular ones only, up to a size, and only inside certain folders.

A named pipe, a device or a terminal would hold who reads it. A link may lead anywhere, so what counts is where the
opened file is: links that stay inside are followed, as the mounts of Kubernetes have them.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path


def read_regular(path: Path, max_bytes: int, within: Sequence[Path] = ()) -> bytes:
    """The content of a file. `within`: the folders that it must be in; empty: anywhere.

    Raises: OSError, and ValueError where it is no regular file, too large, or elsewhere.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # before it is opened, which is an act where it is a device
        raise ValueError("is no regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # another one by now
            raise ValueError("is no regular file")
        if within:
            _check_place(Path(f"/proc/self/fd/{descriptor}").readlink(), within)
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"is larger than {max_bytes} bytes")
    return content


def _check_place(opened: Path, within: Sequence[Path]) -> None:
    if not any(opened.is_relative_to(os.path.realpath(folder)) for folder in within):
        folders = " and ".join(map(str, within))
        raise ValueError(f"is not in {folders}, nor a link to a file there")
