"""`warmroute doctor`: findings as text or JSON. Exits with 0: no problem, 1: a problem, 2: nothing could be checked."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from warmroute_backend.doctor import bandwidth, reading, trials
from warmroute_backend.doctor.finding import Finding, Level
from warmroute_backend.doctor.host import read_host
from warmroute_backend.doctor.judgement import judge
from warmroute_backend.launch.topology import Setting, topology
from warmroute_backend.plan.check import problems
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.errors import PlanError
from warmroute_cli.doctor.proxies import check
from warmroute_cli.plan.inputs import load_plan


def doctor(arguments: argparse.Namespace) -> int:
    try:
        found = _machine(arguments) if arguments.proxy is None else check(arguments.proxy, read_host())
    except PlanError as error:
        print(f"warmroute doctor: {error}", file=sys.stderr)
        return 2
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
    """What the plan itself lacks, before the machine is looked at."""
    if not 0 <= arguments.node < plan.cluster.nodes:
        raise PlanError(f"--node {arguments.node}: {plan.cluster} has the nodes 0 to {plan.cluster.nodes - 1}.")
    wrong = [Finding(Level.PROBLEM, "plan", text, str(arguments.plan)) for text in problems(plan)]
    setting = Setting("sglang", arguments.node, Path())
    return [
        *(wrong or [Finding(Level.OK, "plan", f"{arguments.plan}: {len(plan.engines)} engines on {plan.cluster}")]),
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
    return "\n".join([*lines, f"{count} problem{'s' * (count != 1)}"])
