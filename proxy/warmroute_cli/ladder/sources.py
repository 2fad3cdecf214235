"""What the ladder's turns are read from."""

from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from warmroute_cli.asking import since_parameter
from warmroute_cli.ladder.logs import LogTurns, log_source
from warmroute_cli.own_rows import folders_in, rows_of
from warmroute_cli.past import UP
from warmroute_proxy.ladder.of_entries import turn_of
from warmroute_proxy.ladder.turn import LadderTurn
from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.control.usage_question import read_question


def source_of(arguments: Namespace) -> LogTurns:
    """The turns that a command line asks for. Raises: ApiError, ValueError, sqlite3.Error, OSError,
    ConfigError, Refusal.
    """
    since_s = _since(arguments.since)
    if arguments.config is not None and arguments.paths:
        raise ValueError("--config names a ledger itself: leave out it or the paths")
    if arguments.paths and not all(path.is_dir() for path in arguments.paths):
        if arguments.since is not None:
            raise ValueError("--since is for ledgers: leave it out with logs")
        return log_source(arguments)
    if arguments.price or arguments.kv_tokens is not None or arguments.format is not None:
        raise ValueError("--price, --kv-tokens and --format are for logs: a ledger has its own rates and losses")
    folders = _folders(arguments)
    about = {"kind": "ledger", "paths": [str(folder) for folder in folders], "since": since_s}
    return LogTurns(about, _of_ledgers(folders, since_s), [])


def _folders(arguments: Namespace) -> list[Path]:
    if arguments.config is not None:
        return folders_in(load_config(arguments.config).proxy.state_dir)
    if arguments.paths:
        found = [folder for path in arguments.paths for folder in folders_in(path)]
        return list({folder.resolve(): folder for folder in reversed(found)}.values())[::-1]
    return folders_in(arguments.state_dir / UP)


def _of_ledgers(folders: list[Path], since_s: float | None) -> Iterator[LadderTurn]:
    for folder in folders:
        for entry in rows_of(folder, since_s):
            if since_s is None or entry.settled_at >= since_s:
                yield turn_of(entry)


def _since(text: str | None) -> float | None:
    if text is None:
        return None
    now = datetime.now(UTC).astimezone()
    return read_question([("since", since_parameter(text, now))], ("since",), now.timestamp()).since_s
