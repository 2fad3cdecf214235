"""Orders to reload: by SIGHUP, by the watched file, by an operator; in all processes of a proxy.

One process applies the file by itself. Of several, the supervisor checks the file and keeps the bytes that it accepts,
and each process applies those: a file with a problem changes none of them, and a mark in the state folder says so to
all of them. An operator's order to one process goes to the supervisor, and is answered once all processes that run
report that file and none says that it was refused, or after `AGREE_S`.
"""

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Final, NamedTuple

from warmroute_proxy.core.base.trouble import Problem, Trouble
from warmroute_proxy.server.base.config_file import ConfigError
from warmroute_proxy.server.base.config_source import ConfigSource, LiveConfig, RefusedMark
from warmroute_proxy.server.base.files import FileChanges
from warmroute_proxy.server.processes.peer_processes import PeerProcesses
from warmroute_proxy.server.reload.reloads import Difference, Reloads
from warmroute_proxy.server.reload.secret_files import SecretFiles

log = logging.getLogger(__name__)

AGREE_S: Final = 10.0
POLL_S: Final = 0.05
WATCH_EVERY_S: Final = 0.5


class InForce(NamedTuple):
    """In how many processes of the proxy a config is in force, and in how many not yet."""

    processes: int
    behind: int


class ReloadOrders:
    """Follows orders in this process. `peer_processes`: the others of this proxy; None if it is the only one."""

    def __init__(
        self,
        reloads: Reloads,
        source: ConfigSource,
        state_dir: Path,
        peer_processes: PeerProcesses | None,
        secret_files: SecretFiles,
    ) -> None:
        self.reloads = reloads
        self._secret_files = secret_files
        self._source = source
        self._accepted = source.accepted(state_dir)
        self._refused = RefusedMark(state_dir)
        self._peer_processes = peer_processes
        self._supervisor = os.getppid()
        self._report()

    def problems(self) -> list[Problem]:
        """What does not work as it should."""
        count = len(self.reloads.problems)
        if self._peer_processes is not None:
            count = count or self._refused.problems()
        text = f"the config file has {count} problems, and the one before is in force"
        found = [Problem(Trouble.CONFIG_REFUSED, text)] if count else []
        return [*found, *self.reloads.discovery.problems()]

    def hung_up(self) -> None:
        """SIGHUP has come, from an operator or from the supervisor, which has checked the file."""
        self._secret_files.read()
        if self._peer_processes is None:
            self.reloads.reload(self._source)
            return
        if self._accepted.path.exists():
            self.reloads.reload(self._accepted)
        else:
            self.reloads.problems = []
        self._report()

    async def watch(self, live: LiveConfig) -> None:
        """Apply the file when it changes, while the config asks for that; a new certificate counts as SIGHUP. Of
        several processes the supervisor looks at both, and each process at the other files of secrets.
        """
        proxy, alone = live.now.proxy, self._peer_processes is None
        changes = FileChanges(self._source.path if alone else None)
        certificate = FileChanges(*proxy.tls_files if alone else ())
        certificate.found()
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            if certificate.found() and live.now.proxy.watch_config:
                os.kill(os.getpid(), signal.SIGHUP)
            try:
                if live.now.proxy.watch_config and self._secret_files.changed():
                    self._secret_files.read()
                if changes.found() and live.now.proxy.watch_config:
                    self.reloads.reload(self._source)
            except Exception as error:  # one of ours must not end the watch
                log.error("the config is not applied: %s", type(error).__name__)

    def look(self, *, dry_run: bool) -> Difference:
        """What the file would change. Raises: ConfigError."""
        try:
            return self.reloads.look(self._source)
        except ConfigError as error:
            if not dry_run:
                self.reloads.refused(error)
                if self._peer_processes is not None:
                    self.reloads.problems = []  # of the file, which is the same for all
                    self._refused.note(len(error.problems))
            raise

    async def apply(self, found: Difference) -> InForce:
        """Apply the file in all processes."""
        peers = self._peer_processes
        if peers is None:
            self._secret_files.read()
            self.reloads.apply(found)
            return InForce(1, 0)
        os.kill(self._supervisor, signal.SIGHUP)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + AGREE_S
        while True:
            reported = [*peers.other_configs(), self.reloads.digest]
            behind = sum(digest != found.read.digest for digest in reported)
            # Of a file that is in force already, the end of the mark alone shows that the supervisor has accepted it.
            if not (behind or self._refused.problems()) or loop.time() > deadline_s:
                return InForce(len(reported) - behind, behind)
            await asyncio.sleep(POLL_S)

    def _report(self) -> None:
        if self._peer_processes is not None:
            self._peer_processes.config_digest = self.reloads.digest
