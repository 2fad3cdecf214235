"""The files of a deployment are sound by the programs that read them: Kubernetes, systemd, the proxy."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from tests.machine import seconds
from tests.unit.plan.leader_worker_set import REQUIRED, wrong
from tests.unit.plan.plans import KINDS, kind, plan

from warmroute_backend.plan.argv import argv, mooncake_file
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.files import deployment_files
from warmroute_backend.plan.hardware import GIB
from warmroute_backend.plan.measured import page
from warmroute_backend.plan.tiers import RESERVE_GIB, host_bytes
from warmroute_proxy.server.base.config_file import load_config

pytestmark = pytest.mark.full

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
    engines = [each for each in processes if not each["name"].startswith("lmcache-node")]
    assert len(engines) == sum(engine.nodes for engine in made.engines)
    assert engines[0]["argv"] == argv(made, made.engines[0])
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
        assert container["resources"]["limits"] == {"nvidia.com/gpu": "4", "rdma/hca_shared_devices_a": "1"}
        assert container["command"][container["command"].index("--base-gpu-id") + 1] == "0"
        assert not any("NVLINK" in variable["name"] for variable in container["env"])


def leader(path: str, name: str = "over nodes", **site: str) -> dict[str, Any]:
    """The pod of an engine's leader."""
    return leader_of(replace(kind(name), site=replace(kind(name).site, **site)), path)  # type: ignore[arg-type]


