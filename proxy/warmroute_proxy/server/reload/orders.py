"""Orders to reload the config, by SIGHUP, by a change of the watched file, or by an operator, in all processes.

If a proxy has one process, it applies the file by itself. With several processes, the supervisor (their parent process)
checks the file and keeps a copy of the bytes that it accepts, and each process applies the copy. A file with a problem
changes no process; the *mark*, a file in the state folder, then tells all processes of the problem. An operator's order
to one process goes to the supervisor. The order is answered once all running processes report the new file and the mark
is gone, or after `AGREE_S`.
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
    """How many of the proxy's processes have a config in force, and how many are still behind."""

    processes: int
    behind: int


class ReloadOrders:
    """Carries out orders to reload in this process. `peer_processes`: the proxy's other processes, if any."""

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
        """The problems to report: a config file that was refused, and the problems of discovery."""
        count = len(self.reloads.problems)
        if self._peer_processes is not None:
            count = count or self._refused.problems()
        text = f"the config file has {count} problems, and the one before is in force"
        found = [Problem(Trouble.CONFIG_REFUSED, text)] if count else []
        return [*found, *self.reloads.discovery.problems()]

    def hung_up(self) -> None:
        """Reload at SIGHUP. In a single process it comes from an operator, else from the supervisor, which has checked
        the file.
        """
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
        """Apply the file when it changes, if `watch_config` is on. A new certificate causes a SIGHUP.

        With several processes, the supervisor watches the config file and the certificate, and each process watches
        only the other secret files.
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
            except Exception as error:  # a bug must not end the watch
                log.error("the config is not applied: %s", type(error).__name__)

    def look(self, *, dry_run: bool) -> Difference:
        """What the file would change. Raises: ConfigError, whose problems `problems` then reports, unless `dry_run`."""
        try:
            return self.reloads.look(self._source)
        except ConfigError as error:
            if not dry_run:
                self.reloads.refused(error)
                if self._peer_processes is not None:
                    self.reloads.problems = []  # the mark has them instead, since they concern all processes
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
            # If the file is in force already, only the mark's removal shows that the supervisor has accepted it.
            if not (behind or self._refused.problems()) or loop.time() > deadline_s:
                return InForce(len(reported) - behind, behind)
            await asyncio.sleep(POLL_S)

    def _report(self) -> None:
        if self._peer_processes is not None:
            self._peer_processes.config_digest = self.reloads.digest
