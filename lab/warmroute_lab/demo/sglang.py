"""`warmroute demo --engine sglang`: recorded agent sessions through SDK and proxy to the real SGLang on this CPU.

A prefill and a decode server with a tiny random model: what is computed says nothing, what is cached is as real as on
any GPU. Each turn's cached tokens are SGLang's own count; the proxy's prediction is held against it, turn by turn, and
the sums of the ledger against SGLang's counters.
"""

import asyncio
import json
import shutil
import sys
import time
import urllib.request
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from warmroute.contract import receipt as receipts
from warmroute_backend.sglang import NotInstalledError, Server, StartError, wait_all
from warmroute_backend.sglang.command import CONTEXT_TOKENS
from warmroute_cli import state
from warmroute_cli.processes import Child, FleetError, stop_all, stopping_on_signals
from warmroute_cli.state import locked_state
from warmroute_lab.demo import report, report_sglang
from warmroute_lab.demo.audit import ClientTurn, audit
from warmroute_lab.demo.drive import Target, drive
from warmroute_lab.demo.embedded import errors_of, ledger_rows, write_json
from warmroute_lab.demo.results import Pass, broken_sums, percentile
from warmroute_lab.fleet import MODELS, STOP_GRACE_S, Proxy, render, wait_ready
from warmroute_lab.recordings import RecordedRequest, RecordedSession, load_recordings
from warmroute_proxy.server.base.secrets import key_sha256

# The figures of a demo on real SGLang: each turn as SGLang counted it, beside what the proxy had predicted.
#
# The *prediction error* of a turn is (predicted - reported cached tokens) / prompt tokens: above zero where the proxy
# expected more than there was.


def summarize(one: Pass, engine_prompt_tokens: int, engine_cached_tokens: int) -> dict[str, Any]:
    """All numbers of the run; `engine_*` are what SGLang's counters grew by."""
    turns = [_turn(turn) for turn in one.turns if turn.usage is not None]
    prompt, cached = (sum(turn[name] for turn in turns) for name in ("prompt_tokens", "cached_tokens"))
    errors = [turn["prediction_error"] for turn in turns]
    return {
        "engine": "sglang",
        "mode": "prefill and decode over NIXL on a CPU",
        "requests": len(one.turns),
        "completed": sum(turn.error is None for turn in one.turns),
        "receipts": len(turns),
        "ledger_rows": len(one.rows),
        "invariant_violations": len(one.violations),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "hit_ratio": cached / prompt if prompt else 0.0,
        "estimated": sorted({name for turn in turns for name in turn["estimated"]}),
        "engine_counters": {"prompt_tokens": engine_prompt_tokens, "cached_tokens": engine_cached_tokens},
        "prediction_error": {
            "p50": percentile(errors, 0.5, 5),
            "p95": percentile(errors, 0.95, 5),
            "absolute_p50": percentile([abs(error) for error in errors], 0.5, 5),
            "absolute_p95": percentile([abs(error) for error in errors], 0.95, 5),
        },
        "turns": turns,
    }


def _turn(turn: ClientTurn) -> dict[str, Any]:
    usage = turn.usage or {}
    receipt = usage["warmroute"]
    prompt, cached = usage["prompt_tokens"], receipts.cached_tokens(usage)
    predicted = receipt["predicted_cached"]
    return {
        "turn": turn.label,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "predicted_cached": predicted,
        "prediction_error": (predicted - cached) / prompt if prompt else 0.0,
        "cached": dict(receipt["cached"]),
        "loss": {name: tokens for name, tokens in receipt["loss"].items() if tokens},
        "estimated": list(receipt["estimated"]),
    }


def failures(summary: Mapping[str, Any]) -> list[str]:
    found = broken_sums(summary)
    if summary["estimated"]:
        found.append(f"SGLang did not report {', '.join(summary['estimated'])}.")
    engine = summary["engine_counters"]
    for name, tokens in engine.items():
        if tokens != summary[name]:
            found.append(f"The receipts have {summary[name]:,} {name.replace('_', ' ')}, SGLang counted {tokens:,}.")
    if not summary["cached_tokens"]:
        found.append("SGLang found nothing in its cache.")
    return found


def metric_sum(text: str, name: str) -> float:
    """The sum of all series of a metric in a Prometheus page; 0.0 if there is none."""
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))
    )


HARNESS = "opencode"
REGION = "cpu"
ANSWER_TOKENS = 16
"""The model's words are random and the next turn does not repeat them: more of them would cost time only."""

PROXY_TIMEOUT_S = 30.0
TOKENIZE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Counted:
    """SGLang's own counters at a moment."""

    prompt_tokens: int
    cached_tokens: int


def run(arguments: Namespace) -> int:
    """The recordings once, the report, and 0 if everything that this demo must show is there."""
    out = report.console()
    with stopping_on_signals(), locked_state(arguments.state_dir) as state_dir:
        run_dir = state_dir / "demo-sglang"
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir(parents=True)
        servers = Server("prefill", run_dir), Server("decode", run_dir)
        try:
            return _run(out, arguments, state_dir, run_dir, *servers)
        except (NotInstalledError, StartError) as error:
            raise FleetError(str(error)) from None
        finally:
            for server in servers:
                server.kill()


