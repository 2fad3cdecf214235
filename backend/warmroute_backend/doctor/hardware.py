"""A plan's GPUs against those of this node. Pure."""

from warmroute_backend.doctor.facts import Gpus
from warmroute_backend.plan.deployment import Plan

TOLERANCE = 0.02
"""Of memory: drivers report some hundred MiB more or less."""


def mismatches(plan: Plan, gpus: Gpus) -> list[str]:
    """Why this node is not one of the plan's. Empty: it is, or that cannot be told (AMD)."""
    wanted, count = plan.cluster.gpu, plan.cluster.per_node
    trial = "`--engine embedded` tries the plan without GPUs"
    if wanted.vendor != "nvidia":
        return []
    if gpus.problem:
        return [f"the plan is for {plan.cluster}, and {gpus.problem} here: run it on such a node; {trial}"]
    names = sorted({device.name for device in gpus.devices})
    found = []
    if len(gpus.devices) < count:
        found.append(
            f"the plan is for {count} GPUs a node, and this one has {len(gpus.devices)} ({', '.join(names)}): "
            f"`warmroute plan --gpus {len(gpus.devices)}x...` makes another; {trial}"
        )
    for device in gpus.devices:
        off = device.memory_mib / wanted.memory_mib - 1
        if wanted.name.lower() not in device.name.lower() or abs(off) > TOLERANCE:
            found.append(
                f"the plan is for {wanted.name} with {wanted.memory_mib:,} MiB, and GPU {device.index} is "
                f"{device.name} with {device.memory_mib:,} MiB: plan again for this one; {trial}"
            )
            break
    return found
