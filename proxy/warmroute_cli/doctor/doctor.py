"""`warmroute doctor`: findings as text or JSON. Exits with 0: no problem, 1: a problem, 2: nothing could be checked."""

import argparse
import json
import os
import resource
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from warmroute.files.printable import number_of
from warmroute_backend.doctor import bandwidth, reading, trials
from warmroute_backend.doctor.facts import Finding, Host, Level
from warmroute_backend.doctor.host import read_host
from warmroute_backend.doctor.judgement import judge
from warmroute_backend.launch.topology import Setting, topology
from warmroute_backend.plan.check import problems
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import GIB
from warmroute_cli.api import ApiError
from warmroute_cli.asking import admin_of
from warmroute_cli.plan.inputs import load_plan
from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, load_config
from warmroute_proxy.server.base.descriptors import divide
from warmroute_proxy.server.base.secrets import SecretError
from warmroute_proxy.server.check import probe, problems_of

LEDGER_BYTES = GIB
"""Below this free space on the ledger's disk there is a warning: it is enough for a few million rows."""


def check(path: Path, host: Host) -> list[Finding]:
    try:
        config = load_config(path)
    except ConfigError as error:
        return [Finding(Level.PROBLEM, "config", problem, str(path)) for problem in error.problems]
    found = [Finding(Level.PROBLEM, "config", problem, str(path)) for problem in problems_of(config, os.environ)]
    if not found:
        found.append(Finding(Level.OK, "config", f"{path}: ok"))
    for answer in probe(config):
        level = Level.OK if answer.ok else Level.PROBLEM
        found.append(Finding(level, "servers", f"{answer.who}: {answer.text}"))
    return [*found, *_limits(config, host), *_working_set(config)]


def _limits(config: Config, host: Host) -> Iterator[Finding]:
    engines = len(config.own_engines)
    soft, hard = (
        2**30 if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    wanted = config.limits.connections
    try:
        division = divide(soft, hard, wanted, engines)
    except ValueError as error:
        yield Finding(Level.PROBLEM, "open files", str(error), "LimitNOFILE=1048576")
    else:
        if division.lowered:
            text = f"limits.connections is {wanted:,}, and {hard:,} open files leave {division.connections:,}"
            yield Finding(Level.WARNING, "open files", text, "LimitNOFILE=1048576 (systemd), or ulimit -Hn")
        else:
            yield Finding(Level.OK, "open files", f"{hard:,} are enough for {wanted:,} connections")
    limits = config.limits
    held = limits.body_memory_bytes * config.proxy.processes + limits.kept_prompt_bytes + limits.queue_bytes
    available = host.available_bytes
    if available is not None and held > available:
        text = (
            f"bodies, kept prompts and the queue may take {held / GIB:.1f} GiB, and {available / GIB:.1f} are available"
        )
        yield Finding(Level.WARNING, "memory", text, "lower limits.body_memory_bytes, kept_prompt_bytes or queue_bytes")
    else:
        yield Finding(Level.OK, "memory", f"bodies, kept prompts and the queue take at most {held / GIB:.1f} GiB")
    yield _ledger(config.proxy.state_dir)


def _working_set(config: Config) -> Iterator[Finding]:
    """The KV memory in use, as the running proxy counts it; no findings if the proxy does not answer."""
    try:
        found = admin_of(config).ask("/admin/admission", {})
    except (ApiError, SecretError):
        return
    yield from held(found)


def held(admission: Mapping[str, Any]) -> Iterator[Finding]:
    """The KV memory that sessions hold on each worker, and the requests that wait for it, from `/admin/admission`."""
    for worker_id, books in admission.get("working_set", {}).items():
        text = (
            f"{worker_id}: {books['resident']} sessions hold {books['tokens']:,} of {books['pool_tokens']:,} tokens,"
            f" {books['in_use']} of them run; KV is kept for {books['window_s']:g} s"
        )
        yield Finding(Level.OK, "KV memory", text)
    queue = admission.get("queue", {})
    waiting, missing = queue.get("for_memory", 0), queue.get("memory_missing_tokens", 0)
    if waiting or missing:
        text = f"{waiting} turns wait for KV memory; about {missing:,} tokens more were needed in the last minute"
        yield Finding(Level.WARNING, "KV memory", text, "docs/reference/conditions.md#working_set_does_not_fit")


def _ledger(state_dir: Path) -> Finding:
    folder = next(each for each in (state_dir, *state_dir.absolute().parents) if each.exists())
    if not os.access(folder, os.W_OK):
        return Finding(Level.PROBLEM, "ledger", f"{folder} cannot be written by this user", "proxy.state_dir")
    free = shutil.disk_usage(folder).free
    level = Level.OK if free > LEDGER_BYTES else Level.WARNING
    todo = "" if level is Level.OK else "free some, or move proxy.state_dir: a proxy without space refuses requests"
    return Finding(level, "ledger", f"{free / GIB:.0f} GiB are free for {state_dir}", todo)


def doctor(arguments: argparse.Namespace) -> int:
    found = _machine(arguments) if arguments.proxy is None else check(arguments.proxy, read_host())
    if arguments.json:
        print(json.dumps({"findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        print(shown(found))
    return int(any(finding.level is Level.PROBLEM for finding in found))


def _machine(arguments: argparse.Namespace) -> list[Finding]:
    plan = None if arguments.plan is None else load_plan(arguments.plan)[0]
    machine = reading.read(arguments.python, plan, arguments.disk)
    found = judge(machine, plan, arguments.node)
    if arguments.fabric:
        found += bandwidth.of_cards(machine.rdma, arguments.peer)
        found += bandwidth.of_links(machine.gpus, plan)
    if plan is not None:
        return [*_plan(plan, arguments), *found]
    if not machine.gpus.devices:
        found += [trials.embedded(), trials.sglang_on_cpu(machine.host)]
    return found


def _plan(plan: Plan, arguments: argparse.Namespace) -> list[Finding]:
    if not 0 <= arguments.node < plan.cluster.nodes:
        raise PlanError(f"--node {arguments.node}: {plan.cluster} has the nodes 0 to {plan.cluster.nodes - 1}.")
    wrong = [Finding(Level.PROBLEM, "plan", text, str(arguments.plan)) for text in problems(plan)]
    setting = Setting("sglang", arguments.node, Path())
    fits = f"{arguments.plan}: {number_of(len(plan.engines), 'engine')} on {plan.cluster}"
    return [
        *(wrong or [Finding(Level.OK, "plan", fits)]),
        *reading.model(plan),
        *reading.ports(topology(plan, setting).programs),
    ]


def shown(found: list[Finding]) -> str:
    """A line for each finding with its remedy, and a verdict."""
    width = max(len(finding.topic) for finding in found)
    lines = []
    for finding in found:
        lines.append(f"{finding.level.upper():<8} {finding.topic:<{width}}  {finding.text}")
        if finding.todo and finding.level is not Level.OK:
            lines.append(f"{'':<8} {'':<{width}}  -> {finding.todo}")
    count = sum(finding.level is Level.PROBLEM for finding in found)
    return "\n".join([*lines, number_of(count, "problem")])
