"""Opens files that others may have placed: only regular files, and only inside given folders.

A read of a named pipe, a device or a terminal could block. A symbolic link may lead anywhere, so the place of the
opened file is checked, not that of the link. Links to files inside the folders work, because Kubernetes mounts files by
such links.
"""

import os
import stat
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path


def open_regular(path: Path, within: Sequence[Path] = ()) -> BufferedReader:
    """Open a regular file. `within`: folders that may hold the file; empty: any folder.

    Raises: OSError; ValueError for a file that is not regular or not in these folders.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # checked before opening, which could act on a device
        raise ValueError("is not a regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # the file was replaced since the check
            raise ValueError("is not a regular file")
        if within:
            _check_place(Path(f"/proc/self/fd/{descriptor}").readlink(), within)
    except BaseException:
        file.close()
        raise
    return file


def read_regular(path: Path, max_bytes: int, within: Sequence[Path] = ()) -> bytes:
    """The content of a file. Raises: the errors of `open_regular`; ValueError for more than `max_bytes`."""
    with open_regular(path, within) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"is larger than {max_bytes} bytes")
    return content


def _check_place(opened: Path, within: Sequence[Path]) -> None:
    if not any(opened.is_relative_to(os.path.realpath(folder)) for folder in within):
        folders = " and ".join(map(str, within))
        raise ValueError(f"is not in {folders}, nor a link to a file there")
