"""Ends this process with the one that started it, however that ends. Linux; imported before anything slow is."""

import ctypes
import os
import signal
import sys

VARIABLE = "WARMROUTE_PARENT_PID"
"""Names the process to end with. Without it a server stays until it is told to stop."""

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the system kill this process when its parent ends; and from now on the same with its own children.

    SGLang's children ask for the same, but only when they have imported everything: those whose parent had ended by
    then would stay for ever. They import the launcher again, and with it this, at once.
    """
    parent = os.environ.get(VARIABLE)
    if parent is None:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("the process that started this one has ended")
    os.environ[VARIABLE] = str(os.getpid())
