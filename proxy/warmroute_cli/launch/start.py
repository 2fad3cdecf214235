"""Runs a plan: checks the machine, starts the processes or adopts running ones, and supervises them."""

import argparse
import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from warmroute.files.printable import number_of
from warmroute_backend.asking import reachable
from warmroute_backend.launch.affinity import Near, near_gpus, read_matrix
from warmroute_backend.launch.fast_start import presharded_dir
from warmroute_backend.launch.launcher import Drains, Launcher, Limits, Waker
from warmroute_backend.launch.node_reports import NodeReports
from warmroute_backend.launch.nodes import Report
from warmroute_backend.launch.process import Adopted, Process, adopt, found_identity
from warmroute_backend.launch.program import LaunchError, Program
from warmroute_backend.launch.readiness import unready
from warmroute_backend.launch.state_file import locked, save
from warmroute_backend.launch.states import Backoff
from warmroute_backend.launch.topology import LOCAL, Setting, config_files, here, topology
from warmroute_backend.plan.check import problems
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.files.proxy import REGION, tables_of
from warmroute_backend.plan.hardware import GIB
from warmroute_backend.plan.tables import table
from warmroute_backend.plan.weights import weights
from warmroute_backend.sglang.installation import NotInstalledError, installation
from warmroute_backend.sglang.speed import slowness
from warmroute_cli import state
from warmroute_cli.launch.actions import NoDrains, ProxyDrains
from warmroute_cli.plan.inputs import load_plan
from warmroute_proxy.server.base.config import Config, authority
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.secrets import Secrets, key_sha256, load_secret
from warmroute_proxy.server.check import problems_of

PROXY: Final = "proxy"
PROXY_START_S: Final = 60.0
STOP_SLACK_S: Final = 15.0


CONFIG: Final = "proxy.toml"


def write_config(plan: Plan, state_dir: Path, port: int, admin_port: int) -> Path:
    """Write the proxy's configuration for a trial: the plan's engines on this machine, and one tenant.

    The tenant's key is derived from a secret in the state directory. Returns the path of the configuration, which is in
    the state directory too. Raises: OSError.
    """
    proxy = {"region": REGION, "host": LOCAL, "port": port, "admin_host": LOCAL, "admin_port": admin_port}
    tables = [
        "# Made by `warmroute launch` for a trial.",
        table("[proxy]", {**proxy, "state_dir": str(state_dir / "proxy")}),
        table("[secret]", {"file": str(state.secret_file(state_dir))}),
        table("[[region]]", {"name": REGION, "url": ""}),
        *tables_of(plan),
        table("[[tenant]]", {"name": "demo", "key_sha256": [key_sha256(state.api_key(state_dir))]}),
    ]
    path = state_dir / CONFIG
    path.write_text("\n".join(tables), encoding="utf-8")
    return path


def start(arguments: argparse.Namespace) -> int:
    """Run a plan until a signal. Raises: LaunchError, PlanError, ConfigError, SecretError."""
    plan = _checked(Path(arguments.what), arguments.node)
    state_dir: Path = arguments.state_dir.absolute()
    taken = f"another launcher runs in {arguments.state_dir}: `warmroute launch status`, or choose another --state-dir"
    with locked(state_dir, taken):
        is_trial = arguments.engine != "sglang"
        if is_trial:
            plan = here(plan)
        setting = _setting(plan, arguments, state_dir)
        found = topology(plan, setting)
        path = proxy_path(arguments, plan, state_dir)
        config = None if path is None else _checked_config(path)
        programs = [*found.programs, *([] if path is None or config is None else [_proxy(path, config)])]
        adopted = adopt(
            programs, state_dir, str(Path(arguments.what).absolute()), arguments.engine, arguments.node,
            found_identity(os.getpid()),
        )  # fmt: skip
        _check_machine(plan, arguments, adopted, setting.cache_dir)
        if arguments.engine != "embedded":
            for name, text in config_files(plan, setting).items():
                (state_dir / name).write_text(text)
        for note in (*found.notes, *adopted.notes):
            _show(note)
        return _run(arguments, plan, adopted, config, state_dir)


