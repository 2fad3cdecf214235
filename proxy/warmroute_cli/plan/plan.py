"""Runs `warmroute plan`: prints a page or JSON, writes files. Exit status 0: a plan; 1: a wrong plan file; 2: none."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from warmroute.files.printable import number_of
from warmroute_backend.plan.check import problems
from warmroute_backend.plan.choose import make_plan
from warmroute_backend.plan.deployment import Plan, Site, Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.files import deployment_files, processes
from warmroute_backend.plan.hardware import parse_cluster
from warmroute_backend.plan.measured import comparison, page, warm_sessions
from warmroute_backend.plan.model import CacheKind, unplanned
from warmroute_backend.plan.models import MODELS
from warmroute_backend.plan.request import PlanRequest
from warmroute_cli.plan.inputs import find_model, load_gpus, load_plan
from warmroute_cli.plan.plan_options import ANY_GPU

if TYPE_CHECKING:
    from warmroute_backend.plan.hardware import Cluster
    from warmroute_cli.plan.costs import Goodput, TokenPrices
    from warmroute_cli.plan.kinds import Kind
    from warmroute_cli.plan.search import Search
    from warmroute_cli.plan.targets import Targets
    from warmroute_lab.replay.trace import Trace


def plan(arguments: argparse.Namespace) -> int:
    if arguments.list:
        print("models:", *sorted(MODELS), sep="\n  ")
        gpus = load_gpus(arguments.hardware, arguments.measured)
        print("GPUs:", *sorted(gpus), sep="\n  ")
        for line in (line for gpu in gpus.values() for line in comparison(gpu)):
            print(line)
        return 0
    if arguments.check is not None:
        return _check(arguments)
    return _make(arguments)


def _make(arguments: argparse.Namespace) -> int:
    if arguments.model is not None and arguments.gpus is None:
        find_model(arguments.model)
    if arguments.model is None or arguments.gpus is None:
        raise PlanError("what to plan? give --model and --gpus, or --check FILE.", ["--model kimi-k2.5 --gpus 8xH200"])
    made = _made(arguments)
    if wrong := problems(made.plan):
        raise PlanError(wrong[0])
    text = page(made.plan, made.sections)
    if arguments.out is not None:
        path = Path(arguments.model)
        name = str(path.resolve()) if path.exists() else arguments.model  # absolute, so that any folder finds it
        _write(arguments.out, deployment_files(made.plan, name, text))
    if arguments.json:
        print(json.dumps(made.document(), indent=2))
    else:
        print(text, end="")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    """Check a plan file. `--out` writes its files again if the plan has no problems."""
    found, model = load_plan(arguments.check)
    wrong = problems(found)
    if wrong:
        print("\n".join([f"{arguments.check}: {number_of(len(wrong), 'problem')}", *wrong]), file=sys.stderr)
        return 1
    if arguments.out is not None:
        _write(arguments.out, deployment_files(found, model, page(found)))
    print(f"{arguments.check}: {number_of(len(found.engines), 'engine')}, nothing is wrong")
    if found.model.kind is CacheKind.UNKNOWN:
        print(f"{unplanned(found.model.name, found.model.architecture)} Only flags were checked.")
    return 0


def _made(arguments: argparse.Namespace) -> "Made":
    """Make the plan. If traffic is given, this is the best of several plans; all of them are returned with it."""
    trace = None
    traffic = None
    if arguments.trace is not None:
        _need_numpy("--trace")
        from warmroute.files.given import UnreadableFile
        from warmroute_cli.plan.inputs import average_of
        from warmroute_lab.replay.loaders import load
        from warmroute_lab.replay.trace import TraceError

        try:
            trace = load(arguments.trace)
        except (TraceError, UnreadableFile) as error:
            raise PlanError(f"{error}.") from None
        traffic = average_of(trace)
    elif arguments.input is not None or arguments.output is not None:
        if arguments.input is None or arguments.output is None:
            raise PlanError("--input and --output are given together.")
        traffic = Traffic(arguments.input, arguments.output, arguments.requests_per_s, arguments.cached)
    clusters = _clusters(arguments)
    request = _request(arguments, traffic, clusters[0])
    wanted = [name for name in _OF_TRAFFIC if getattr(arguments, name) is not None]
    wanted += ["goodput"] if arguments.goodput else []
    option = f"--{wanted[0].replace('_', '-')}".replace("--token-", "--time-per-token-") if wanted else ""
    if traffic is None and wanted:
        raise PlanError(f"{option} is about traffic: give --input and --output, or --trace.")
    if len(clusters) > 1 and traffic is None:
        raise PlanError("several kinds of GPUs are compared under traffic: give --input and --output, or --trace.")
    if traffic is None or find_spec("numpy") is None:
        if wanted:
            _need_numpy(option)
        return Made(make_plan(request))
    from warmroute_cli.plan.costs import by_goodput, prices
    from warmroute_cli.plan.inputs import average_trace
    from warmroute_cli.plan.search import search
    from warmroute_cli.plan.targets import Targets

    targets = Targets(**{f"{name}_s": getattr(arguments, name) for name in _OF_TRAFFIC if name != "gpu_hour"})
    played = trace or average_trace(traffic)
    if len(clusters) > 1:
        return _of_kinds(arguments, traffic, played, targets, clusters)
    found = search(request, played, targets)
    served = by_goodput(found, traffic, played, targets) if arguments.goodput else []
    best = found.best
    if arguments.gpu_hour is None:
        return Made(best.plan, found, targets, served)
    costs = prices(best.plan, best.request, best.sizing, _gpu_hour(arguments, request.cluster), arguments.margin)
    return Made(replace(best.plan, price=costs.of_plan), found, targets, served, costs)


def _of_kinds(
    arguments: argparse.Namespace, traffic: Traffic, trace: "Trace", targets: "Targets", clusters: "Sequence[Cluster]"
) -> "Made":
    """Make the plan on the kind of GPUs that serves with the cheapest tokens, and keep the other kinds for the page."""
    from warmroute_cli.plan.costs import prices
    from warmroute_cli.plan.kinds import compared

    if arguments.gpu_hour is None:
        raise PlanError("several kinds of GPUs are compared by cost.", ["--gpu-hour H200=3,B200=5"])
    hours = {each.gpu.name: _gpu_hour(arguments, each) for each in clusters}
    kinds = compared([_request(arguments, traffic, each) for each in clusters], hours, traffic, trace, targets)
    found = kinds[0].search
    assert found is not None, "one that fits is the first"
    best = found.best
    if best.sizing.saturated:
        return Made(best.plan, found, targets, kinds=kinds)
    costs = prices(best.plan, best.request, best.sizing, hours[kinds[0].cluster.gpu.name], arguments.margin)
    return Made(replace(best.plan, price=costs.of_plan), found, targets, prices=costs, kinds=kinds)


def _clusters(arguments: argparse.Namespace) -> "list[Cluster]":
    gpus = load_gpus(arguments.hardware, arguments.measured)
    texts = arguments.gpus.split(",")
    if len(texts) > _MAX_KINDS:
        raise PlanError(f"--gpus has {len(texts)} kinds, and {_MAX_KINDS} are compared at most.")
    return [parse_cluster(text, gpus) for text in texts]


def _gpu_hour(arguments: argparse.Namespace, cluster: "Cluster") -> float:
    hours: dict[str, float] = arguments.gpu_hour
    usd = hours.get(cluster.gpu.name.upper(), hours.get(ANY_GPU))
    if usd is None:
        raise PlanError(f"--gpu-hour has no price of {cluster.gpu.name}.", [f"--gpu-hour {cluster.gpu.name}=USD,..."])
    return usd


_MAX_KINDS = 16

_OF_TRAFFIC = ("ttft_p50", "ttft_p90", "ttft_p99", "token_p50", "token_p90", "token_p99", "gpu_hour")


@dataclass(frozen=True)
class Made:
    plan: Plan
    search: "Search | None" = None
    targets: "Targets | None" = None
    goodput: "Sequence[Goodput]" = ()
    prices: "TokenPrices | None" = None
    kinds: "Sequence[Kind]" = ()

    @property
    def sections(self) -> list[str]:
        """Sections of the page about traffic, which follow the plan's own."""
        if self.search is None or self.targets is None:
            return []
        from warmroute_cli.plan import costs, sized_page

        found = [sized_page.section(self.search, self.targets)]
        if self.kinds:
            from warmroute_cli.plan import kinds

            found.append(kinds.section(self.kinds))
        found += [costs.section_of_goodput(self.goodput, self.targets)] if self.goodput else []
        return found if self.prices is None else [*found, costs.section_of_prices(self.prices)]

    def document(self) -> dict[str, Any]:
        """The plan as plain values, with the figures that are computed from it."""
        made = self.plan
        engines = [
            {**asdict(engine), "memory": asdict(made.memory(engine)), "ranks": engine.ranks} for engine in made.engines
        ]
        played = self.search.played if self.search is not None else []
        return {
            "model": made.model.path,
            "gpus": str(made.cluster),
            "objective": made.objective,
            "traffic": asdict(made.traffic) if made.traffic else None,
            "engines": engines,
            "processes": processes(made),
            "choices": [asdict(choice) for choice in made.choices],
            "warm_sessions_of_65536": warm_sessions(made, 65_536),
            "sizing": [{**asdict(each.sizing), "missed": list(each.missed)} for each in played],
            "not_played": dict(self.search.ruled_out) if self.search is not None else {},
            "goodput": [asdict(each) for each in self.goodput],
            "kinds": [each.as_dict() for each in self.kinds],
            "prices": self.prices.as_dict() if self.prices is not None else None,
        }


