"""Plays `warmroute demo`: recorded agent sessions, through SDK and proxy, on embedded engines or the real SGLang.

Each pass starts a new fleet with empty caches and ledgers, and replays the same recordings with the same seed. It
collects three logs: what the clients saw, what the engines did (read before they are stopped), and the ledgers (read
after the proxies were stopped). The audit compares the logs; a demo passes only if the audit finds nothing.

The embedded fleet plays two passes, affinity off and on. SGLang plays one, with a prefill and a decode server and a
tiny random model on this CPU. The model's answers say nothing, but the cached tokens are as real as on any GPU. For
each turn, the demo compares SGLang's count of cached tokens with the proxy's prediction, and in the end it compares the
sums of the ledger with SGLang's counters.
"""

import asyncio
import json
import shlex
import shutil
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from warmroute_backend.sglang import NotInstalledError, Server, StartError, wait_all
from warmroute_backend.sglang.command import CONTEXT_TOKENS
from warmroute_cli import state
from warmroute_cli.installed import called_as
from warmroute_cli.processes import FleetError, stop_all, stopping_on_signals
from warmroute_cli.state import locked_state
from warmroute_lab.demo import report, results
from warmroute_lab.demo.audit import ClientTurn, audit
from warmroute_lab.demo.drive import Target, drive
from warmroute_lab.demo.ideal import Ideal, ideals, prompt_of
from warmroute_lab.demo.results import Pass
from warmroute_lab.fleet import (
    MODELS,
    PAGE_SIZE,
    STOP_GRACE_S,
    FleetOptions,
    LocalFleet,
    Policy,
    Proxy,
    render,
    started_proxy,
    wait_ready,
)
from warmroute_lab.recordings import RecordedRequest, RecordedSession, load_recordings
from warmroute_proxy.server.base.secrets import key_sha256
from warmroute_proxy.server.ledger.ledger import read_rows

THINK_VIRTUAL_S = 1.0
"""Mean time that a harness takes between two turns, in virtual seconds of the engines (`speed` to a second)."""

JSON_COLUMNS = ("rids", "workers", "usage")
PASSES: tuple[tuple[str, Policy], ...] = (("off", "round_robin"), ("on", "cost"))

HARNESS = "opencode"
"""The harness whose sessions SGLang plays by default."""

REGION = "cpu"
ANSWER_TOKENS = 16
"""The limit of an answer. It is small, since the model's words are random and the recorded next turn has others."""

PROXY_TIMEOUT_S = 30.0
TOKENIZE_TIMEOUT_S = 60.0


def run(arguments: Namespace) -> int:
    """Play, and report the results. Returns 0 if the demo has shown everything that it must show, else 1."""
    out = report.console()
    play = _sglang if arguments.engine == "sglang" else _embedded
    with stopping_on_signals(), locked_state(arguments.state_dir) as state_dir:
        summary, passes, show = play(out, arguments, state_dir)
    if arguments.json:
        write_json(arguments.json, summary)
    show()
    failures = results.failures_on_sglang(summary) if play is _sglang else results.failures(summary)
    errors = [f"{turn.label} did not complete: {turn.error}" for one in passes for turn in one.turns if turn.error]
    report.show_problems(out, failures + errors, [violation for one in passes for violation in one.violations])
    return 1 if failures else 0


Played = tuple[dict[str, Any], list[Pass], Callable[[], None]]
"""The figures, the passes, and a function that prints them."""


def _embedded(out: Console, arguments: Namespace, state_dir: Path) -> Played:
    recordings = load_recordings(arguments.harness)
    off, on = [
        run_pass(
            out, state_dir, name, FleetOptions(policy=policy, speed=arguments.speed, seed=arguments.seed), recordings,
            arguments.sessions,
        )
        for name, policy in PASSES
    ]  # fmt: skip
    harnesses = sorted({recording.harness for recording in recordings})
    summary = results.summarize(off, on, ideal_by_label(recordings, on), FleetOptions().rtt_ms, harnesses)

    def show() -> None:
        report.show(out, summary, on)
        out.print("Where tokens were lost, with affinity off and with affinity on:")
        for name, _ in PASSES:
            folder = shlex.quote(f"{arguments.state_dir}/demo-{name}")
            out.print(f"  {called_as()} ladder {folder}", markup=False, soft_wrap=True)

    return summary, [off, on], show


