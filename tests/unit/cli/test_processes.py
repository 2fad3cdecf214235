"""Children that listen, fail to, or do not stop when asked; and what is kept in the state directory."""

import fcntl
import math
import os
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.machine import seconds

from warmroute_cli.main import main
from warmroute_cli.processes import Child, FleetError, stop_all, stopping_on_signals
from warmroute_cli.running import Address, announced, running_in
from warmroute_cli.state import api_key, locked_state, secret_file
from warmroute_lab import up
from warmroute_lab.fleet import FleetOptions, LocalFleet, Proxy

LISTEN = 'print(\'{"event":"listening","url":"u"}\', flush=True)'
STAY = "import signal; signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
CTRL_C = "import os, signal; signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getppid(), signal.SIGINT))"


def child(tmp_path: Path, *lines: str) -> Child:
    return Child("child", [sys.executable, "-c", "\n".join(lines)], tmp_path)


def test_a_child_says_where_it_listens_and_stops_when_asked(tmp_path: Path) -> None:
    one = child(tmp_path, LISTEN, STAY)
    assert one.listening(time.monotonic() + seconds(10))["url"] == "u"
    assert one.running()
    stop_all([one], seconds(10))
    assert not one.running()


def test_a_child_that_ends_shows_its_last_words(tmp_path: Path) -> None:
    one = child(tmp_path, "raise SystemExit('no such model')")
    with pytest.raises(FleetError, match=r"child ended with status 1(?s:.*)no such model"):
        one.listening(time.monotonic() + seconds(10))
    stop_all([one], seconds(10))


def test_a_child_that_says_nothing_runs_into_the_deadline(tmp_path: Path) -> None:
    one = child(tmp_path, STAY)
    with pytest.raises(FleetError, match="did not listen in time"):
        one.listening(time.monotonic() + 0.1)
    stop_all([one], seconds(10))


def test_a_child_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    one = child(tmp_path, DEAF, LISTEN, "while True:", "    signal.pause()")
    one.listening(time.monotonic() + seconds(10))
    stop_all([one], 0.1)
    assert not one.running()


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal; a shell makes its background jobs ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_during_a_stop_ends_a_deaf_proxy_and_the_engines(tmp_path: Path) -> None:
    proxy = child(tmp_path, CTRL_C, LISTEN, "while True:", "    signal.pause()")
    proxy.listening(time.monotonic() + seconds(10))
    engine = child(tmp_path, STAY)
    fleet = LocalFleet(tmp_path, tmp_path, FleetOptions(), _children=[engine], _proxy_children=[proxy])
    with pytest.raises(KeyboardInterrupt):
        fleet.stop()
    assert (proxy.running(), engine.running()) == (False, False)


def test_printed_commands_use_the_state_directory_of_the_fleet(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    proxies = {"east": Proxy("east", "http://east", "http://admin", folder)}
    printed = up.greeting(LocalFleet(folder, folder, FleetOptions(), proxies=proxies))
    assert f"usage --session my-session --state-dir '{folder}'\n" in printed
    assert f"up --env --state-dir '{folder}'`" in printed


def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = (
        "import os, pathlib, sys, time; from warmroute_cli.processes import Child\n"
        f"one = Child('child', [sys.executable, '-c', {f'{LISTEN}; {STAY}'!r}], pathlib.Path.cwd())\n"
        f"one.listening(time.monotonic() + {seconds(10)})\n"
        "print(one.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    killed = subprocess.run([sys.executable, "-c", parent], cwd=tmp_path, capture_output=True, check=False)
    try:
        ended = os.pidfd_open(int(killed.stdout))
    except ProcessLookupError:
        return
    with os.fdopen(ended):
        assert select.select([ended], [], [], seconds(10))[0]


def test_a_child_hears_what_it_is_told(tmp_path: Path) -> None:
    one = child(tmp_path, "line = input()", "print(line, flush=True)", STAY)
    one.send({"west": "url"})
    assert one.listening(time.monotonic() + seconds(10)) == {"west": "url"}
    stop_all([one], seconds(10))


def test_sigterm_unwinds_like_ctrl_c() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), stopping_on_signals():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping_on_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_secret_and_key_are_kept_and_private(tmp_path: Path) -> None:
    key, path = api_key(tmp_path), secret_file(tmp_path)
    text = path.read_text()
    assert key.startswith("wr-")
    assert len(text.strip()) >= 32
    assert (api_key(tmp_path), secret_file(tmp_path).read_text()) == (key, text)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(key not in file.read_text() for file in tmp_path.iterdir())


def test_a_state_directory_holds_one_fleet_at_a_time(tmp_path: Path) -> None:
    with (
        locked_state(tmp_path / "state"),
        pytest.raises(FleetError, match="another fleet runs in"),
        locked_state(tmp_path / "state"),
    ):
        pass
    with locked_state(tmp_path / "state") as again:
        assert again.is_dir()


def test_the_addresses_of_a_fleet_that_was_killed_are_not_used(tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text('[{"region": "east", "url": "http://old", "admin_url": "http://old"}]')
    with locked_state(tmp_path):
        assert running_in(tmp_path) is None


def test_wait_takes_the_fleet_that_starts_here_and_else_one_of_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    here = ExitStack()

    def start_here(_s: float) -> None:
        held = here.enter_context(locked_state(Path(".warmroute")))
        here.enter_context(announced(held, [Address("east", "http://here", "http://admin")]))

    monkeypatch.setattr(time, "sleep", start_here)
    with locked_state(tmp_path / "other") as other, announced(other, [Address("east", "http://other", "")]):
        for first_s, timeout_s, url in (
            (0.0, math.inf, "other"),
            (math.inf, 0.0, "other"),
            (math.inf, math.inf, "here"),
        ):
            monkeypatch.setattr(up, "HERE_FIRST_S", first_s)
            monkeypatch.setattr(up, "START_TIMEOUT_S", timeout_s)
            with here:
                assert main(["up", "--wait"]) == 0
            assert f"http://{url}/" in capsys.readouterr().out


def test_a_command_that_looks_whether_a_fleet_runs_hinders_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "lock").open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        monkeypatch.setattr(time, "sleep", lambda _s: fcntl.flock(looking, fcntl.LOCK_UN))
        with locked_state(tmp_path):
            pass


def test_a_state_directory_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FleetError, match="cannot be used: Not a directory"), locked_state(tmp_path / "file" / "state"):
        pass