def leader_of(made: Plan, path: str) -> dict[str, Any]:
    found = json.loads(deployment_files(made, made.model.name, page(made))[f"kubernetes/{path}.json"])
    pod: dict[str, Any] = found["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    return pod


def test_engines_start_after_the_stores_master_and_decode_after_prefill() -> None:
    found = manifests("over nodes")
    master = found["kubernetes/mooncake-master.json"]["spec"]["template"]["spec"]["containers"][0]
    service = found["kubernetes/mooncake-master-service.json"]
    address = f"{service['metadata']['name']}.default.svc"
    assert service["spec"]["ports"][0]["port"] == master["ports"][0]["containerPort"]
    for config in found["kubernetes/mooncake.json"]["data"].values():
        assert json.loads(config)["master_server_address"] == f"{address}:{master['ports'][0]['containerPort']}"
    prefill, decode = leader("prefill")["initContainers"], leader("decode")["initContainers"]
    assert [each["command"][-2:] for each in prefill] == [[address, "50051"]]
    assert [each["command"][-2] for each in decode] == [address, "prefill-0.prefill.default.svc"]
    assert "initContainers" in found["kubernetes/decode.json"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]


def test_lmcaches_daemon_is_a_unit_a_sidecar_and_a_process_of_the_same_size() -> None:
    made = kind("LMCache")
    unit = files("LMCache")["systemd/lmcache.service"]
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert command.startswith("ExecStart=/opt/sglang/bin/lmcache server --host 127.0.0.1")
    size = int(command.split("--l1-size-gb ")[1].split()[0])
    assert 1_000 < size < made.cluster.gpu.host_memory_gib - RESERVE_GIB
    assert "Environment=LMCACHE_TRACK_USAGE=false" in unit
    assert "/healthcheck" in unit, "engines start when it answers"
    engine = files("LMCache")["systemd/sglang-aggregated-0.service"]
    assert "Requires=lmcache.service\nAfter=lmcache.service" in engine
    assert "--lmcache-config-file /etc/warmroute/lmcache.yaml" in engine
    assert files("LMCache")["lmcache.yaml"] == "mp_host: 127.0.0.1\nmp_port: 6555\n"

    pod = leader("aggregated", "LMCache")
    (sidecar,), (container,) = pod["initContainers"], pod["containers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["command"][1:] == shlex.split(command)[1:]
    assert sidecar["resources"]["requests"]["memory"] == f"{size + 4}Gi"
    assert container["resources"]["requests"]["memory"] == "32Gi", "what the daemon has is the daemon's"
    assert pod["hostIPC"] is True
    config = json.loads(files("LMCache")["kubernetes/lmcache.json"])
    assert config["data"]["lmcache.yaml"] == files("LMCache")["lmcache.yaml"]
    assert {"name": "lmcache", "mountPath": "/etc/warmroute"} in container["volumeMounts"]

    process = json.loads(files("LMCache")["processes/lmcache-node0.json"])
    assert process["argv"][1:] == sidecar["command"][1:]


def test_engines_that_share_a_daemon_have_one_store_for_the_proxy() -> None:
    made = plan("gpt-oss-120b", "8xH200", lmcache=True, objective="throughput", speculation=False)
    found = tomllib.loads(deployment_files(made, "it", "")["proxy.toml"])
    assert len(found["engine"]) == 8
    assert {each["store"] for each in found["engine"]} == {"lmcache-node0"}
    pods = tomllib.loads(deployment_files(made, "it", "")["kubernetes/proxy.toml"])
    assert not any("store" in each for each in pods["engine"]), "each pod has a daemon of its own"
    assert "--separate-object-groups" in deployment_files(made, "it", "")["systemd/lmcache.service"]


def test_two_pods_of_a_node_keep_the_stores_files_apart_and_the_master_knows_of_disks() -> None:
    found = manifests("store on disks")
    pod = found["kubernetes/prefill.json"]["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "kv-files"]
    (config,) = [
        json.loads(text)
        for name, text in found["kubernetes/mooncake.json"]["data"].items()
        if {"name": "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "value": f"/etc/warmroute/{name}"} in container["env"]
    ]
    assert config["ssd_offload_path"].startswith(mount["mountPath"])
    assert mount["subPathExpr"] == "mooncake/$(POD_NAME)", "where doctor counts what the store has"
    assert {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in container["env"]
    master = found["kubernetes/mooncake-master.json"]["spec"]["template"]["spec"]["containers"][0]
    unit = files("store on disks")["systemd/mooncake-master.service"]
    assert "--enable_offload=true" in master["command"]
    assert "--enable_offload=true" in unit
    assert "--enable_offload" not in files("over nodes")["systemd/mooncake-master.service"]


def test_what_an_init_container_runs_ends_when_the_port_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = leader("prefill")["initContainers"][0]["command"]
        address = ["127.0.0.1", str(server.getsockname()[1])]
        subprocess.run([sys.executable, *command[1:-2], *address], check=True, timeout=seconds(20))


def test_pods_that_exchange_kv_have_network_cards() -> None:
    container = leader("prefill")["containers"][0]
    assert container["resources"]["requests"]["rdma/hca_shared_devices_a"] == "1"
    assert "privileged" not in container["securityContext"]
    uneven = plan("gpt-oss-120b", "2x8xH100", split=(4, 12), tp=4)
    for role, is_alone in (("prefill", True), ("decode", False)):
        pods = leader_of(uneven, role)
        assert pods.get("hostNetwork", False) is is_alone, "two engines of a node take the same ports"
    alone = leader("aggregated", "aggregated")["containers"][0]
    assert list(alone["resources"]["limits"]) == ["nvidia.com/gpu"]
    without = leader("prefill", rdma_resource="")
    assert without["containers"][0]["securityContext"] == {"privileged": True}
    assert {"path": "/dev/infiniband", "type": "Directory"} in [each.get("hostPath") for each in without["volumes"]]


def test_what_a_start_would_load_or_compile_again_is_kept_on_the_node() -> None:
    """The checkpoint, compiled kernels, and the KV of the file tier."""
    for pod, folders in (
        (leader("aggregated", "files"), {"/var/cache/sglang", "/var/lib/warmroute/hicache"}),
        (leader("aggregated", "files", model_path="/data/m"), {"/data/m", "/var/cache/sglang"}),
    ):
        container = pod["containers"][0]
        kept = {each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}
        assert folders <= kept <= {each["mountPath"] for each in container["volumeMounts"]}
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert variables["SGLANG_CACHE_DIR"] in kept
        assert variables["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] in kept
        assert ("HF_HOME" in variables) == ("/data/m" not in kept)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("path", ["proxy.toml", "kubernetes/proxy.toml", "systemd/proxy.toml"])
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
    units = {path.rpartition("/")[2]: text for path, text in files(name).items() if path.endswith(".service")}
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


ROOT = Path(__file__).parents[3]


def test_the_proxys_unit_is_that_of_deploy_and_its_config_has_the_folder_that_it_may_write() -> None:
    def service(text: str) -> list[str]:
        lines = text.partition("[Service]\n")[2].partition("[Install]")[0].splitlines()
        return sorted(line for line in lines if line and not line.startswith(("#", "User=", "Group=")))

    made = files("over nodes")
    unit = made["systemd/warmroute-proxy.service"]
    own = "RemoveIPC=yes"  # would take the engines' shared memory along, whose user the proxy has here
    assert sorted([*service(unit), own]) == service((ROOT / "deploy/systemd/warmroute-proxy.service").read_text())
    assert 'state_dir = "/var/lib/warmroute"' in made["systemd/proxy.toml"]
    assert "StateDirectory=warmroute" in unit.splitlines()


def test_engines_with_a_file_tier_below_the_proxys_folder_may_write_it() -> None:
    for name in KINDS:
        plan = kind(name)
        for engine in plan.engines:
            if engine.storage == "file":
                first = engine.name if engine.nodes == 1 else f"{engine.name}-node0"
                assert "StateDirectory=warmroute\n" in files(name)[f"systemd/sglang-{first}.service"]


def test_a_unit_passes_values_as_they_are() -> None:
    text = next(text for path, text in files("over nodes").items() if path.endswith("sglang-prefill-0.service"))
    assert 'Environment="NAME=a \\"quoted\\" %% $value"' in text
    assert '"{\\"publisher\\": \\"zmq\\"' in text


def test_host_memory_is_divided_between_hicache_and_the_store() -> None:
    made = kind("over nodes")
    engine = made.engines[0]
    config = json.loads(files("over nodes")[mooncake_file(engine)])
    segments = config["global_segment_size"] // engine.shape.attention_tp * 8  # SGLang's rule: `mooncake_store.py:446`
    assert engine.hicache is not None
    assert engine.hicache.size_gb * 8 * 1e9 + segments <= 0.8 * made.cluster.gpu.host_memory_gib * 2**30


def test_pods_ask_for_the_host_memory_that_they_pin() -> None:
    """A pod that asks for less is put on a node that lacks it, and is killed once HiCache and the store are full."""
    plan = kind("over nodes")
    pod = leader("prefill")
    (asked,) = [container["resources"] for container in pod["containers"]]
    engine = plan.of("prefill")[0]
    pinned_gib = host_bytes(plan, engine) * 8 / GIB
    assert int(asked["requests"]["memory"].removesuffix("Gi")) >= pinned_gib > 100
    assert "memory" not in asked["limits"]


def test_a_gated_models_token_comes_from_a_secret() -> None:
    def env(**site: str) -> dict[str, Any]:
        (container,) = leader("prefill", **site)["containers"]
        return {each["name"]: each for each in container["env"]}

    assert "HF_TOKEN" not in env()
    secret = {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert env(token_secret="hf")["HF_TOKEN"]["valueFrom"] == secret
