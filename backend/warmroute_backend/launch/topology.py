"""The programs of a plan on a node: its engines and, on the first node, the Mooncake master. The caller adds the proxy.

A plan can run in one of three ways:

    sglang       as planned
    embedded     each engine is a simulated one, with the ranks, pools, pages, tiers and ports of the plan
    sglang-cpu   each engine is the real SGLang on a CPU with a tiny model: one rank and a small pool; Mooncake moves KV
                 over TCP and is also the store

The ways `embedded` and `sglang-cpu` are trials. `Topology.notes` lists what a trial leaves out or replaces. Pure.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from warmroute_backend.launch.affinity import Near, affinity, described
from warmroute_backend.launch.fast_start import DAEMON, DAEMON_READY, FastStart, Source, fast_start
from warmroute_backend.launch.program import EngineKind, Expected, Program
from warmroute_backend.plan.argv import CONFIG_FOLDER, LAUNCH, LMCACHE_CONFIG, argv, environment, mooncake_file
from warmroute_backend.plan.deployment import Plan, PlannedEngine, beside
from warmroute_backend.plan.files.proxy import master_command, mooncake_configs
from warmroute_backend.plan.lmcache import DAEMON as LMCACHE
from warmroute_backend.plan.lmcache import ENVIRONMENT, HEALTH, config_text, daemon_command
from warmroute_backend.plan.tiers import host_tokens
from warmroute_backend.ports import Ports
from warmroute_backend.sglang import command as cpu
from warmroute_backend.sglang.installation import Installation

LOCAL: Final = "127.0.0.1"
TRIAL_START_S: Final = 60.0
CPU_START_S: Final = 300.0
ENGINE_STOP_S: Final = 60.0
NODE_PORTS: Final = 1_000
"""The distance between the ports of two nodes if both nodes are this machine."""
_SOURCES: Final[Mapping[Source, str]] = {
    "daemon": "restarts map weights that stay in GPU memory",
    "presharded": "restarts read files that the first start writes",
    "disk": "restarts read the checkpoint",
}
CPU_SEGMENT_BYTES: Final = 128 * 2**20
"""The memory that an engine gives to the store in a trial: about 30,000 tokens of the tiny model."""
STORAGE: Final = "hicache"
"""The folder of a trial's file tier, in the state directory."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how a plan runs. `python`: the Python that has SGLang; `installation`: SGLang on a CPU; `slowness`:
    how many times slower this machine is than the reference; `speed`: the speed of embedded engines; `cache_dir`: a
    folder for fast restarts, or None for no fast restarts; `near`: NUMA node and cards of each GPU, empty if unknown.
    """

    kind: EngineKind
    node: int
    state_dir: Path
    python: str = LAUNCH[0]
    installation: Installation | None = None
    slowness: float = 1.0
    speed: float = 1.0
    cache_dir: Path | None = None
    near: tuple[Near, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """The programs of a node in the order of their start, and notes on what this way of running a plan leaves out."""

    programs: tuple[Program, ...]
    notes: tuple[str, ...]


def here(plan: Plan) -> Plan:
    """The plan changed so that this machine is all of its nodes: local addresses, and other ports for each further
    node.
    """
    engines = []
    for engine in plan.engines:
        moved = {name: port + NODE_PORTS * engine.node for name, port in asdict(engine.ports).items()}
        engines.append(replace(engine, ports=Ports(**moved)))
    hosts = (LOCAL,) * plan.cluster.nodes
    return replace(plan, engines=tuple(engines), site=replace(plan.site, hosts=hosts))


def topology(plan: Plan, setting: Setting) -> Topology:
    """The programs of the setting's node. In a trial, the plan is from `here`, and all its programs are returned."""
    if setting.kind == "sglang":
        engines = [each for each in plan.engines if setting.node in each.all_nodes]
        programs = [each for engine in engines for each in _sglang(plan, engine, setting)]
        master = [_master(plan, _tool(setting, "mooncake_master"))] if setting.node == 0 and plan.has_store else []
        daemon = [_lmcache(plan, setting)] if any(engine.lmcache for engine in engines) else []
        return Topology((*master, *daemon, *_ordered(programs)), tuple(_engine_notes(engines, plan, setting)))
    if setting.kind == "embedded":
        programs = [_embedded(plan, engine, setting) for engine in plan.engines]
    else:
        programs = [_cpu(plan, engine, setting) for engine in plan.engines]
        if plan.has_store:
            assert setting.installation is not None
            programs.append(_master(plan, str(setting.installation.master)))
        if plan.has_lmcache:
            programs.append(_lmcache(plan, setting))
    return Topology(tuple(_ordered(programs)), tuple(_notes(plan, setting.kind)))


