"""docs/how-to/production.md, followed as far as that goes without a cluster and where systemd does not run."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plan.plans import kind
from warmroute_backend.plan.files import deployment_files
from warmroute_proxy.server.main import serve

from .charts import CHART, Rendered, render_with
from .container import IMAGE, ROOT

PAGE = (ROOT / "docs/how-to/production.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def commands(language: str) -> Iterator[list[str]]:
    """The words of each command in blocks of this language."""
    for block in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split(" && "):
                if words := shlex.split(part, comments=True):
                    yield words


SHOWN = [*commands("sh"), *commands("text")]


def of(program: str, *words: str) -> list[list[str]]:
    return [each for each in SHOWN if each[: len(words) + 1] == [program, *words]]


def test_the_image_is_built_by_what_the_page_says() -> None:
    """The set-up of these tests runs the same (`scripts/deploy`), so each of these commands has just worked."""
    set_up = (ROOT / "scripts/deploy").read_text() + (ROOT / "scripts/compiled-tests").read_text()
    for words in commands("sh"):
        assert " ".join(words) in set_up
    assert of("scripts/image", "install")
    assert of("scripts/image", "build")


def test_the_table_of_the_image_is_true() -> None:
    containerfile = (ROOT / "Containerfile").read_text()
    assert "USER 65532:65532" in containerfile
    for path in ("/var/lib/warmroute", "/etc/warmroute/warmroute.toml"):
        assert f"`{path}`" in PAGE
        assert path in containerfile


def installed(words: list[str], folder: Path) -> Rendered:
    """What `helm install NAME CHART ...` would send to the cluster."""
    assert (ROOT / words[3]).resolve() == CHART
    pairs = [words[at + 1].replace("DIGEST", "5" * 64) for at, word in enumerate(words) if word == "--set"]
    files = [folder / words[at + 1] for at, word in enumerate(words) if word == "--values"]
    return render_with(words[2], pairs, files)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `warmroute plan --out deployment` was run."""
    for path, text in deployment_files(kind("inside a node"), "model", "").items():
        (tmp_path / "deployment" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "deployment" / path).write_text(text)
    return tmp_path


def test_each_installation_renders_and_names_the_secret_that_the_page_makes(folder: Path) -> None:
    secret = of("kubectl", "create", "secret", "generic")[0]
    name, key = secret[4], secret[5].removeprefix("--from-literal=").partition("=")[0]
    installations = of("helm", "install")
    assert len(installations) == 2
    for words in installations:
        found = installed(words, folder)
        assert not found.refused
        mounts = [each["secret"] for each in found.pod()["volumes"] if "secret" in each]
        assert mounts[0]["secretName"] == name
        assert mounts[0]["items"] == [{"key": key, "path": "secret"}]


def test_the_kind_cluster_gets_the_image_that_was_built(folder: Path) -> None:
    """Out of the store of `scripts/image`, which neither Docker nor kind can read."""
    assert not of("kind", "load", "docker-image")
    archive = of("kind", "load", "image-archive")[0][3]
    pushed = {words[4]: words[3] for words in of("scripts/image", "store", "push")}
    loaded = next(name for target, name in pushed.items() if target == f"docker-archive:{archive}:{name}")
    assert f"docker-daemon:{loaded}" in pushed
    trial = installed(of("helm", "install")[0], folder)
    assert {each["image"] for each in trial.pod()["containers"]} == {loaded}
    assert loaded.startswith("localhost/warmroute:")
    assert "localhost/warmroute:$version" in IMAGE.read_text()
    secret = folder / "secret"
    secret.write_text("5" * 64)
    secret.chmod(0o400)
    config = folder / "warmroute.toml"
    config.write_text(trial.config().replace("/etc/warmroute-secrets/fleet/secret", str(secret)))
    assert serve(str(config), True, None) == 0
    engines = trial.one("StatefulSet", f"{of('helm', 'install')[0][2]}-warmroute-engine")
    assert engines["spec"]["replicas"] == 2


def test_the_machine_without_containers_gets_what_its_unit_starts() -> None:
    environment = of("python3", "-m", "venv")[0][3]
    wanted = of(f"{environment}/bin/pip", "install")[0][2]
    extras = re.fullmatch(r"warmroute\[(.+)\]", wanted)
    assert extras
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    unit = (ROOT / of("cp")[0][1]).read_text()
    assert f"ExecStart={environment}/bin/warmroute " in unit
    assert f"User={of('useradd')[0][-1]}\n" in unit
    assert of("install")[0][-1] == "/etc/warmroute"
    assert of("systemctl", "enable", "--now")[0][3] == Path(of("cp")[0][1]).stem
