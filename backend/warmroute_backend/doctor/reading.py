"""All facts of this machine."""

from pathlib import Path

from warmroute_backend.doctor.disk import measured
from warmroute_backend.doctor.fabric import read_rdma
from warmroute_backend.doctor.facts import Machine
from warmroute_backend.doctor.finding import Finding, Level
from warmroute_backend.doctor.host import read_host
from warmroute_backend.doctor.isolation import read_isolation
from warmroute_backend.doctor.nvidia import read_gpus
from warmroute_backend.doctor.versions import read_versions
from warmroute_backend.launch.program import Program
from warmroute_backend.launch.readiness import is_taken, listener_of
from warmroute_backend.plan.deployment import Plan

ROOT = Path("/")


def read(python: str, plan: Plan | None, disk: Path | None, root: Path = ROOT) -> Machine:
    """Read everything. `disk`: a folder to measure; where a plan keeps KV in files is measured without being asked
    for.
    """
    folder = disk
    if folder is None and plan is not None and any(plan.keeps_files(engine) for engine in plan.engines):
        folder = Path(plan.site.storage_dir)
    return Machine(
        gpus=read_gpus(root),
        rdma=read_rdma(root),
        host=read_host(root),
        disk=None if folder is None else measured(folder),
        versions=read_versions(python),
        isolation=read_isolation(root),
    )


def ports(programs: tuple[Program, ...]) -> list[Finding]:
    """The ports of a plan's programs on this node, and who has them."""
    found = []
    for program in programs:
        for what, port in program.ports:
            if is_taken(port):
                listener = listener_of(port)
                by = "" if listener is None else f" by {listener[1]}, pid {listener[0]}"
                text = f"{program.name}: port {port} ({what}) is in use{by}"
                found.append(Finding(Level.PROBLEM, "ports", text, "end that, or change it in the plan"))
    count = sum(len(program.ports) for program in programs)
    return found or [Finding(Level.OK, "ports", f"all {count} of the plan are free")]


def model(plan: Plan) -> list[Finding]:
    """Whether the checkpoint is where the plan says."""
    path = plan.site.model_path
    if not path:
        return [Finding(Level.NOTE, "model", f"{plan.model.path} is downloaded at the first start", "site.model_path")]
    if (Path(path) / "config.json").is_file():
        return [Finding(Level.OK, "model", path)]
    return [Finding(Level.PROBLEM, "model", f"{path} has no config.json", "site.model_path of the plan")]