def run_pass(
    out: Console,
    state_dir: Path,
    name: str,
    options: FleetOptions,
    recordings: Sequence[RecordedSession],
    sessions: int,
) -> Pass:
    run_dir = _emptied(state_dir / f"demo-{name}")
    title = f"affinity {name}"
    out.print(f"{title}: starting 2 regions, 8 engines, 2 proxies", markup=False)
    with LocalFleet(state_dir, run_dir, options) as fleet:
        base_urls = {region: proxy.base_url for region, proxy in fleet.proxies.items()}
        target = Target(base_urls, fleet.api_key, options.seed, THINK_VIRTUAL_S / options.speed)
        turns = _driven(out, title, recordings, target, sessions)
        if ended := fleet.ended():
            raise FleetError(f"{', '.join(ended)} ended during the pass; logs are in {run_dir}")
        finished = fleet.finished()
        fleet.stop_proxies()
        rows = [row for proxy in fleet.proxies.values() for row in ledger_rows(proxy)]
    return Pass(turns, rows, finished, audit(turns, rows, finished))


def _emptied(run_dir: Path) -> Path:
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
    return run_dir


def _driven(
    out: Console, title: str, recordings: Sequence[RecordedSession], target: Target, sessions: int
) -> list[ClientTurn]:
    total = sum(len(recording.requests) for recording in recordings)
    with report.progress(out, title, total) as advance:
        return asyncio.run(drive(recordings, target, sessions, advance))


def ledger_rows(proxy: Proxy) -> list[dict[str, Any]]:
    """The ledger rows of a stopped proxy, with their JSON columns decoded."""
    rows = read_rows(proxy.state_dir / "ledger.sqlite")
    return [row | {name: json.loads(row[name]) for name in JSON_COLUMNS if row[name]} for row in rows]


def ideal_by_label(recordings: Sequence[RecordedSession], one: Pass) -> dict[str, Ideal]:
    """The ideal of each turn. Which turns are earlier depends on the order of the recordings, never on timing."""
    bodies = {(recording.name, request.n): request.body for recording in recordings for request in recording.requests}
    turns = sorted(one.turns, key=lambda turn: (turn.recording, turn.n))
    prompts = [prompt_of(turn.recording, bodies[turn.recording, turn.n], PAGE_SIZE) for turn in turns]
    return {turn.label: ideal for turn, ideal in zip(turns, ideals(prompts, PAGE_SIZE), strict=True)}


