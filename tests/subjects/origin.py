"""The loop of an origin, of which copies are made by fork (`copies.py`, `sglang_origin.py`).

Only the standard library, since the Python that has SGLang runs it, too.
"""

import json
import os
import random
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, cast

MAX_MESSAGE_BYTES = 100_000  # a command line and an environment

Asked = Mapping[str, object]
"""What a copy is to be: its `command` from its third word on, `environ` and `folder`."""


def serve(asks: socket.socket, become: Callable[[Asked, Sequence[int]], NoReturn]) -> None:
    """Make a copy for each message, and report its exit status, until the asking end is closed."""
    copies: dict[int, int] = {}  # pid -> where its end is told
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    while True:
        ready, _, _ = select.select([asks.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(copies)
        if asks.fileno() in ready:
            message, files, _, _ = socket.recv_fds(asks, MAX_MESSAGE_BYTES, 4)
            if not message:
                break
            *own, tells = files
            pid = os.fork()
            if pid == 0:
                become(json.loads(message), own)
            for each in own:
                os.close(each)
            copies[pid] = tells
            asks.send(str(pid).encode())
    for pid in copies:
        os.kill(pid, signal.SIGKILL)


def _tell_ends(copies: dict[int, int]) -> None:
    while copies:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        tells = copies.pop(pid)
        try:
            os.write(tells, str(status).encode())
        except BrokenPipeError:  # the process that waited has ended
            pass
        os.close(tells)


def take_on(asked: Asked, files: Sequence[int]) -> None:
    """Make the forked process a session with the signals, files, environment and folder that it was asked for."""
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, 4096)
    os.environ.clear()
    os.environ.update(cast("dict[str, str]", asked["environ"]))
    os.chdir(str(asked["folder"]))
    random.seed()