def _need_numpy(option: str) -> None:
    if find_spec("numpy") is None:
        raise PlanError(f"{option} needs numpy: pip install 'warmroute[replay]'.")


def _request(arguments: argparse.Namespace, traffic: Traffic | None, cluster: "Cluster") -> PlanRequest:
    model = find_model(arguments.model)
    is_folder = Path(arguments.model).exists()
    return PlanRequest(
        model=model,
        cluster=cluster,
        objective=arguments.objective,
        traffic=traffic,
        context_tokens=arguments.context,
        kv_type=arguments.kv_dtype,
        split=arguments.pd,
        tp=arguments.tp,
        pp=arguments.pp,
        all_to_all=arguments.all_to_all,
        attention_dp=arguments.attention_dp[0] if arguments.attention_dp else None,
        decode_dp=arguments.attention_dp[1] if arguments.attention_dp else None,
        dcp=arguments.dcp,
        chunk_tokens=arguments.chunk,
        fraction=arguments.mem_fraction,
        hicache=_switch(arguments.hicache),
        speculation=_switch(arguments.speculation),
        draft_steps=arguments.draft_steps,
        storage=arguments.storage,
        lmcache=arguments.lmcache,
        window_ratio=arguments.swa_ratio,
        model_name=arguments.served_name or model.name,
        site=Site(
            model_path=str(Path(arguments.model).resolve()) if is_folder else "",
            hosts=tuple(arguments.hosts),
            ib_devices=arguments.ib_device,
            image=arguments.image or Site().image,
            namespace=arguments.namespace,
            rdma_resource=arguments.rdma_resource,
            token_secret=arguments.token_secret,
            cache_dir=arguments.cache_dir,
            store_disk_gb=arguments.store_disk_gb,
            environment=tuple(arguments.env),
        ),
    )


def _switch(text: str | None) -> bool | None:
    return None if text is None else text == "on"


def _write(folder: Path, files: dict[str, str]) -> None:
    """Write files below a folder. Other files in it stay."""
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as error:
        raise PlanError(f"{folder} cannot be written: {error.strerror}.") from None
    print(f"{number_of(len(files), 'file')} in {folder}", file=sys.stderr)