def write_json(path: Path, summary: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise FleetError(f"{path} cannot be written: {error.strerror}") from None


# The real SGLang.


def _sglang(out: Console, arguments: Namespace, state_dir: Path) -> Played:
    run_dir = _emptied(state_dir / "demo-sglang")
    prefill, decode = Server("prefill", run_dir), Server("decode", run_dir)
    try:
        started_s = time.monotonic()
        prefill.start()
        decode.start()
        out.print("starting SGLang on this CPU: a prefill and a decode server (2 GB each; up to some minutes)")
        wait_all([prefill, decode])
        out.print(f"both serve after {time.monotonic() - started_s:.0f} s")
        recordings = _fitting(out, load_recordings(arguments.harness or (HARNESS,)), prefill)
        before = _counted(prefill)
        one = _sglang_pass(out, arguments, state_dir, run_dir, (prefill, decode), recordings)
        after = _counted(prefill)
    except (NotInstalledError, StartError) as error:
        raise FleetError(str(error)) from None
    finally:
        prefill.kill()
        decode.kill()
    summary = results.summarize_sglang(one, {name: after[name] - before[name] for name in after})
    return summary, [one], lambda: report.show_sglang(out, summary)


def _fitting(out: Console, recordings: Sequence[RecordedSession], server: Server) -> list[RecordedSession]:
    """The recordings whose longest prompt fits into the model's context, with answers of at most `ANSWER_TOKENS`."""
    found = []
    for recording in recordings:
        tokens = _tokens(server, max(recording.requests, key=lambda request: len(json.dumps(request.body))))
        if tokens + ANSWER_TOKENS < CONTEXT_TOKENS:
            found.append(replace(recording, requests=tuple(map(_shortened, recording.requests))))
        else:
            text = f"{recording.name} is left out: {tokens:,} tokens do not fit into {CONTEXT_TOKENS:,}"
            out.print(text, markup=False)
    if not found:
        raise FleetError("none of the chosen recordings fits into the model's context")
    return found


def _shortened(request: RecordedRequest) -> RecordedRequest:
    return replace(request, body={**request.body, "max_tokens": ANSWER_TOKENS})


def _tokens(server: Server, request: RecordedRequest) -> int:
    """The tokens of a prompt, by the server's own template and tokenizer."""
    body = {name: request.body[name] for name in ("model", "messages", "tools") if name in request.body}
    call = urllib.request.Request(  # noqa: S310 (our own server)
        f"{server.url}/v1/tokenize", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    return int(json.loads(_answer(call))["count"])


def _counted(server: Server) -> dict[str, int]:
    text = _answer(f"{server.url}/metrics").decode()
    return {name: int(metric_sum(text, f"sglang:{name}_total")) for name in ("prompt_tokens", "cached_tokens")}


def _answer(call: str | urllib.request.Request) -> bytes:
    with urllib.request.urlopen(call, timeout=TOKENIZE_TIMEOUT_S) as response:  # noqa: S310 (our own server)
        found: bytes = response.read()
        return found


def metric_sum(text: str, name: str) -> float:
    """The sum of all series of a metric in a Prometheus page; 0 without a series."""
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    )


def _sglang_pass(
    out: Console,
    arguments: Namespace,
    state_dir: Path,
    run_dir: Path,
    servers: tuple[Server, Server],
    recordings: Sequence[RecordedSession],
) -> Pass:
    key = state.api_key(state_dir)
    child = started_proxy("proxy", run_dir / "proxy.toml", _config(state_dir, run_dir, key, *servers))
    try:
        deadline_s = time.monotonic() + PROXY_TIMEOUT_S
        line = child.listening(deadline_s)
        proxy = Proxy(REGION, line["url"], line["admin_url"], run_dir / "proxy")
        wait_ready(child, proxy.url, deadline_s)
        target = Target({REGION: proxy.base_url}, key, arguments.seed, think_s=0.0)
        turns = _driven(out, "real SGLang", recordings, target, arguments.sessions)
        if ended := [one.name for one in (child, *servers) if not one.running()]:
            raise FleetError(f"{', '.join(ended)} ended during the demo")
    finally:
        stop_all([child], STOP_GRACE_S)
    rows = ledger_rows(proxy)
    return Pass(turns, rows, (), audit(turns, rows, ()))  # SGLang keeps no log of what it finished


def _config(state_dir: Path, run_dir: Path, key: str, prefill: Server, decode: Server) -> str:
    values = {
        "state_dir": str(run_dir / "proxy"),
        "secret_file": str(state.secret_file(state_dir)),
        "prefill_url": prefill.url,
        "decode_url": decode.url,
        "bootstrap_host": prefill.bootstrap_host,
        "bootstrap_port": prefill.bootstrap_port,
        "aliases": [name for name in MODELS if name != "kimi-k2.5"],
        "context_tokens": CONTEXT_TOKENS,
        "key_sha256": key_sha256(key),
    }
    return render(values, "sglang.toml")
