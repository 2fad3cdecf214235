"""A real terminal for a program: tmux, with a server of its own, read as text."""

import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.machine import seconds

COLUMNS: Final = 110
ROWS: Final = 40
POLL_S: Final = 0.25


class Terminal:
    """One program in it; ends with the `with` block. Limits of time are for an idle reference machine."""

    def __init__(self, command: str, folder: Path, variables: Mapping[str, str]) -> None:
        # A folder of its own, since the path of a socket may have 107 bytes and those of tests are longer.
        self._own = tempfile.TemporaryDirectory(prefix="wr", dir="/tmp")
        self._socket = Path(self._own.name) / "tmux.sock"
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        words = ["exec", "env", "-i", *(f"{name}={value}" for name, value in variables.items()), command]
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), shlex.join(words))

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tmux("kill-server")
        self._own.cleanup()

    def screen(self) -> str:
        """What it shows."""
        return self._tmux("capture-pane", "-p")

    def enter(self, text: str) -> None:
        """Paste a text and send it. The program may need more than one look at the key."""
        self._tmux("load-buffer", "-", stdin=text)
        self._tmux("paste-buffer", "-p")
        self.shows(re.escape(text.splitlines()[0][:20]) + r"|Pasted", 10)
        self._tmux("send-keys", "Enter")

    def command(self, name: str) -> None:
        """Carry out a slash command: the first Enter takes it from the list of those that begin so, or sends it."""
        self._tmux("send-keys", f"/{name}")
        self.shows(rf"/{name} .*\w", 10)  # the list, with what each is for
        self._tmux("send-keys", "Enter")
        self._tmux("send-keys", "Enter")

    def shows(self, pattern: str, limit_s: float, part: Callable[[str], str] = str) -> str:
        """The screen, or a part of it, once it shows this."""
        deadline_s = time.monotonic() + seconds(limit_s)
        while True:
            screen = self.screen()
            if re.search(pattern, part(screen)):
                return part(screen)
            assert time.monotonic() < deadline_s, f"{pattern!r} is not shown:\n{screen}"
            time.sleep(POLL_S)

    def _tmux(self, *words: str, stdin: str | None = None) -> str:
        command = ["tmux", "-S", str(self._socket), *words]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=seconds(60), check=True)
        return done.stdout