def _ordered(programs: list[Program]) -> list[Program]:
    """The programs by stage, and prefill before decode, since a decode engine asks prefill engines for their ranks."""
    return sorted(programs, key=lambda program: (program.stage, program.kind == "decode"))


def _engine_notes(engines: list[PlannedEngine], plan: Plan, setting: Setting) -> Iterator[str]:
    """Notes on what is near each engine's GPUs, and where the engine's weights come from at a fast restart."""
    for engine in engines:
        yield from described(engine.name, affinity(plan, engine, setting.near))
        if setting.cache_dir is not None:
            found = fast_start(plan, engine, setting.cache_dir)
            because = f", since {found.because}" if found.because else ""
            yield f"{engine.name}: {_SOURCES[found.source]}{because}"


def config_files(plan: Plan, setting: Setting) -> dict[str, str]:
    """The configurations of stores that engines read: name of a file in the state directory -> its text."""
    found = {name: json.dumps(made, indent=2) + "\n" for name, made in mooncake_files(plan, setting).items()}
    return found | ({LMCACHE_CONFIG: config_text(plan)} if plan.has_lmcache else {})


def mooncake_files(plan: Plan, setting: Setting) -> dict[str, dict[str, Any]]:
    """The Mooncake store's configuration for each engine on this node, or for all engines in a trial on a CPU."""
    configs, found = mooncake_configs(plan), {}
    if setting.kind == "sglang-cpu":
        return {name: _on_a_cpu(config, setting.state_dir) for name, config in configs.items()}
    for engine in plan.engines:
        rank = setting.node - engine.node
        if engine.storage == "mooncake" and 0 <= rank < engine.nodes:
            near = affinity(plan, engine, setting.near)
            device = near.store_device(engine.shape, rank * engine.gpus_each_node)
            config = configs[mooncake_file(engine)]
            found[mooncake_file(engine)] = {**config, "device_name": device or config["device_name"]}
    return found


def _on_a_cpu(config: dict[str, Any], state_dir: Path) -> dict[str, Any]:
    """A store's configuration for a machine without RDMA and with little memory. Its disk is in the state directory."""
    found = {**config, "protocol": "tcp", "device_name": "", "global_segment_size": CPU_SEGMENT_BYTES}
    if "ssd_offload_path" in found:
        found["ssd_offload_path"] = str(state_dir / STORAGE / Path(found["ssd_offload_path"]).name)
    return found


def expected_of(plan: Plan, engine: PlannedEngine) -> Expected:
    """The KV pool that the log of an engine should show."""
    memory = plan.memory(engine)
    return Expected(memory.tokens, memory.tokens * memory.cell)


def _ports(engine: PlannedEngine) -> tuple[tuple[str, int], ...]:
    found = [("http", engine.ports.http), ("distributed", engine.ports.distributed)]
    if engine.role == "prefill":
        found.append(("bootstrap", engine.ports.bootstrap))
    if engine.role != "decode":
        found += [("kv_events", engine.ports.kv_events), ("kv_replay", engine.ports.kv_replay)]
    return tuple(found)


