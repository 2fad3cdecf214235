"""The image: built twice, then run as an ordinary user on a read-only root that has no shell."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.ports import free_ports
from tests.subjects.processes import EngineProcess, until
from warmroute.contract.version import VERSION
from warmroute_cli.processes import stop_all
from warmroute_proxy.server.base.secrets import new_api_key

from .container import IMAGE, ROOT, Image

FIRST_ID = ROOT / "build/image/id"
NAME = f"localhost/warmroute:{VERSION}"
GOAL_BYTES = 152_000_000
"""Of what the image has beyond its base, not compressed."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    found = Image(NAME, tmp_path_factory.mktemp("image"))
    print(f"\nthe image runs in {found.way}", file=sys.__stdout__)
    yield found
    found.close()


@contextmanager
def ending(proxy: "subprocess.Popen[str]", engine: EngineProcess) -> Iterator[None]:
    """SIGTERM ends the proxy with status 0."""
    try:
        yield
    finally:
        proxy.send_signal(signal.SIGTERM)
        status = proxy.wait(seconds(60))
        stop_all([engine.child], 5.0)
    assert status == 0


@pytest.mark.nightly
def test_two_builds_give_one_id(tmp_path: Path) -> None:
    """The first one was made by the set-up, `scripts/image build`."""
    second = tmp_path / "id"
    subprocess.run([IMAGE, "build", second], check=True)
    assert second.read_text() == FIRST_ID.read_text()


def test_it_says_what_it_is_and_needs_no_shell(image: Image) -> None:
    config = image.config
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["/opt/warmroute/bin/warmroute"]
    assert re.search(r"^HEALTHCHECK .*\\\n    CMD \[", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    assert config["Volumes"] == {"/var/lib/warmroute": {}}
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert labels["version"] == VERSION
    assert labels["licenses"] == "Apache-2.0"
    assert re.fullmatch("[0-9a-f]{40}|unknown", labels["revision"])


def test_it_is_small(image: Image) -> None:
    assert sum(image.layer_bytes[1:]) < GOAL_BYTES


def test_it_holds_the_compiled_build_and_nothing_that_installs(image: Image) -> None:
    assert image.run("warmroute", "--version").stdout == f"warmroute {VERSION} (compiled)\n"
    assert image.run("python", "-c", "import dns, redis, asyncpg, alembic").returncode == 0
    assert image.run("python", "-c", "import pip").returncode == 1
    assert image.run("sh", "-c", "true").returncode != 0


def test_its_packages_are_those_that_the_project_asks_for() -> None:
    """A pin that the project does not take any more is found here, before an image is built."""
    from packaging.requirements import Requirement

    pinned = dict(
        re.findall(r"^([a-z0-9-]+)==([^ ]+)", (ROOT / "deploy/image/requirements.txt").read_text(), re.MULTILINE)
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(each for name in _extras() for each in extras[name])]
    for each in map(Requirement, wanted):
        assert each.specifier.contains(pinned[each.name]), f"{each}: run scripts/image lock"


def _extras() -> list[str]:
    found = re.search(r"^extras=\((.+)\)$", IMAGE.read_text(), re.MULTILINE)
    assert found
    return found[1].split()


def test_the_proxy_runs_in_it_as_an_ordinary_user_on_a_read_only_root(image: Image, tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path, "e0", "aggregated").listening()
    (port,), (key, digest) = free_ports(1), new_api_key()
    (image.etc / "warmroute.toml").write_text(
        f'[proxy]\nregion = "here"\nport = {port}\nstate_dir = "/var/lib/warmroute"\n[secret]\nfile = "secret"\n'
        f'[[region]]\nname = "here"\nurl = ""\n[[model]]\nname = "kimi-k2.5"\nfree = true\n'
        f'[[tenant]]\nname = "a"\nkey_sha256 = ["{digest}"]\n{engine.toml("here")}\n'
    )
    secret = image.etc / "secret"
    secret.write_text("5" * 64)
    secret.chmod(0o400)
    os.chown(secret, 65532, 65532)
    config = ["--config", "/etc/warmroute/warmroute.toml"]
    assert image.run("warmroute", "health", *config).returncode == 1
    command = image.command("warmroute", "proxy", *config)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy, ending(proxy, engine):
        assert proxy.stdout is not None
        json.loads(proxy.stdout.readline())
        until(lambda: image.run("warmroute", "health", "--ready", *config).returncode == 0, "it is ready")
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        body = {"model": "kimi-k2.5", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
        answer = httpx.post(url, json=body, headers={"authorization": f"Bearer {key}"})
        assert answer.status_code == 200, answer.text
        assert (image.state / "ledger.sqlite").stat().st_uid == 65532