def _run(arguments: argparse.Namespace, plan: Plan, adopted: Adopted, config: Config | None, state_dir: Path) -> int:
    def save_record() -> None:
        try:
            save(state_dir, adopted.record)
        except OSError as error:  # do not raise: a full disk must not end the engines
            _show(f"{state_dir}: the state cannot be written: {error.strerror}")

    def up() -> None:
        _show(f"{arguments.what}: {len(adopted.processes)} processes serve; Ctrl-C stops them")
        if config is not None and arguments.engine != "sglang" and arguments.proxy_config is None:
            _show(f"export OPENAI_BASE_URL=http://{LOCAL}:{config.proxy.port}/v1")
            _show(f"export OPENAI_API_KEY={state.api_key(state_dir)}")

    limits = Limits(
        Backoff(limit=arguments.restarts), arguments.drain_s, arguments.hang_s, arguments.on_hang == "restart"
    )
    with Waker() as waker, _nodes(arguments, plan, config) as nodes:
        save_record()
        _stop_stray(adopted.stray, limits, state_dir)
        launcher = Launcher(adopted.processes, state_dir, _drains(config), limits, save_record, _show, nodes)
        launcher.troubles = adopted.record.troubles
        return launcher.run(waker, up)


@contextlib.contextmanager
def _nodes(arguments: argparse.Namespace, plan: Plan, config: Config | None) -> Iterator[NodeReports | None]:
    """Exchange reports with the launchers of the other nodes; None if this node does not wait. Raises: LaunchError."""
    if not arguments.nodes_port or plan.cluster.nodes == 1 or arguments.engine != "sglang":
        if arguments.wait_for_start:
            raise LaunchError("--wait-for-start needs --nodes-port, and a plan of several nodes")
        yield None
        return
    file = arguments.secret_file or (None if config is None else config.secret_file)
    key = Secrets(load_secret(file, os.environ)).lasting_mac("launch").hex()
    digest = hashlib.sha256(Path(arguments.what).read_bytes()).hexdigest()[:16]
    own = Report(arguments.node, digest, not arguments.wait_for_start)
    addresses = [(plan.site.host(node), arguments.nodes_port) for node in range(plan.cluster.nodes)]
    with NodeReports(own, addresses, key) as nodes:
        yield nodes


def _stop_stray(stray: list[Process], limits: Limits, state_dir: Path) -> None:
    """Stop processes of programs that are no longer in the plan."""
    for process in stray:
        _show(f"{process.name}: is not in the plan any more, and is stopped")
    Launcher(stray, state_dir, NoDrains(), limits, lambda: None, _show).stop()


def _checked(path: Path, node: int) -> Plan:
    plan, _ = load_plan(path)
    wrong = problems(plan)
    if wrong:
        raise LaunchError("\n".join([f"{path} has {number_of(len(wrong), 'problem')}:", *wrong]))
    if not 0 <= node < plan.cluster.nodes:
        raise LaunchError(f"--node {node}: {plan.cluster} has the nodes 0 to {plan.cluster.nodes - 1}")
    return plan


def _near() -> tuple[Near, ...]:
    """The NUMA node and the nearest network cards of each GPU.

    Empty if `nvidia-smi` does not report them, or `CUDA_VISIBLE_DEVICES` renumbers the GPUs.
    """
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return ()
    from warmroute_backend.doctor.host import read_rdma

    return near_gpus(read_matrix(), {port.device: port.gbit_s or 0.0 for port in read_rdma() if port.is_active})


def _cache_dir(plan: Plan) -> Path:
    chosen = dict(plan.site.environment).get("SGLANG_CACHE_DIR") or os.environ.get("SGLANG_CACHE_DIR")
    return Path(chosen or "~/.cache/sglang").expanduser()


