"""Engines from a folder of files and from SRV records: they join, and stay while their source is away."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.subjects.dns_server import NAME, DnsServer
from tests.subjects.processes import until

from .reload_scene import Scene, kill, receipt

pytestmark = pytest.mark.full


@pytest.fixture
def dns_server() -> Iterator[DnsServer]:
    server = DnsServer()
    yield server
    server.close()


@pytest.fixture
def scene(tmp_path: Path, dns_server: DnsServer) -> Iterator[Scene]:
    """The config names e0; e1 is for the folder, e2 for the records. Made anew: a source keeps its last engine."""
    (tmp_path / "engines").mkdir()
    sources = f"""
[[discovery]]
id = "files"
kind = "folder"
path = "{tmp_path / "engines"}"
interval_s = 0.1

[[discovery]]
id = "records"
kind = "srv"
name = "{NAME}"
servers = ["{dns_server.address}"]
interval_s = 0.1
"""
    with Scene(tmp_path, named=1, more=sources) as found:
        yield found


def put(folder: Path, name: str, url: str, *lines: str) -> None:
    draft = folder / f"{name}.new"
    draft.write_text("\n".join([f'url = "{url}"', *lines]))
    draft.replace(folder / f"{name}.toml")


def engines_folder(scene: Scene) -> Path:
    return scene.proxy.folder.parent / "engines"


def is_away(scene: Scene, source: str) -> bool:
    return any(f"discovery {source} is away" in each for each in scene.ready().get("degraded", []))


def test_an_engine_of_a_folder_joins_leaves_and_stays_while_the_folder_is_away(scene: Scene) -> None:
    folder = engines_folder(scene)
    put(folder, "e1", scene.engines[1].url)
    until(lambda: scene.states().get("e1") == "up", "e1 has joined")
    folder.rename(folder.with_name("away"))
    until(lambda: is_away(scene, "files"), "the folder is away")
    assert 'warmroute_discovery_up{source="files"} 0' in scene.metrics()
    assert scene.states()["e1"] == "up"
    folder.with_name("away").rename(folder)
    put(folder, "e2", scene.engines[2].url)
    (folder / "e1.toml").unlink()
    until(lambda: scene.states() == {"e0": "up", "e2": "up"}, "the folder is back with another engine")
    assert not is_away(scene, "files")


def test_an_engine_whose_id_is_taken_is_named_and_not_used(scene: Scene) -> None:
    folder = engines_folder(scene)
    put(folder, "e1", scene.engines[1].url)
    put(folder, "other", scene.engines[2].url, 'id = "e0"')
    until(
        lambda: "engines are not used: the log says which" in str(scene.ready().get("degraded")),
        "the log names the engine",
    )
    assert 'warmroute_discovery_problems{source="files"} 1' in scene.metrics()
    assert 'id "e0" is taken by the config' in scene.log()
    assert scene.states()["e0"] == "up"
    (folder / "other.toml").unlink()
    until(lambda: "not used" not in str(scene.ready()), "it is gone")


def test_what_was_found_is_there_after_a_restart_without_its_source(scene: Scene, dns_server: DnsServer) -> None:
    port = urlsplit(scene.engines[2].url).port
    found = f"127.0.0.1:{port}"
    dns_server.records = [f"10 0 {port} 127.0.0.1."]
    put(engines_folder(scene), "e1", scene.engines[1].url)
    until(lambda: scene.states() == {"e0": "up", "e1": "up", found: "up"}, "both sources have one")
    with scene.proxy.admin() as admin:
        admin.post(f"/admin/engines/{found}/drain").raise_for_status()
    before = {"e0": "up", "e1": "up", found: "draining"}
    assert scene.states() == before
    dns_server.records = None
    engines_folder(scene).rename(engines_folder(scene).with_name("away"))
    until(lambda: is_away(scene, "files") and is_away(scene, "records"), "both sources are away")
    assert scene.states() == before
    scene.proxy.stop()
    scene.proxy.start()
    until(lambda: scene.states() == before, "all engines are back, and the one that was drained drains still")


def test_processes_that_are_started_again_know_what_a_found_engine_has_cached(tmp_path: Path) -> None:
    folder = tmp_path / "engines"
    folder.mkdir()
    source = f'[[discovery]]\nkind = "folder"\npath = "{folder}"\ninterval_s = 0.1'
    with Scene(tmp_path, "processes = 2", named=1, more=source) as scene:
        put(folder, "e1", scene.engines[1].url)
        until(lambda: all(scene.states().get("e1") == "up" for _ in range(12)), "it is up in each process")
        with scene.proxy.admin() as admin:
            admin.post("/admin/engines/e0/drain").raise_for_status()
        until(lambda: all(scene.states()["e0"] == "draining" for _ in range(12)), "only the found one gets requests")
        scene.ask("found").raise_for_status()
        for number in range(2):
            kill(scene, number)
        assert receipt(scene.ask("found", turns=2))["predicted_cached"] > 0
