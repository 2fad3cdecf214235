"""The Kubernetes manifests: for each role, a LeaderWorkerSet, a Service of its leaders and a PodDisruptionBudget.

A group of pods is an engine, with one pod on each of the engine's nodes. A pod sees only the GPUs that it has
requested, so GPU numbers begin at 0. KV goes over the network, since pods cannot use NVLink between each other. The
controller sets LWS_LEADER_ADDRESS, LWS_GROUP_SIZE and LWS_WORKER_INDEX (kubernetes-sigs/lws, api/leaderworkerset/v1).
"""

import json
from dataclasses import replace
from math import ceil
from typing import Any, Final

from warmroute_backend.costs import Role
from warmroute_backend.plan.argv import CONFIG_FOLDER, LMCACHE_CONFIG, argv, environment
from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.files.proxy import MASTER, STORE, master_command, mooncake_configs, pod_host
from warmroute_backend.plan.hardware import GIB
from warmroute_backend.plan.lmcache import DAEMON, ENVIRONMENT, HEALTH, config_text, daemon_command, l1_gib
from warmroute_backend.plan.tiers import host_bytes

Manifest = dict[str, Any]

APP: Final = "app.kubernetes.io/name"
START_S: Final = 3600
STOP_S: Final = 900
PROBE_S: Final = 10
HEALTH_S: Final = 60
HEALTH_TIMEOUT_S: Final = 30
"""Longer than the 20 s for which `/health` may wait for a token while the engine works
(`SGLANG_HEALTH_CHECK_TIMEOUT`)."""
SHARED_MEMORY: Final = "64Gi"
PROCESS_GIB: Final = 4
"""Host memory that a pod requests for each rank in addition to pinned memory: for Python, CUDA's context and NCCL. An
assumption."""

_WAIT: Final = """import socket, sys, time
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()
        break
    except OSError as error:
        print(f"{sys.argv[1]}:{sys.argv[2]} does not answer yet: {error}", flush=True)
        time.sleep(5)
"""
"""The program of an init container that waits for a port."""


def manifests(plan: Plan) -> dict[str, Manifest]:
    """File name without its ending -> manifest."""
    found: dict[str, Manifest] = {}
    for role in ("aggregated", "prefill", "decode"):
        engines = plan.of(role)
        if engines:
            found[role] = _set(plan, engines)
            found[f"{role}-service"] = _service(plan, engines[0])
            found[f"{role}-budget"] = _budget(plan, engines[0].role)
    if plan.has_store:
        configs = mooncake_configs(plan, in_pods=True)
        found["mooncake"] = _config_map(
            plan, "mooncake", {name: json.dumps(config, indent=2) for name, config in configs.items()}
        )
        found[MASTER] = _master(plan)
        found[f"{MASTER}-service"] = _master_service(plan)
    if plan.has_lmcache:
        found[DAEMON] = _config_map(plan, DAEMON, {LMCACHE_CONFIG: config_text(plan)})
    return found


def _labels(role: str) -> dict[str, str]:
    return {APP: "sglang", "app.kubernetes.io/component": role}


def _head(plan: Plan, api: str, kind: str, name: str, role: str) -> Manifest:
    metadata = {"name": name, "namespace": plan.site.namespace, "labels": _labels(role)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata}


def _set(plan: Plan, engines: tuple[PlannedEngine, ...]) -> Manifest:
    engine = engines[0]
    template: Manifest = {"size": engine.nodes, "restartPolicy": "RecreateGroupOnPodRestart"}
    template["leaderTemplate"] = _pod(plan, engine, leads=True)
    template["workerTemplate"] = _pod(plan, engine, leads=False)
    return {
        **_head(plan, "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", engine.role, engine.role),
        "spec": {
            "replicas": len(engines),
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": 0},
            },
            "leaderWorkerTemplate": template,
        },
    }