def _sglang(plan: Plan, engine: PlannedEngine, setting: Setting) -> Iterator[Program]:
    """An engine's process on this node, preceded by the daemon that keeps its weights, if the engine can use one. Of an
    engine over several nodes only the first process serves HTTP; the others are ready once they run.
    """
    rank = setting.node - engine.node
    near = affinity(plan, engine, setting.near)
    command = (setting.python, *argv(plan, engine, rank)[1:], *near.flags)
    command += near.transfer_flags if engine.role != "aggregated" else ()
    variables = environment(plan, engine)
    if engine.storage == "mooncake":
        variables["SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"] = str(setting.state_dir / mooncake_file(engine))
        variables["MOONCAKE_LOCAL_HOSTNAME"] = plan.site.host(setting.node)
    if engine.lmcache:
        planned, own = f"{CONFIG_FOLDER}/{LMCACHE_CONFIG}", str(setting.state_dir / LMCACHE_CONFIG)
        command = tuple(own if word == planned else word for word in command)
    fast = FastStart("disk") if setting.cache_dir is None else fast_start(plan, engine, setting.cache_dir)
    made = Program(
        name=engine.name,
        kind=engine.role,
        command=(*command, *fast.flags),
        environment=tuple(variables.items()),
        ports=_ports(engine) if rank == 0 else (),
        ready_path="/ready" if rank == 0 else "",
        source=fast.source,
        expected=expected_of(plan, engine) if rank == 0 else None,
        stop_timeout_s=ENGINE_STOP_S,
        needs=(LMCACHE,) if engine.lmcache else (),
    )
    if fast.source == "daemon":
        daemon = (setting.python, *DAEMON, *command[len(LAUNCH) :])
        keeps = f"{engine.name}-weights"
        made = replace(made, needs=(*made.needs, keeps))
        yield Program(keeps, "weights", daemon, made.environment, ready_line=DAEMON_READY)
    yield made


def _tool(setting: Setting, program: str) -> str:
    """The path of a program of SGLang's environment; the bare name if only PATH has it."""
    path = beside(setting.python, program)
    return path if Path(path).exists() or shutil.which(program) is None else program


def _master(plan: Plan, program: str) -> Program:
    return Program(
        name="mooncake-master",
        kind="store",
        command=tuple(master_command(plan, program)),
        ports=(("http", plan.site.store_port), ("metrics", plan.site.store_metrics_port)),
        ready_path="",
    )


def _lmcache(plan: Plan, setting: Setting) -> Program:
    """LMCache's daemon for all engines of this machine. On a CPU the daemon has little memory, and moves KV without
    CUDA.
    """
    if setting.installation is not None:
        tool = str(setting.installation.lmcache)
        site = plan.site
        command = cpu.lmcache_daemon(tool, site.lmcache_port, site.lmcache_http_port)
    else:
        command = daemon_command(plan, plan.cluster.per_node, _tool(setting, "lmcache"))
    return Program(
        name=LMCACHE,
        kind="lmcache",
        command=tuple(command),
        environment=ENVIRONMENT,
        ports=(("http", plan.site.lmcache_http_port), ("kv", plan.site.lmcache_port)),
        ready_path=HEALTH,
    )


