"""Ends this process with the one that started it, however that ends. Linux."""

import ctypes
import os
import signal
import sys

VARIABLE = "WARMROUTE_PARENT_PID"
"""Names the process to end with. Without it a server stays until it is told to stop."""

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the system kill this process when its parent ends. A child that this one forks is to call it again."""
    parent = os.environ.get(VARIABLE)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the process that started this one has ended")
    os.environ[VARIABLE] = str(os.getpid())
