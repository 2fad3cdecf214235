"""`warmroute demo`: recorded agent sessions against the embedded fleet, affinity off and on, with an audit of both.

Each pass starts a fleet of its own, so that all caches and ledgers are empty, replays the same recordings with the
same seed, and collects three logs: what the clients saw, what the engines did (before they are stopped), what the
ledgers say (after the proxies were stopped). The audit compares them; the results need it to find nothing.
"""

import asyncio
import json
import shutil
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from warmroute_cli.installed import called_as
from warmroute_cli.processes import FleetError, stopping_on_signals
from warmroute_cli.state import locked_state
from warmroute_lab.demo import report, results
from warmroute_lab.demo.audit import audit
from warmroute_lab.demo.drive import Target, drive
from warmroute_lab.demo.ideal import Ideal, ideals, prompt_of
from warmroute_lab.demo.results import Pass
from warmroute_lab.fleet import PAGE_SIZE, FleetOptions, LocalFleet, Policy, Proxy
from warmroute_lab.recordings import RecordedSession, load_recordings
from warmroute_proxy.server.ledger.ledger import read_rows

THINK_VIRTUAL_S = 1.0
"""Mean time that a harness takes between two turns, on the engines' clock."""

JSON_COLUMNS = ("rids", "workers", "usage")
PASSES: tuple[tuple[str, Policy], ...] = (("off", "round_robin"), ("on", "cost"))


def run(arguments: Namespace) -> int:
    """Both passes, the report, and 0 if everything that a demo must show is there."""
    recordings = load_recordings(arguments.harness)
    out = report.console()
    passes: dict[str, Pass] = {}
    with stopping_on_signals(), locked_state(arguments.state_dir) as state_dir:
        for name, policy in PASSES:
            options = FleetOptions(policy=policy, speed=arguments.speed, seed=arguments.seed)
            passes[name] = run_pass(out, state_dir, name, options, recordings, arguments.sessions)
    off, on = passes["off"], passes["on"]
    harnesses = sorted({recording.harness for recording in recordings})
    summary = results.summarize(off, on, ideal_by_label(recordings, on), FleetOptions().rtt_ms, harnesses)
    if arguments.json:
        write_json(arguments.json, summary)
    report.show(out, summary, on)
    for name, _ in PASSES:
        folder = f"{arguments.state_dir}/demo-{name}"
        out.print(
            f"Where tokens were lost with affinity {name}: {called_as()} ladder {folder}", markup=False, soft_wrap=True
        )
    failures = results.failures(summary)
    report.show_problems(out, failures + errors_of([off, on]), [*off.violations, *on.violations])
    return 1 if failures else 0


def run_pass(
    out: Console,
    state_dir: Path,
    name: str,
    options: FleetOptions,
    recordings: Sequence[RecordedSession],
    sessions: int,
) -> Pass:
    run_dir = state_dir / f"demo-{name}"
    shutil.rmtree(run_dir, ignore_errors=True)
    title = f"affinity {name}"
    total = sum(len(recording.requests) for recording in recordings)
    out.print(f"{title}: starting 2 regions, 8 engines, 2 proxies", markup=False)
    with LocalFleet(state_dir, run_dir, options) as fleet:
        base_urls = {region: proxy.base_url for region, proxy in fleet.proxies.items()}
        target = Target(base_urls, fleet.api_key, options.seed, THINK_VIRTUAL_S / options.speed)
        with report.progress(out, title, total) as advance:
            turns = asyncio.run(drive(recordings, target, sessions, advance))
        if ended := fleet.ended():
            raise FleetError(f"{', '.join(ended)} ended during the pass; logs are in {run_dir}")
        finished = fleet.finished()
        fleet.stop_proxies()
        rows = [row for proxy in fleet.proxies.values() for row in ledger_rows(proxy)]
    return Pass(turns, rows, finished, audit(turns, rows, finished))


def ledger_rows(proxy: Proxy) -> list[dict[str, Any]]:
    """The rows of a stopped proxy, with what they keep as JSON text read."""
    rows = read_rows(proxy.state_dir / "ledger.sqlite")
    return [row | {name: json.loads(row[name]) for name in JSON_COLUMNS if row[name]} for row in rows]


def ideal_by_label(recordings: Sequence[RecordedSession], one: Pass) -> dict[str, Ideal]:
    """The ideal of each turn, in the order of the recordings: it does not depend on which turns met."""
    bodies = {(recording.name, request.n): request.body for recording in recordings for request in recording.requests}
    turns = sorted(one.turns, key=lambda turn: (turn.recording, turn.n))
    prompts = [prompt_of(turn.recording, bodies[turn.recording, turn.n], PAGE_SIZE) for turn in turns]
    return {turn.label: ideal for turn, ideal in zip(turns, ideals(prompts, PAGE_SIZE), strict=True)}


def errors_of(passes: Sequence[Pass]) -> list[str]:
    """What went wrong with turns that did not complete."""
    return [f"{turn.label} did not complete: {turn.error}" for one in passes for turn in one.turns if turn.error]


def write_json(path: Path, summary: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror}") from None
