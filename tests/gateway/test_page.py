"""docs/how-to/gateway.md, followed: its config, its Envoy, its turn."""

import hashlib
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import yaml

from tests.gateway.test_protocol import answers
from tests.machine import seconds
from tests.subjects.gateway import ENVOY, Picker, page_block
from tests.subjects.ports import free_port
from tests.subjects.processes import until
from tests.subjects.scripted import ScriptedEngine


class PagePicker(Picker):
    """A picker with the page's config."""

    def write_config(self, port: int = 0) -> Path:
        return self.config


def test_the_page_can_be_followed(tmp_path: Path) -> None:
    assert "pip install 'warmroute[proxy,epp]'" in page_block("install")
    engines = [ScriptedEngine(name, answers) for name in ("one", "two")]
    picker = PagePicker(tmp_path, [])
    key = picker.keys[0]
    clients, grpc_port = free_port(), free_port()
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_text("ab" * 32)
    text = page_block("warmroute.toml").replace("DIGEST", hashlib.sha256(key.encode()).hexdigest())
    for number, engine in enumerate(engines):
        text = text.replace(f"http://127.0.0.1:3000{number}", engine.url)
    picker.state_dir = tmp_path / "state"
    text = text.replace("[secret]", f'state_dir = "{picker.state_dir}"\n[secret]', 1)
    picker.config = tmp_path / "warmroute.toml"
    picker.config.write_text(text.replace("port = 9002", f"port = {grpc_port}"))
    check = page_block("start").splitlines()[0]
    assert check == "warmroute epp --config warmroute.toml --check"
    envoy: subprocess.Popen[bytes] | None = None
    try:
        picker.start()
        config = page_block("envoy.yaml").replace("9002", str(grpc_port)).replace("8080", str(clients))
        for number, engine in enumerate(engines):
            config = config.replace(f"3000{number}", engine.url.rpartition(":")[2])
        assert yaml.safe_load(config)
        (tmp_path / "envoy.yaml").write_text(config)
        command = [str(ENVOY), "-c", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id", "-l", "error"]
        envoy = subprocess.Popen(command, cwd=tmp_path)
        words = shlex.split(page_block("turn").replace("8080", str(clients)).replace("\\\n", " "), posix=True)
        words = [word.replace("$KEY", key) for word in words]
        found = until(lambda: _turn(words), "Envoy answers a turn with a receipt")
        assert re.fullmatch(r"wr-[0-9a-f]+", found)
        assert picker.row(found)["outcome"] == "completed"
    finally:
        if envoy is not None:
            envoy.terminate()
            envoy.wait(seconds(10))
        picker.stop()
        for engine in engines:
            engine.stop()


def _turn(words: list[str]) -> str:
    """The id of its receipt; empty while Envoy does not listen, or has not found the picker healthy."""
    done = subprocess.run([*words, "-s"], capture_output=True, env=os.environ, timeout=seconds(20), check=False)
    if done.returncode or b"warmroute" not in done.stdout:
        return ""
    return str(json.loads(done.stdout)["usage"]["warmroute"]["id"])