def _pod(plan: Plan, engine: PlannedEngine, *, leads: bool) -> Manifest:
    return {
        "metadata": {"labels": _labels(engine.role)},
        "spec": {
            **_network(plan, engine),
            "hostIPC": True,
            "terminationGracePeriodSeconds": STOP_S,
            "initContainers": [
                *_waits(plan, engine, leads=leads),
                *([_lmcache(plan, engine)] if engine.lmcache else []),
            ],
            "containers": [_container(plan, engine, leads=leads)],
            "volumes": [
                {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": SHARED_MEMORY}},
                *(_folder(name, path) for name, path in _folders(plan, engine).items()),
                *([_volume(STORE)] if engine.storage == "mooncake" else []),
                *([_volume(DAEMON)] if engine.lmcache else []),
            ],
        },
    }


_FILES: Final = "kv-files"


def _folders(plan: Plan, engine: PlannedEngine) -> dict[str, str]:
    """Volume name -> folder on the node. The pod sees the folder at the same path."""
    site = plan.site
    found = {"cache": site.cache_dir}
    if site.model_path:
        found["models"] = site.model_path
    if plan.keeps_files(engine):
        found[_FILES] = site.storage_dir
    if _needs_rdma(plan, engine) and not site.rdma_resource:
        found["infiniband"] = "/dev/infiniband"
    return found


def _folder(name: str, path: str) -> Manifest:
    kind = "DirectoryOrCreate" if name in {"cache", _FILES} else "Directory"
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def _needs_rdma(plan: Plan, engine: PlannedEngine) -> bool:
    """Whether KV goes to another pod or to the store, or the engine's GPUs are in several nodes."""
    return plan.is_split or engine.nodes > 1 or engine.storage == "mooncake"


def _waits(plan: Plan, engine: PlannedEngine, *, leads: bool) -> list[Manifest]:
    """Init containers that wait for servers before an engine starts. All pods wait for the Mooncake master, if there is
    one, since SGLang asks it only once. Leaders of decode engines also wait for the bootstrap server of prefill."""
    wanted = []
    if engine.storage == "mooncake":
        wanted.append(("master", f"{MASTER}.{plan.site.namespace}.svc", plan.site.store_port))
    if engine.role == "decode" and leads:
        first = plan.of("prefill")[0]
        host = pod_host(plan, first, plan.engines.index(first))
        wanted.append(("prefill", host, first.ports.bootstrap))
    return [
        {
            "name": f"wait-for-{name}",
            "image": plan.site.image,
            "command": ["python3", "-c", _WAIT, host, str(port)],
            "resources": {"limits": {"cpu": "1", "memory": "256Mi"}},
        }
        for name, host, port in wanted
    ]


_HEALTHY: Final = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)"


def _lmcache(plan: Plan, engine: PlannedEngine) -> Manifest:
    """LMCache's daemon beside an engine: a sidecar, which the kubelet starts before the engine, and restarts. A restart
    of the daemon restarts the whole group (`RecreateGroupOnPodRestart`), since an engine without its daemon hangs.
    Engine and daemon map each other's memory by the pod's IPC. The daemon sees the engine's GPUs without requesting
    GPUs (docs.nvidia.com/dynamo, "Deploy LMCache MP").
    """
    url = f"http://127.0.0.1:{plan.site.lmcache_http_port}{HEALTH}"
    probe = {"exec": {"command": ["python3", "-c", _HEALTHY, url]}, "periodSeconds": PROBE_S, "timeoutSeconds": 10}
    gpus = engine.shape.gpus
    return {
        "name": DAEMON,
        "image": plan.site.image,
        "restartPolicy": "Always",
        "command": daemon_command(plan, gpus),
        "env": [
            *({"name": name, "value": value} for name, value in ENVIRONMENT),
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        ],
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        "startupProbe": {**probe, "failureThreshold": 60},
        "livenessProbe": {**probe, "failureThreshold": 6},
        "resources": {"requests": {"cpu": str(gpus), "memory": f"{l1_gib(plan, gpus) + PROCESS_GIB}Gi"}},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],  # noqa: S108
    }


def _network(plan: Plan, engine: PlannedEngine) -> Manifest:
    """The setting that gives a pod the node's network, for RDMA. If two engines of a role share a node, all engines of
    the role keep the pods' network, since their ports would collide.
    """
    nodes = [each.node for each in plan.of(engine.role)]
    return {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if len(set(nodes)) == len(nodes) else {}


def _container(plan: Plan, engine: PlannedEngine, *, leads: bool) -> Manifest:
    gpus = str(engine.gpus_each_node)
    resource = "amd.com/gpu" if plan.cluster.gpu.vendor == "amd" else "nvidia.com/gpu"
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]  # noqa: S108
    mounts += [{"name": name, "mountPath": path} for name, path in _folders(plan, engine).items()]
    if engine.storage == "mooncake":
        for mount in mounts:  # two pods of one role on a node each need a folder
            if mount["name"] == _FILES:
                mount["subPathExpr"] = f"{STORE}/$(POD_NAME)"
        mounts.append({"name": "mooncake", "mountPath": CONFIG_FOLDER})
    if engine.lmcache:
        mounts.append({"name": DAEMON, "mountPath": CONFIG_FOLDER})
    resources = {resource: gpus}
    pinned = 0 if engine.lmcache else host_bytes(plan, engine) * int(gpus)  # the daemon's container has it
    memory = {"memory": f"{ceil(pinned / GIB) + PROCESS_GIB * int(gpus)}Gi"}
    security: Manifest = {"capabilities": {"add": ["IPC_LOCK"]}}
    if _needs_rdma(plan, engine):
        if plan.site.rdma_resource:
            resources[plan.site.rdma_resource] = "1"
        else:
            security = {"privileged": True}
    container: Manifest = {
        "name": "sglang",
        "image": plan.site.image,
        "command": _in_pod(plan, engine),
        "env": _env(plan, engine),
        "securityContext": security,
        "resources": {"limits": resources, "requests": resources | memory},
        "volumeMounts": mounts,
    }
    if leads:
        container["ports"] = [{"name": "http", "containerPort": engine.ports.http}]
        container |= _probes(engine)
    return container


