"""`warmroute replay`: plays a trace through the production placement and other placements, on a virtual clock.

Modules that only some options need are imported on use, since the start takes much of the time of a short replay.
"""

import argparse
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from textwrap import fill
from threading import Thread
from typing import NamedTuple

from warmroute.files.given import UnreadableFile
from warmroute.files.printable import number_of
from warmroute_cli.replay.replay_options import fleet_options
from warmroute_cli.tables import Column, Row, fitted, width
from warmroute_lab.replay.loaders import load_all
from warmroute_lab.replay.record import ReplayVerdict, verify
from warmroute_lab.replay.results import Result
from warmroute_lab.replay.scenarios.scenario import Run, Scenario
from warmroute_lab.replay.setup import DEFAULT_POLICY, POLICIES, Setup, WorkerKind, read_fleet, run
from warmroute_lab.replay.simulation import Progress, WorkerChange
from warmroute_lab.replay.trace import Trace, TraceError
from warmroute_proxy.core.replicas.record import RecordError

SWEEP_LOADS = (1.0, 2.0, 4.0)
COPIES = 8
"""How often `--recorded` plays each packaged recording. Each copy has its own start time."""


def replay(arguments: argparse.Namespace) -> int:
    """Run the command. The exit codes are those in `warmroute_cli.main`."""
    if arguments.policies:
        print("\n".join(POLICIES))
        return 0
    if arguments.verify:
        return verify_records(arguments.traces)
    try:
        for path in filter(None, (arguments.json, arguments.html)):
            path.open("ab").close()  # so that it fails now, not after minutes of replay
        _show(arguments)
    except (TraceError, UnreadableFile) as error:
        print(f"warmroute replay: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"warmroute replay: {where}{error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def _show(arguments: argparse.Namespace) -> None:
    began_s = time.perf_counter()
    results, notes = _play(arguments)
    took_s = time.perf_counter() - began_s
    print_table(results)
    requests = sum(result.requests for result in results)
    figures = f"{number_of(requests, 'request')} in {took_s:.2f} s. Figures of a queueing model, not of any GPU."
    print("\n".join([*notes, figures]))
    if arguments.json is not None:
        text = json.dumps([result.as_dict() for result in results], indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    if arguments.html is not None:
        from warmroute_lab.replay.page import page

        model = "A queueing model, not a measurement of any GPU: docs/reference/replay.md lists the simulated parts."
        arguments.html.write_text(page(results, "warmroute replay", [*notes, model]), encoding="utf-8")


def _play(arguments: argparse.Namespace) -> tuple[list[Result], tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    named = (arguments.made_up, arguments.scenario)
    chosen = [bool(arguments.traces), arguments.recorded, *(name is not None for name in named)]
    if sum(chosen) != 1:
        raise TraceError("what to play? name trace files, or --recorded, or --made-up, or a --scenario")
    source = TraceSource(
        tuple(arguments.traces), arguments.recorded, arguments.scenario, arguments.made_up, arguments.seed
    )
    if source.scenario is not None:
        if given := fleet_options(arguments):
            raise TraceError(f"--scenario defines its fleet: leave out {', '.join(given)}")
        policies = None if arguments.policy is None or "all" in arguments.policy else tuple(arguments.policy)
        loads = None if arguments.speed_up is None else tuple(dict.fromkeys(arguments.speed_up))
        source = source._replace(policies=policies, speed_ups=loads)
        _, ready_made, notes = _ready_made(source)
        runs = list(ready_made)
    else:
        chosen_policies, chosen_loads = _chosen(arguments)
        setup = _setup(arguments)
        runs = [Run(policy, policy, setup, speed_up) for policy in chosen_policies for speed_up in chosen_loads]
    return _swept(source, runs) if arguments.sweep else _played(source, runs), notes


def _setup(arguments: argparse.Namespace) -> Setup:
    prefills, decodes = arguments.workers
    kinds: tuple[WorkerKind, ...] = ()
    if arguments.fleet is not None:
        if "--workers" in fleet_options(arguments):
            raise TraceError("--fleet says how many workers there are: leave out --workers")
        kinds = read_fleet(arguments.fleet)
        prefills, decodes = len(kinds), 0
    device, host, store = arguments.kv_tokens
    return Setup(
        prefills=prefills,
        decodes=decodes,
        kv_tokens=device,
        max_running=arguments.max_running,
        host_tokens=host,
        store_tokens=store,
        regions=arguments.regions,
        rtt_s=arguments.rtt_ms / 1000,
        each_turn=arguments.each_turn_anywhere,
        naming_share=arguments.naming_share,
        routers=arguments.routers,
        hinting_share=arguments.hinting_share,
        ending_share=arguments.ending_share,
        tenant_shares=tuple(arguments.tenant_shares),
        working_set_wait_s=arguments.working_set_wait_s,
        share_lag_s=None if arguments.share_lag_ms is None else arguments.share_lag_ms / 1000,
        share_loss=arguments.share_loss,
        event_lag_s=arguments.event_lag_ms / 1000,
        changes=tuple(WorkerChange(*change) for change in arguments.change),
        kinds=kinds,
    )


def print_table(results: Iterable[Result]) -> None:
    names = ("policy", "speed-up", "hit", "TTFT p50 s", "p90", "p99", "mean", "TPOT p90 ms", "imbalance", "CPU s")
    rows = [
        (
            each.policy, f"{each.speed_up:g}x", f"{each.hit:.4f}", f"{each.ttft_p50_s:.2f}", f"{each.ttft_p90_s:.2f}",
            f"{each.ttft_p99_s:.2f}", f"{each.ttft_mean_s:.2f}", f"{each.tpot_p90_s * 1000:.1f}",
            f"{each.imbalance:.2f}", f"{each.cpu_s:.2f}",
        )
        for each in results
    ]  # fmt: skip
    optional = {"speed-up", "mean", "imbalance", "CPU s"}
    columns = [Column(name, is_number=name != "policy", optional=name in optional) for name in names]
    print("\n".join(fitted(columns, [Row(cells) for cells in rows], "", width())))


def _chosen(arguments: argparse.Namespace) -> tuple[list[str], list[float]]:
    named = arguments.policy or (["all"] if arguments.sweep else [DEFAULT_POLICY])
    policies = list(dict.fromkeys(POLICIES if "all" in named else named))
    unknown = [policy for policy in policies if policy not in POLICIES]
    if unknown:
        raise TraceError(f"no policy {', '.join(unknown)}; there are {', '.join(POLICIES)}")
    loads = arguments.speed_up or (SWEEP_LOADS if arguments.sweep else (1.0,))
    return policies, list(dict.fromkeys(loads))


class TraceSource(NamedTuple):
    """The origin of a trace. A source is small enough to be sent to another process, which then reads the trace."""

    paths: tuple[Path, ...] = ()
    recorded: bool = False
    scenario: str | None = None
    made_up: str | None = None
    seed: int = 1
    policies: tuple[str, ...] | None = None
    speed_ups: tuple[float, ...] | None = None
    """Speed-ups of a scenario; None: those that the scenario defines."""


@lru_cache(maxsize=1)
def _ready_made(source: TraceSource) -> Scenario:
    """The scenario with its trace, made once per process."""
    from warmroute_lab.replay.scenarios.by_name import scenario

    assert source.scenario is not None
    return scenario(source.scenario, source.seed, source.policies, source.speed_ups)


@lru_cache(maxsize=1)
def _trace(source: TraceSource) -> Trace:
    """The trace, read once per process."""
    if source.scenario is not None:
        return _ready_made(source).trace
    if source.made_up is not None:
        from warmroute_lab.replay.made_up import made_up

        return made_up(source.made_up, source.seed)
    if source.recorded:
        from warmroute_lab.recordings import load_recordings
        from warmroute_lab.replay.loaders import prompts

        sessions = [
            prompts.Recorded(each.name, [request.body for request in each.requests]) for each in load_recordings()
        ]
        return prompts.load(sessions, COPIES, source.seed)
    return load_all(source.paths, source.seed)


def _one(source: TraceSource, chosen: Run, progress: Progress | None = None) -> Result:
    result = run(_trace(source), chosen.setup, chosen.policy, chosen.speed_up, progress)
    result.policy = chosen.label
    return result


def _played(source: TraceSource, runs: Sequence[Run]) -> list[Result]:
    requests = len(_trace(source).requests)
    gc.freeze()  # the trace stays in memory: the collector need not walk it
    results = []
    for each in runs:
        with _bar(f"{each.label} {each.speed_up:g}x", requests) as report:
            results.append(_one(source, each, report))
    gc.freeze()  # saves 80 ms: the ending process need not walk the last run
    return results


def _swept(source: TraceSource, runs: Sequence[Run]) -> list[Result]:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import active_children, get_context

    _trace(source)  # so that its errors are raised here, and only once
    results: dict[int, Result] = {}
    processes = min(os.cpu_count() or 1, len(runs))
    with (
        ProcessPoolExecutor(processes, get_context("spawn"), _end_with_parent) as pool,
        _bar(f"{len(runs)} runs on {processes} cores", len(runs)) as report,
    ):
        futures = {pool.submit(_one, source, each): at for at, each in enumerate(runs)}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                report(len(results), len(runs))
        except BaseException:
            for process in active_children():
                process.terminate()  # do not wait minutes for an unused result
            raise
    return [results[at] for at in range(len(runs))]


def _end_with_parent() -> None:
    """In a process of a sweep: leave Ctrl-C to the parent, and end with the parent, even if the parent is killed."""
    from multiprocessing import parent_process

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


@contextmanager
def _bar(title: str, total: int) -> Iterator[Progress]:
    """A progress bar, if stderr is a terminal; otherwise nothing is shown, and rich is not imported."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done, _total: bar.update(task, completed=done)


def verify_records(paths: Iterable[Path]) -> int:
    """Repeat recorded decisions. Print a line per record, and the first decision that differs.

    Exit status 0: no decision differs, 1: some differ, 2: not read.
    """
    codes = [_verified(path) for path in paths]
    if not codes:
        print("warmroute replay: which record? name at least one file", file=sys.stderr)
    return max(codes, default=2)


def _verified(path: Path) -> int:
    try:
        verdict = verify(path)
    except (RecordError, UnreadableFile) as error:
        print(f"warmroute replay: {error}", file=sys.stderr)
        return 2
    same = verdict.decisions - verdict.differing
    found = f"{path}: {same:,} of {number_of(verdict.decisions, 'decision')} came out the same; {_ending(verdict)}"
    print(fill(found, width(), break_long_words=False, break_on_hyphens=False))
    if verdict.first_difference is not None:
        print(f"  recorded by warmroute {verdict.software}; {verdict.first_difference}")
    return 1 if verdict.differing else 0


def _ending(verdict: ReplayVerdict) -> str:
    if verdict.cut_off is not None:
        return f"the record is cut off {verdict.cut_off}"
    return f"the record ends with: {verdict.closed}"
