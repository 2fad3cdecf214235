"""What an engine is started with: where it cannot start it says so in one line, and ends with 2."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.subjects.copies import ran

STORAGE = ("--enable-hierarchical-cache", "--hicache-storage-backend", "file", "--hicache-storage-backend-extra-config")


def refusal(*args: str) -> str:
    """The last line on stderr of an engine that does not start with these arguments."""
    command = [sys.executable, "-m", "warmroute_lab.engine", "--port", "0", *args]
    done = ran(command)
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--speed", "nan"), "--speed"),
        (("--speed", "inf"), "--speed"),
        (("--speed", "0"), "--speed"),
        (("--bootstrap-timeout-s", "inf"), "--bootstrap-timeout-s"),
        (("--enable-hierarchical-cache", "--hicache-ratio", "nan"), "--hicache-ratio"),
        (("--port", "-1"), "--port"),
        (("--port", "70000"), "between 0 and 65535"),
        (("--role", "prefill", "--bootstrap-port", "99999"), "--bootstrap-port"),
        (("--host", "no-such-host.invalid"), "cannot listen on no-such-host.invalid"),
        (("--page-size", "64", "--kv-tokens", "63"), "does not hold a page"),
        (("--role", "decode", "--enable-hierarchical-cache"), "keeps no cache"),
        (("--enable-hierarchical-cache", "--hicache-storage-backend", "file"), "needs a directory"),
        (("--enable-hierarchical-cache", "--hicache-storage-backend", "redis"), "redis"),
        (("--enable-hierarchical-cache", "--hicache-write-policy", "write_back"), "write_back"),
        ((*STORAGE, '{"prefetch_treshold":1}'), "prefetch_treshold"),
    ],
    ids=str,
)
def test_flags_that_make_no_sense(args: tuple[str, ...], said: str) -> None:
    assert said in refusal(*args)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"publisher":"zmq","endpoint":"tcp://*:65535"}', "2 ranks"),
        ('{"publisher":"zmq","endpoint":"tcp://127.0.0.1:0","bind":false}', "ports"),
        ('{"publisher":"zmq","endpoint":"tcp://no-such-host.invalid:0","bind":true}', "no-such-host.invalid"),
    ],
)
def test_kv_events_that_cannot_be_published(config: str, said: str) -> None:
    assert said in refusal("--dp-size", "2", "--kv-events-config", config)


def test_ports_that_are_taken(taken: int) -> None:
    assert f"127.0.0.1:{taken}" in refusal("--port", str(taken))
    assert f"127.0.0.1:{taken}" in refusal("--role", "prefill", "--bootstrap-port", str(taken))
    for name in ("endpoint", "replay_endpoint"):
        place = f"tcp://127.0.0.1:{taken}"
        config = {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "bind": True, name: place}
        assert place in refusal("--kv-events-config", json.dumps(config))


def test_a_storage_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    extra = json.dumps({"file_storage_path": str(tmp_path / "file" / "below")})
    assert "Not a directory" in refusal(*STORAGE, extra)
    assert "prefetch_threshold" in refusal(*STORAGE, '{"prefetch_threshold":-1}')


def test_the_name_that_charts_and_compose_files_use_starts_the_same_engine() -> None:
    helps = [
        subprocess.run([sys.executable, "-m", name, "--help"], capture_output=True, text=True, check=True).stdout
        for name in ("warmroute_backend.engine", "warmroute_lab.engine")
    ]
    assert helps[0] == helps[1]
    assert "--kv-tokens" in helps[0]