def _in_pod(plan: Plan, engine: PlannedEngine) -> list[str]:
    """The engine's command with GPUs from 0 on and the addresses of its group. The kubelet replaces `$(NAME)`."""
    command = argv(plan, replace(engine, first_gpu=0))
    if engine.nodes > 1:
        for flag, value in (
            ("--dist-init-addr", f"$(LWS_LEADER_ADDRESS):{engine.ports.distributed}"),
            ("--nnodes", "$(LWS_GROUP_SIZE)"),
            ("--node-rank", "$(LWS_WORKER_INDEX)"),
        ):
            command[command.index(flag) + 1] = value
    return command


def _env(plan: Plan, engine: PlannedEngine) -> list[Manifest]:
    skipped = {"SGLANG_MOONCAKE_CUSTOM_MEM_POOL", "MC_INTRANODE_NVLINK", "MOONCAKE_LOCAL_HOSTNAME"}
    found: list[Manifest] = [
        {"name": name, "value": value} for name, value in environment(plan, engine).items() if name not in skipped
    ]
    found.append({"name": "SGLANG_CACHE_DIR", "value": plan.site.cache_dir})
    if not plan.site.model_path:
        found.append({"name": "HF_HOME", "value": f"{plan.site.cache_dir}/huggingface"})
    if plan.site.token_secret:
        secret = {"secretKeyRef": {"name": plan.site.token_secret, "key": "token"}}
        found.append({"name": "HF_TOKEN", "valueFrom": secret})
    if engine.storage == "mooncake":
        address = {"fieldRef": {"fieldPath": "status.podIP"}}
        found.append({"name": "MOONCAKE_LOCAL_HOSTNAME", "valueFrom": address})
        found.append({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    return found


def _probes(engine: PlannedEngine) -> Manifest:
    ready = {"httpGet": {"path": "/ready", "port": engine.ports.http}, "periodSeconds": PROBE_S, "timeoutSeconds": 5}
    health = {"path": "/health", "port": engine.ports.http}
    return {
        "startupProbe": {**ready, "failureThreshold": START_S // PROBE_S},
        "readinessProbe": {**ready, "failureThreshold": 2},
        "livenessProbe": {
            "httpGet": health,
            "periodSeconds": HEALTH_S,
            "timeoutSeconds": HEALTH_TIMEOUT_S,
            "failureThreshold": 5,
        },
    }


def _service(plan: Plan, engine: PlannedEngine) -> Manifest:
    """The Service of the leaders, since only leaders serve HTTP. People use the Service; the proxy calls each engine by
    the engine's name.
    """
    ports = [{"name": "http", "port": engine.ports.http, "targetPort": engine.ports.http}]
    if engine.role == "prefill":
        ports.append({"name": "bootstrap", "port": engine.ports.bootstrap, "targetPort": engine.ports.bootstrap})
    return {
        **_head(plan, "v1", "Service", f"{engine.role}-leaders", engine.role),
        "spec": {
            "clusterIP": "None",
            "selector": {
                **_labels(engine.role),
                "leaderworkerset.sigs.k8s.io/name": engine.role,
                "leaderworkerset.sigs.k8s.io/worker-index": "0",
            },
            "ports": ports,
        },
    }


def _budget(plan: Plan, role: Role) -> Manifest:
    return {
        **_head(plan, "policy/v1", "PodDisruptionBudget", role, role),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": _labels(role)}},
    }


def _config_map(plan: Plan, name: str, files: dict[str, str]) -> Manifest:
    return {**_head(plan, "v1", "ConfigMap", name, "store"), "data": files}


def _master(plan: Plan) -> Manifest:
    """The Mooncake master, a single pod. After a restart of the master, engines register their KV again."""
    probe = {"tcpSocket": {"port": plan.site.store_port}, "periodSeconds": PROBE_S}
    container = {
        "name": "master",
        "image": plan.site.image,
        "command": master_command(plan),
        "ports": [{"name": name, "containerPort": port} for name, port in _master_ports(plan)],
        "readinessProbe": probe,
        "livenessProbe": {**probe, "failureThreshold": 6},
        "resources": {"requests": {"cpu": "2", "memory": "8Gi"}},
    }
    labels = _labels("store")
    return {
        **_head(plan, "apps/v1", "Deployment", MASTER, "store"),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def _master_service(plan: Plan) -> Manifest:
    return {
        **_head(plan, "v1", "Service", MASTER, "store"),
        "spec": {
            "selector": _labels("store"),
            "ports": [{"name": name, "port": port, "targetPort": port} for name, port in _master_ports(plan)],
        },
    }


def _master_ports(plan: Plan) -> tuple[tuple[str, int], ...]:
    return ("rpc", plan.site.store_port), ("metrics", plan.site.store_metrics_port)


def _volume(name: str) -> Manifest:
    return {"name": name, "configMap": {"name": name}}
