"""The files of a deployment are sound by the programs that read them: Kubernetes, systemd, the proxy."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tests.machine import seconds
from tests.unit.plan.leader_worker_set import REQUIRED, wrong
from tests.unit.plan.plans import KINDS, kind

from warmroute_backend.plan.argv import argv
from warmroute_backend.plan.files import deployment_files
from warmroute_backend.plan.page import page
from warmroute_proxy.server.base.config_file import load_config

VERSIONS = ("1.33", "1.36")


def files(name: str) -> dict[str, str]:
    made = kind(name)
    return deployment_files(made, KINDS[name][0], page(made))


def manifests(name: str) -> dict[str, Any]:
    found = files(name)
    return {path: json.loads(text) for path, text in found.items() if path.startswith("kubernetes/") and "json" in path}


@pytest.mark.parametrize("name", KINDS)
def test_equal_plans_have_equal_files_and_each_process_one(name: str) -> None:
    found = files(name)
    assert found == files(name)
    made = kind(name)
    processes = [json.loads(text) for path, text in found.items() if path.startswith("processes/")]
    assert len(processes) == sum(engine.nodes for engine in made.engines)
    assert processes[0]["argv"] == argv(made, made.engines[0])
    stored = any(engine.storage == "mooncake" for engine in made.engines)
    assert any(name.startswith("mooncake-") for name in found) == stored


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_manifests_are_valid(name: str, version: str) -> None:
    for path, manifest in manifests(name).items():
        if manifest["kind"] != "LeaderWorkerSet":
            kubernetes_validate.validate(manifest, version, strict=True)
            continue
        assert wrong(manifest["spec"]) == [], path
        for required in REQUIRED:
            assert required.rpartition(".")[2] in manifest["spec"]["leaderWorkerTemplate"]
        for template in ("leaderTemplate", "workerTemplate"):
            pod = manifest["spec"]["leaderWorkerTemplate"][template]
            stand_in = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod["metadata"]}}
            kubernetes_validate.validate({**stand_in, "spec": pod["spec"]}, version, strict=True)


def test_a_table_that_accepts_all_would_be_no_table() -> None:
    spec = manifests("over nodes")["kubernetes/decode.json"]["spec"]
    assert wrong({**spec, "replica": 1}) == ["spec.replica"]
    assert wrong({**spec, "replicas": "3"}) == ["spec.replicas"]
    assert wrong({**spec, "startupPolicy": "Later"}) == ["spec.startupPolicy"]


def test_probes_ask_ready_and_a_group_starts_together() -> None:
    found = manifests("over nodes")["kubernetes/decode.json"]["spec"]
    assert found["replicas"] == 3
    leader = found["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0]
    assert leader["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert leader["startupProbe"]["httpGet"]["path"] == "/ready"
    two_nodes = manifests("an engine of two nodes")["kubernetes/aggregated.json"]["spec"]["leaderWorkerTemplate"]
    assert two_nodes["size"] == 2
    command = two_nodes["workerTemplate"]["spec"]["containers"][0]["command"]
    assert command[command.index("--node-rank") + 1] == "$(LWS_WORKER_INDEX)"
    assert "readinessProbe" not in two_nodes["workerTemplate"]["spec"]["containers"][0]


def test_a_pod_has_only_the_gpus_of_its_engine() -> None:
    for path in ("kubernetes/prefill.json", "kubernetes/decode.json"):
        template = manifests("inside a node")[path]["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        container = template["spec"]["containers"][0]
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
        assert container["command"][container["command"].index("--base-gpu-id") + 1] == "0"
        assert not any("NVLINK" in variable["name"] for variable in container["env"])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("path", ["proxy.toml", "kubernetes/proxy.toml"])
def test_the_proxys_config_is_sound_and_has_all_engines(tmp_path: Path, name: str, path: str) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text(files(name)[path])
    config = load_config(file)
    made = kind(name)
    assert [(engine.id, engine.role) for engine in config.engines] == [(each.name, each.role) for each in made.engines]
    assert len({engine.url for engine in config.engines}) == len(made.engines)
    assert config.models[0].context_tokens == made.engines[0].context_tokens
    prefills = [engine for engine in config.engines if engine.role == "prefill"]
    assert all(engine.bootstrap_host and engine.bootstrap_port for engine in prefills)


@pytest.mark.parametrize("name", KINDS)
def test_units_are_verified_by_systemd(tmp_path: Path, name: str) -> None:
    verify = shutil.which("systemd-analyze")
    units = {path.rpartition("/")[2]: text for path, text in files(name).items() if path.startswith("systemd/")}
    assert "warmroute-proxy.service" in units
    for unit, text in units.items():
        assert "/usr/bin/env" not in text
        here = re.sub(r"(?m)^ExecStart=/opt/\S+", f"ExecStart={sys.executable}", text)  # verify looks for the program
        (tmp_path / unit).write_text(here)
        assert "TimeoutStopSec=" in text
    if verify is None:  # a machine without systemd; the words above are checked all the same
        return
    done = subprocess.run(
        [verify, "verify", "--man=no", *map(str, sorted(tmp_path.glob("*.service")))],
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds(30),
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or ".service" in line]
    assert complaints == []


def test_a_unit_passes_values_as_they_are() -> None:
    text = next(text for path, text in files("over nodes").items() if path.endswith("sglang-prefill-0.service"))
    assert 'Environment="NAME=a \\"quoted\\" %% $value"' in text
    assert '"{\\"publisher\\": \\"zmq\\"' in text


def test_host_memory_is_divided_between_hicache_and_the_store() -> None:
    made = kind("over nodes")
    engine = made.engines[0]
    config = json.loads(files("over nodes")[f"mooncake-tp{engine.shape.attention_tp}.json"])
    segments = config["global_segment_size"] // engine.shape.attention_tp * 8  # SGLang's rule: `mooncake_store.py:446`
    assert engine.hicache is not None
    assert engine.hicache.size_gb * 8 * 1e9 + segments <= 0.8 * made.cluster.gpu.host_memory_gib * 2**30