def _setting(plan: Plan, arguments: argparse.Namespace, state_dir: Path) -> Setting:
    setting = Setting(
        arguments.engine, arguments.node, state_dir, arguments.python, slowness=slowness(), speed=arguments.speed,
        cache_dir=_cache_dir(plan) if arguments.fast_restart else None,
        near=_near() if arguments.engine == "sglang" else (),
    )  # fmt: skip
    if arguments.engine != "sglang-cpu":
        return setting
    try:
        return replace(setting, installation=installation())
    except NotInstalledError as error:
        raise LaunchError(str(error)) from None


def _check_machine(plan: Plan, arguments: argparse.Namespace, adopted: Adopted, cache_dir: Path | None) -> None:
    """Check for everything that would make a start fail. Raises: LaunchError with all problems."""
    fresh = [process.program for process in adopted.fresh]
    found = [*unready(fresh)]
    if arguments.engine == "sglang":
        found += [] if cache_dir is None else _lacks_disk(plan, fresh, cache_dir)
        model = plan.site.model_path
        if model and not (Path(model) / "config.json").is_file():
            found.append(f"the model is not there: {model} has no config.json; set site.model_path of the plan")
        if any(program.is_engine for program in fresh):
            from warmroute_backend.doctor.judgement import mismatches
            from warmroute_backend.doctor.nvidia import read_gpus

            found += mismatches(plan, read_gpus())
    if found:
        raise LaunchError("\n".join(found))


def _lacks_disk(plan: Plan, programs: list[Program], cache_dir: Path) -> list[str]:
    """A problem if new pre-sharded weights do not fit on their disk: each engine writes all weights of the model."""
    names = [program.name for program in programs if program.source == "presharded"]
    new = [name for name in names if not presharded_dir(plan, name, cache_dir).exists()]
    nearest = next(each for each in (cache_dir, *cache_dir.parents) if each.exists())
    need, free = len(new) * weights(plan.model).total, shutil.disk_usage(nearest).free
    if need <= free:
        return []
    has = f"{cache_dir} has {free / GIB:,.0f} GiB free: SGLANG_CACHE_DIR names another disk"
    return [f"--fast-restart writes {need / GIB:,.0f} GiB of pre-sharded weights, and {has}"]


def proxy_path(arguments: argparse.Namespace, plan: Plan, state_dir: Path) -> Path | None:
    """The proxy's configuration file. On nodes but the first, None, even if `--proxy-config` is given.

    A trial (without SGLang on GPUs) runs all nodes on this machine, and writes the file unless one is given.
    """
    if arguments.node and arguments.engine == "sglang":
        return None
    if arguments.proxy_config is not None:
        return Path(arguments.proxy_config)
    if arguments.engine != "sglang":
        return write_config(plan, state_dir, arguments.port, arguments.admin_port)
    return Path(arguments.what).parent / "proxy.toml"


def _proxy(path: Path, config: Config) -> Program:
    ports = (("http", config.proxy.port), ("admin", config.proxy.admin_port))
    return Program(
        name=PROXY,
        kind="proxy",
        command=(sys.executable, "-m", "warmroute_cli.main", "proxy", "--config", str(path.absolute())),
        ports=tuple((what, port) for what, port in ports if port),
        host=reachable(config.proxy.host),
        has_tls=config.proxy.tls_cert is not None,
        start_timeout_s=PROXY_START_S * slowness(),
        stop_timeout_s=config.limits.shutdown_grace_s + STOP_SLACK_S,
    )


def _checked_config(path: Path) -> Config:
    """Load the configuration. Raises: ConfigError, even if the file is valid but a start would fail."""
    config = load_config(path)
    wrong = problems_of(config, os.environ)
    if not config.proxy.port:
        wrong.append("proxy.port: is 0, any free one; a launch needs a number")
    if wrong:
        raise ConfigError(str(path), wrong)
    return config


def _drains(config: Config | None) -> Drains:
    if config is None or config.proxy.admin_key_sha256 is not None or not config.proxy.admin_port:
        return NoDrains()
    return ProxyDrains(
        f"http://{authority(config.proxy.admin_host, config.proxy.admin_port)}",
        lambda: Secrets(load_secret(config.secret_file, os.environ)).admin_key(),
    )


def _show(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads the output any more; the processes go on
        print(text, flush=True)
