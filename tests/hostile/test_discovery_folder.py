"""Who may write into a folder of engines gets no other file of the proxy, and does not hold it up."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.subjects.processes import PLAIN, ProxyProcess, until
from tests.subjects.scripted import Handler, ScriptedEngine, whole
from tests.subjects.stopped import Stopped
from warmroute_proxy.server.base.secrets import SecretError, bearer

SECRET = "0123456789abcdef0123456789abcdef"
"""That of the fleet, which the harness writes beside the folder of a proxy."""


class Scene(Stopped):
    """A proxy with one engine of its own and a folder for more, and an engine of the attacker's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "engines"
        self.keys = folder / "keys"
        self.folder.mkdir()
        self.keys.mkdir()
        (self.folder / "other.toml").write_text('url = "http://127.0.0.1:9"')  # a folder with no engine at all is away
        self.mine, self.theirs = ScriptedEngine("mine", serve), ScriptedEngine("theirs", serve)
        table = f'[[discovery]]\nid = "files"\npath = "{self.folder}"\nkey_folder = "{self.keys}"\ninterval_s = 0.1'
        self.proxy = ProxyProcess(folder / "p", [self.mine.toml(), table]).start()
        self.secret = folder / "secret"

    def put(self, name: str, key_file: str) -> None:
        draft = self.folder / f"{name}.new"
        draft.write_text(f'url = "{self.theirs.url}"\nkey_file = "{key_file}"')
        draft.replace(self.folder / f"{name}.toml")

    def degraded(self) -> str:
        return str(httpx.get(f"{self.proxy.url}/ready", verify=PLAIN).json().get("degraded"))

    def joined(self) -> bool:
        text = self.proxy.metrics()
        return 'warmroute_engine_up{engine="a"} 1' in text

    def stop(self) -> None:
        self.proxy.stop()
        for engine in (self.mine, self.theirs):
            engine.stop()


def serve(handler: Handler) -> None:
    handler.reply(200, whole({"prompt_tokens": 5, "completion_tokens": 1}))


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Scene(tmp_path) as made:
        yield made


def test_no_other_file_is_sent_to_an_engine(scene: Scene) -> None:
    assert scene.secret.read_text().strip() == SECRET
    (scene.folder / "linked.key").symlink_to(scene.secret)
    (scene.folder / "up").symlink_to(scene.folder.parent)
    for key_file in (str(scene.secret), "../secret", "linked.key", "up/secret"):
        scene.put("a", key_file)
        until(lambda: "engines are not used: the log says which" in scene.degraded(), "it is not used")
        (scene.folder / "a.toml").unlink()
        until(lambda: "not used" not in scene.degraded(), "it is gone")
    assert scene.theirs.heads == []
    assert scene.theirs.healths == 0


def test_keys_of_the_folders_are_used_as_kubernetes_mounts_them(scene: Scene) -> None:
    data = scene.folder / "..2026"
    data.mkdir()
    (data / "own.key").write_text("own-key")
    (scene.folder / "..data").symlink_to("..2026")
    (scene.folder / "own.key").symlink_to("..data/own.key")
    (scene.keys / "other.key").write_text("other-key")
    for key_file in ("own.key", str(scene.keys / "other.key")):
        scene.put("a", key_file)
        until(scene.joined, "it has joined")
        (scene.folder / "a.toml").unlink()
        until(lambda: not scene.joined(), "it has left")


def test_a_file_that_is_replaced_after_it_was_checked_is_not_read(tmp_path: Path) -> None:
    inside, secret = tmp_path / "engines", tmp_path / "secret"
    inside.mkdir()
    secret.write_text(SECRET)
    key = inside / "a.key"
    key.write_text("a-key")
    assert bearer(key, [inside]) == "authorization: Bearer a-key\r\n"
    key.unlink()
    key.symlink_to(secret)
    with pytest.raises(SecretError, match="is not in"):
        bearer(key, [inside])


def test_a_pipe_ends_neither_discovery_nor_keeps_the_proxy_from_ending(scene: Scene) -> None:
    os.mkfifo(scene.folder / "pipe.toml")
    os.mkfifo(scene.folder / "pipe.key")
    (scene.folder / "terminal.toml").symlink_to("/dev/zero")
    (scene.folder / "up.toml").symlink_to(scene.secret)
    until(lambda: "3 of its engines cannot be read" in scene.degraded(), "they are named")
    scene.put("a", "pipe.key")
    until(lambda: "engines are not used: the log says which" in scene.degraded(), "it is not used")
    (scene.folder / "a.key").write_text("a-key")
    scene.put("a", "a.key")
    until(scene.joined, "the others are read")
    child = scene.proxy.child
    assert child is not None
    os.kill(child.pid, signal.SIGTERM)
    until(lambda: not child.running(), "the proxy has ended")