def _embedded(plan: Plan, engine: PlannedEngine, setting: Setting) -> Program:
    expected = expected_of(plan, engine)
    page = engine.shape.page_tokens
    command = [sys.executable, "-m", "warmroute_lab.engine", "--role", engine.role, "--engine-id", engine.name]
    command += ["--host", LOCAL, "--port", str(engine.ports.http), "--model", plan.model_name]
    command += ["--page-size", str(page), "--kv-tokens", str(max(page, expected.tokens))]
    command += ["--kv-bytes-per-token", f"{plan.memory(engine).cell:g}", "--kv-cache-dtype", engine.shape.kv_type]
    command += ["--context-length", str(engine.context_tokens), "--dp-size", str(engine.ranks)]
    command += ["--max-running-requests", str(engine.shape.running_requests), "--speed", f"{setting.speed:g}"]
    if engine.role == "prefill":
        command += ["--bootstrap-port", str(engine.ports.bootstrap)]
    if engine.role != "decode":
        command += ["--kv-events-config", cpu.kv_events(engine.ports)]
    if engine.hicache is not None:
        ratio = max(1.0, host_tokens(plan, engine) / max(1, expected.tokens))
        command += ["--enable-hierarchical-cache", "--hicache-ratio", f"{ratio:.3f}"]
        command += ["--hicache-storage-backend", "file"] if engine.storage != "none" else []
    if engine.speculation is not None:
        command += ["--speculative-algorithm", engine.speculation.algorithm]
    return Program(
        name=engine.name,
        kind=engine.role,
        command=tuple(command),
        environment=_file_tier(engine, setting),
        ports=tuple(pair for pair in _ports(engine) if pair[0] != "distributed"),
        expected=expected,
        start_timeout_s=TRIAL_START_S * setting.slowness,
        stop_timeout_s=ENGINE_STOP_S,
    )


def _cpu(plan: Plan, engine: PlannedEngine, setting: Setting) -> Program:
    assert setting.installation is not None
    command = cpu.arguments(engine.role, engine.ports, setting.installation, tiers=False, transfer="mooncake_tcp")
    stores = engine.storage == "mooncake"
    if engine.role == "decode":
        command += cpu.offload() if stores else []
    elif engine.lmcache:
        command += cpu.lmcache(setting.state_dir / LMCACHE_CONFIG)
    elif engine.role == "aggregated" or engine.hicache is not None:
        command += cpu.hicache("mooncake" if stores else "file")
    command += ["--served-model-name", plan.model_name]
    command += ["--context-length", str(min(engine.context_tokens, cpu.CONTEXT_TOKENS))]
    storage = setting.state_dir / STORAGE / engine.name
    variables = cpu.environment(storage, None, None, setting.slowness)
    if stores:
        variables |= cpu.store_environment(
            setting.state_dir / mooncake_file(engine), has_disk=plan.site.store_disk_gb > 0
        )
    return Program(
        name=engine.name,
        kind=engine.role,
        command=tuple(command),
        environment=tuple(variables.items()),
        ports=_ports(engine),
        expected=Expected(cpu.POOL_TOKENS, 0.0),
        needs=(LMCACHE,) if engine.lmcache else (),
        start_timeout_s=CPU_START_S * setting.slowness,
        stop_timeout_s=ENGINE_STOP_S,
    )


def _file_tier(engine: PlannedEngine, setting: Setting) -> tuple[tuple[str, str], ...]:
    """The folder of an engine's file tier: a separate one, or one that all embedded engines share in place of the
    store.
    """
    if engine.storage == "none":
        return ()
    folder = setting.state_dir / STORAGE / ("shared" if engine.storage == "mooncake" else engine.name)
    return (("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", str(folder)),)


def _notes(plan: Plan, kind: EngineKind) -> list[str]:
    """What a trial does differently from the plan."""
    found = []
    if kind == "embedded":
        found += ["the Mooncake store is a folder of files that all engines share"] if plan.has_store else []
        return found + (["engines run without LMCache, and without another tier"] if plan.has_lmcache else [])
    tiny = f"the model is the tiny one, each engine one rank with {cpu.POOL_TOKENS:,} tokens"
    found.append(f"{tiny}, KV moves by Mooncake over TCP")
    if plan.has_store:
        found.append(f"each engine gives {CPU_SEGMENT_BYTES >> 20} MiB to the Mooncake store")
    if any(engine.speculation is not None for engine in plan.engines):
        found.append("no drafts: on a CPU, speculation runs without a pair and without HiCache only")
    if any(engine.hicache is None and not engine.lmcache and engine.role == "aggregated" for engine in plan.engines):
        found.append("aggregated engines have HiCache")
    return found
