"""The Compose file by its schema, and each config in it by the program that reads it. No container is started."""

import os
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.machine import seconds
from tests.subjects.stores import Postgres, Redis
from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.main import serve

from .container import ROOT

FOLDER = ROOT / "deploy/compose"
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
OWN = {"east", "west", "migrate", "engine-east-0", "engine-east-1", "engine-west-0", "engine-west-1"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the folder in which `prepare` was run, as docs/how-to/compose.md says."""
    folder = tmp_path_factory.mktemp("compose") / "compose"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("secrets"))
    path = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    subprocess.run([folder / "prepare"], check=True, env={**os.environ, "PATH": path}, timeout=seconds(60))
    return folder


def test_prepare_leaves_nothing_behind_when_it_fails_and_can_be_run_again(tmp_path: Path) -> None:
    folder, programs = tmp_path / "compose", tmp_path / "bin"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("secrets"))
    programs.mkdir()
    (programs / "warmroute").write_text("#!/bin/sh\nexit 3\n")
    (programs / "warmroute").chmod(0o755)
    for path, status in ((programs, 3), (ROOT / ".venv/bin", 0)):
        variables = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
        done = subprocess.run([folder / "prepare"], check=False, env=variables, timeout=seconds(60))
        assert (done.returncode, (folder / "config/secrets").exists()) == (status, status == 0)


def test_what_is_no_proxy_is_not_asked_for_a_proxys_health() -> None:
    """The image's own check would find `engine-*` and `migrate` unhealthy for ever."""
    for name in OWN - {"east", "west"}:
        assert COMPOSE["services"][name]["healthcheck"] == {"disable": True}


@pytest.mark.parametrize("region", ["east", "west"])
def test_a_watched_config_is_in_a_mounted_folder(region: str) -> None:
    """A mount of one file stays at what an editor has replaced."""
    service = COMPOSE["services"][region]
    for command in (service["command"], service["healthcheck"]["test"]):
        assert command[-2:] == ["--config", f"/etc/warmroute/{region}.toml"]
    folder = next(each for each in service["volumes"] if ":/etc/warmroute:" in each).partition(":")[0]
    assert (FOLDER / folder / f"{region}.toml").is_file()
    assert not any(each.partition(":")[0].endswith(".toml") for each in service["volumes"])


def test_it_is_a_compose_file() -> None:
    check = [str(ROOT / ".venv-deploy/bin/check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    subprocess.run([*check, str(FOLDER / "compose.yaml")], check=True, capture_output=True, timeout=seconds(60))


def test_all_that_it_mounts_is_there(prepared: Path) -> None:
    mounts = [each.partition(":")[0] for one in COMPOSE["services"].values() for each in one.get("volumes", [])]
    mounts += [each["file"] for each in COMPOSE["secrets"].values()]
    for path in (each for each in mounts if each.startswith(".")):
        inside = (prepared if path.startswith("./") else FOLDER) / path
        assert inside.exists(), path
    assert {each for each in mounts if not each.startswith(".")} == set(COMPOSE["volumes"])


def test_ours_may_nothing_and_clients_reach_this_machine_alone() -> None:
    for name, service in COMPOSE["services"].items():
        if name in OWN:
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
        assert re.search(r":\D*\d", service["image"]), "pinned"
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("region", ["east", "west"])
def test_the_proxies_take_their_configs(prepared: Path, region: str, tmp_path: Path) -> None:
    path = prepared / f"config/{region}.toml"
    path.write_text(path.read_text().replace("/var/lib/warmroute", str(tmp_path)))
    assert serve(str(path), True, None) == 0
    config = load_config(path)
    assert {f"engine-{engine.id}" for engine in config.engines} <= set(COMPOSE["services"])
    grace = int(COMPOSE["services"][region]["stop_grace_period"].removesuffix("s"))
    assert grace > config.limits.shutdown_grace_s


def test_prometheus_takes_its_config(prepared: Path, tmp_path: Path) -> None:
    text = (prepared / "config/prometheus.yml").read_text()
    rules = tmp_path / "rules"
    rules.mkdir()
    shutil.copy(ROOT / "docs/reference/prometheus-rules.yml", rules / "warmroute.yml")
    text = text.replace("/etc/prometheus/rules", str(rules))
    text = text.replace("/etc/prometheus/admin-key", str(prepared / "config/secrets/admin-key"))
    (tmp_path / "prometheus.yml").write_text(text)
    done = subprocess.run(
        [ROOT / "scripts/promtool", "check", "config", tmp_path / "prometheus.yml"],
        capture_output=True, text=True, check=False, timeout=seconds(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 rule files found" in done.stdout


@pytest.mark.parametrize("initialises", [False, True])
def test_postgresql_takes_its_config_and_is_healthy_once_it_listens(initialises: bool) -> None:
    """Started as its image does: the data here, the config there, and for the volume's initialisation no TCP."""
    database = Postgres()
    try:
        config = database.folder / "postgresql.conf"
        shutil.copy(FOLDER / "config/postgresql.conf", config)
        words = ["-D", str(database.data), "-c", f"config_file={config}", "-k", str(database.folder)]
        words += ["-c", "listen_addresses="] if initialises else []
        database.host = str(database.folder)
        database.launch([str(database.bin / "postgres"), *words, "-p", str(database.port)])
        where = {"PGHOST": database.host, "PGPORT": str(database.port)}
        _, program, *check = COMPOSE["services"]["database"]["healthcheck"]["test"]
        done = subprocess.run([database.bin / program, *check], check=False, env=where, timeout=seconds(30))
        assert (done.returncode != 0) is initialises
        dsn = f"postgresql://warmroute@/postgres?host={database.host}&port={database.port}"
        assert database.sql("SHOW max_connections", dsn) == ["50"]
    finally:
        database.stop()


def test_valkey_takes_its_config() -> None:
    """By Redis 7, which reads the same."""
    cache = Redis()
    try:
        config = cache.folder / "valkey.conf"
        shutil.copy(FOLDER / "config/valkey.conf", config)
        cache.launch(["redis-server", str(config), "--port", str(cache.port)])
        with socket.create_connection(("127.0.0.1", cache.port), seconds(10)) as client:
            client.sendall(b"CONFIG GET maxmemory-policy\r\n")
            assert b"noeviction" in client.recv(1000)
    finally:
        cache.stop()


def test_grafana_is_given_prometheus_and_the_dashboards() -> None:
    """No Grafana can be had here: what it would read is compared with the Compose file."""
    source = yaml.safe_load((FOLDER / "grafana/datasources/prometheus.yaml").read_text())["datasources"][0]
    assert source["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((FOLDER / "grafana/dashboards/warmroute.yaml").read_text())["providers"][0]
    mounts = COMPOSE["services"]["grafana"]["volumes"]
    assert f"../grafana:{provider['options']['path']}:ro" in mounts


def test_the_collector_has_a_receiver_and_uses_all_that_it_names() -> None:
    config = yaml.safe_load((FOLDER / "config/collector.yaml").read_text())
    for pipeline in config["service"]["pipelines"].values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) == set(config[kind])
