"""A PostgreSQL and a Redis of the tests' own: on free ports, in folders of their own, as an ordinary user.

Both refuse to run as root, or should not: started by root they run as the users of their Debian packages.
"""

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tests.machine import seconds
from tests.subjects.ports import free_port
from tests.subjects.stopped import Stopped

INSTALL = "run scripts/stores install"


class Server(Stopped):
    """A server process that can be killed, frozen and started again on the same port and folder."""

    user = ""

    def __init__(self, host: str = "127.0.0.1", enter: Sequence[str] = ()) -> None:
        """`enter`: what stands before its command line, where it runs in a network namespace that has `host`."""
        self.host = host
        self.enter = tuple(enter)
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="warmroute-store-"))
        self._give(self.folder)
        self.process: subprocess.Popen[bytes] | None = None

    def _give(self, folder: Path) -> None:
        """To the user as whom the server runs."""
        if os.geteuid() == 0:
            owner = pwd.getpwnam(self.user)
            os.chown(folder, owner.pw_uid, owner.pw_gid)

    def run(self, command: Sequence[str]) -> None:
        subprocess.run(self.as_user(command), check=True, stdout=subprocess.DEVNULL, timeout=seconds(60))

    def as_user(self, command: Sequence[str]) -> list[str]:
        if os.geteuid() != 0:
            return [*self.enter, *command]
        user = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return [*self.enter, *user, *command]

    def launch(self, command: Sequence[str]) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(self.as_user(command), stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + seconds(30)
        while not self.answers():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "the store does not answer"
            time.sleep(0.05)

    def answers(self) -> bool:
        raise NotImplementedError

    def begin(self) -> None:
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def to_all(self, number: int) -> None:
        """A signal to the server and all that serve its connections."""
        self.signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.to_all(signal.SIGKILL)
        self.process.wait()

    def freeze(self) -> None:
        """Stop it as a machine that hangs: connections stay open, and nothing answers."""
        self.to_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self.to_all(signal.SIGCONT)

    def thaw_if_there(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.thaw()

    def end(self) -> None:
        """End it in good order; it can be started again."""
        if self.process is not None and self.process.poll() is None:
            self.signal(signal.SIGINT)
            try:
                self.process.wait(seconds(10))
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def stop(self) -> None:
        self.thaw_if_there()
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    """One cluster, with as many databases as the tests want."""

    user = "postgres"
    _made: ClassVar[Path | None] = None

    def __init__(self, host: str = "127.0.0.1", enter: Sequence[str] = (), *, syncs: bool = False) -> None:
        """`syncs`: whether a commit waits for the disk, which only the end of the machine would tell."""
        self.syncs = syncs
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        assert found, f"there is no PostgreSQL: {INSTALL}"
        self.bin = found[-1].parent
        super().__init__(host, enter)
        self.data = self.folder / "data"
        self.run(["cp", "-a", str(self._new_cluster()), str(self.data)])
        if host != "127.0.0.1":
            with (self.data / "pg_hba.conf").open("a") as file:
                file.write("host all all 0.0.0.0/0 trust\n")
        self.databases = 0

    def _new_cluster(self) -> Path:
        """What initdb makes, which takes more than a second: once in a process, and copied for each server."""
        if Postgres._made is None:
            made = Path(tempfile.mkdtemp(prefix="warmroute-cluster-"))
            atexit.register(shutil.rmtree, made, ignore_errors=True)
            self._give(made)
            self.run(
                [str(self.bin / "initdb"), "-D", str(made / "data"), "-U", "warmroute", "-A", "trust", "-E", "UTF8",
                 "--locale=C", "--no-sync"]
            )  # fmt: skip
            Postgres._made = made / "data"
        return Postgres._made

    def start(self) -> None:
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.launch(
            [str(self.bin / "postgres"), "-D", str(self.data), "-p", str(self.port), "-k", str(self.folder),
             "-c", f"listen_addresses={self.host}", "-c", "shared_buffers=64MB", "-c", "max_connections=60",
             "-c", f"fsync={'on' if self.syncs else 'off'}"]
        )  # fmt: skip

    def answers(self) -> bool:
        command = [str(self.bin / "pg_isready"), "-q", "-h", self.host, "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def to_all(self, number: int) -> None:
        assert self.process is not None
        self.signal(signal.SIGSTOP)  # so that it makes no other child meanwhile
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (*map(int, children), self.process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def new_database(self) -> str:
        """The DSN of an empty database."""
        self.databases += 1
        name = f"test_{self.databases}"
        self.sql(f"CREATE DATABASE {name}", "postgres")
        return self.dsn(name)

    def dsn(self, name: str) -> str:
        return f"postgresql://warmroute@{self.host}:{self.port}/{name}"

    def sql(self, statement: str, database: str) -> list[str]:
        """The rows of a statement, as psql prints them."""
        dsn = database if database.startswith("postgresql://") else self.dsn(database)
        command = [str(self.bin / "psql"), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", dsn, "-c", statement]
        found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds(30))
        return found.stdout.splitlines()


class Redis(Server):
    """A Redis that keeps nothing on disk."""

    user = "redis"

    def start(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        assert program is not None, f"there is no Redis: {INSTALL}"
        self.launch(
            [program, "--port", str(self.port), "--bind", self.host, "--protected-mode", "no", "--save", "",
             "--appendonly", "no"]
        )  # fmt: skip

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    def save(self) -> None:
        """Write all keys to its folder, as they are."""
        self.tell("CONFIG SET rdbcompression no", "SAVE")

    def tell(self, *commands: str) -> None:
        """Commands on one connection, each of which is answered with OK or a number."""
        with socket.create_connection((self.host, self.port), timeout=seconds(10)) as sock:
            for command in commands:
                sock.sendall(command.encode() + b"\r\n")
                said = sock.recv(256)
                assert said.startswith((b"+OK", b":")), said

    def answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(16).startswith(b"+PONG")
        except OSError:
            return False