def _run(out: Console, arguments: Namespace, state_dir: Path, run_dir: Path, prefill: Server, decode: Server) -> int:
    started_s = time.monotonic()
    prefill.start()
    decode.start()
    out.print("starting SGLang on this CPU: a prefill and a decode server (2 GB each; up to some minutes)")
    wait_all([prefill, decode])
    out.print(f"both serve after {time.monotonic() - started_s:.0f} s")
    recordings, left_out = fitting(load_recordings(arguments.harness or (HARNESS,)), prefill)
    for recording, tokens in left_out:
        out.print(f"{recording.name} is left out: {tokens:,} tokens do not fit into {CONTEXT_TOKENS:,}", markup=False)
    if not recordings:
        raise FleetError("none of the chosen recordings fits into the model's context")
    before = counted(prefill)
    one = _pass(out, arguments, state_dir, run_dir, (prefill, decode), recordings)
    after = counted(prefill)
    engine = Counted(after.prompt_tokens - before.prompt_tokens, after.cached_tokens - before.cached_tokens)
    summary = summarize(one, engine.prompt_tokens, engine.cached_tokens)
    if arguments.json:
        write_json(arguments.json, summary)
    report_sglang.show(out, summary)
    problems = failures(summary)
    report.show_problems(out, problems + errors_of([one]), one.violations)
    return 1 if problems else 0


def fitting(
    recordings: Sequence[RecordedSession], server: Server
) -> tuple[list[RecordedSession], list[tuple[RecordedSession, int]]]:
    """The recordings whose longest prompt fits, with short answers, and the others with that prompt's tokens."""
    found, others = [], []
    for recording in recordings:
        longest = max(recording.requests, key=lambda request: len(json.dumps(request.body)))
        tokens = count_tokens(server, longest)
        if tokens + ANSWER_TOKENS < CONTEXT_TOKENS:
            found.append(shortened(recording))
        else:
            others.append((recording, tokens))
    return found, others


def shortened(recording: RecordedSession) -> RecordedSession:
    requests = tuple(
        RecordedRequest(request.n, request.headers, {**request.body, "max_tokens": ANSWER_TOKENS})
        for request in recording.requests
    )
    return RecordedSession(recording.name, recording.harness, requests)


def count_tokens(server: Server, request: RecordedRequest) -> int:
    """The tokens of a prompt, by the server's own template and tokenizer."""
    body = {name: request.body[name] for name in ("model", "messages", "tools") if name in request.body}
    call = urllib.request.Request(  # noqa: S310 (our own server)
        f"{server.url}/v1/tokenize", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=TOKENIZE_TIMEOUT_S) as response:  # noqa: S310
        return int(json.load(response)["count"])


def counted(server: Server) -> Counted:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=TOKENIZE_TIMEOUT_S) as response:  # noqa: S310
        text = response.read().decode()
    return Counted(
        int(metric_sum(text, "sglang:prompt_tokens_total")), int(metric_sum(text, "sglang:cached_tokens_total"))
    )


def _pass(
    out: Console,
    arguments: Namespace,
    state_dir: Path,
    run_dir: Path,
    servers: tuple[Server, Server],
    recordings: Sequence[RecordedSession],
) -> Pass:
    key = state.api_key(state_dir)
    config = run_dir / "proxy.toml"
    config.write_text(_config(state_dir, run_dir, key, *servers), encoding="utf-8")
    child = Child("proxy", [sys.executable, "-m", "warmroute_cli.main", "proxy", "--config", str(config)], run_dir)
    try:
        deadline_s = time.monotonic() + PROXY_TIMEOUT_S
        line = child.listening(deadline_s)
        proxy = Proxy(REGION, line["url"], line["admin_url"], run_dir / "proxy")
        wait_ready(child, proxy.url, deadline_s)
        turns = _drive(out, arguments, proxy, key, recordings)
        _check_running([child], servers)
    finally:
        stop_all([child], STOP_GRACE_S)
    rows = ledger_rows(proxy)
    return Pass(turns, rows, (), audit(turns, rows, ()))  # SGLang keeps no log of what it finished


def _drive(
    out: Console, arguments: Namespace, proxy: Proxy, key: str, recordings: Sequence[RecordedSession]
) -> list[ClientTurn]:
    target = Target({REGION: proxy.base_url}, key, arguments.seed, think_s=0.0)
    total = sum(len(recording.requests) for recording in recordings)
    with report.progress(out, "real SGLang", total) as advance:
        return asyncio.run(drive(recordings, target, arguments.sessions, advance))


def _check_running(children: Sequence[Child], servers: Sequence[Server]) -> None:
    ended = [child.name for child in children if not child.running()]
    ended += [server.name for server in servers if not server.running()]
    if ended:
        raise FleetError(f"{', '.join(ended)} ended during the demo")


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
