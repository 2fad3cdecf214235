"""`warmroute demo --tight`: more sessions than a small fleet has KV for, without and with admission by working set.

Each pass starts two embedded engines, or one real SGLang on this CPU, and a new proxy, and plays the same sessions, all
at once. Each session has a long prompt that no other session shares, and some turns with a pause for tools between
them. Without admission the sessions evict each other's KV between turns. With admission, only the sessions whose KV
fits run, and the others wait.
"""

import asyncio
import json
import random
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
from rich.console import Console

from warmroute_backend.plan.tables import table
from warmroute_backend.sglang import NotInstalledError, Server, StartError, wait_all
from warmroute_backend.sglang.command import MODEL_NAME
from warmroute_backend.sglang.speed import slowness
from warmroute_cli import state
from warmroute_cli.processes import Child, FleetError, Stopped, stop_all, stopping_on_signals
from warmroute_cli.state import locked_state
from warmroute_lab.demo import report
from warmroute_lab.demo.played import write_json
from warmroute_lab.fleet import PAGE_SIZE, STOP_GRACE_S, render, start_deadline_s, started_proxy, wait_ready
from warmroute_proxy.server.base.secrets import key_sha256

TURN_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Load:
    """The sessions and the fleet that serves them. Prompt tokens are approximate. Seconds are virtual seconds: the
    engines' clock runs `speed` times faster."""

    sessions: int = 36
    turns: int = 5
    first_tokens: int = 16_000
    more_tokens: int = 1_500
    output_tokens: int = 40
    think_s: tuple[float, float] = (2.0, 12.0)
    engines: int = 2
    kv_tokens: int = 200_000
    speed: float = 10.0
    seed: int = 1
    model: str = "kimi-k2.5"
    bytes_per_token: float = 4.0
    """Bytes of a token in texts of random words."""


ON_SGLANG: Final = Load(
    sessions=8, first_tokens=8_000, more_tokens=300, output_tokens=8, think_s=(0.1, 0.6), engines=1, kv_tokens=32_768,
    speed=1.0, model=MODEL_NAME, bytes_per_token=1.07,
)  # fmt: skip
"""The tiny model computes a few thousand tokens a second, so other sessions fill the KV pool within seconds."""


@dataclass(frozen=True, slots=True)
class ClientTurn:
    session: int
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a pass. Seconds are virtual seconds of the engines."""

    hit: float
    computed_tokens: int
    ttft_p50_s: float
    ttft_p90_s: float
    session_s: float


class TightFleet(Stopped):
    """Engines with a small KV pool, and a proxy on each of `ports`. Several proxies name each other in `others`."""

    def __init__(self, state_dir: Path, run_dir: Path, load: Load, wait_s: float, ports: Sequence[int] = (0,)) -> None:
        self._state_dir = state_dir
        self._run_dir = run_dir
        self._load = load
        self._wait_s = wait_s
        self._ports = ports
        self._engines: list[Child] = []
        self._servers: list[Server] = []
        self._proxies: list[Child] = []
        self.urls: list[str] = []
        """The URLs of the proxies."""

    @property
    def api_key(self) -> str:
        return state.api_key(self._state_dir)

    def begin(self) -> None:
        self._run_dir.mkdir(parents=True, exist_ok=True)
        engines = self._sglang() if self._load.model == MODEL_NAME else self._embedded()
        deadline_s = start_deadline_s()
        for number, port in enumerate(self._ports):
            others = [f"http://127.0.0.1:{other}" for other in self._ports if other != port]
            path, config = self._run_dir / f"proxy{number}.toml", self._config(number, port, others, engines)
            self._proxies.append(started_proxy(f"proxy{number}", path, config))
        for child in self._proxies:
            url = child.listening(deadline_s)["url"]
            wait_ready(child, url, deadline_s)
            self.urls.append(url)

    def _embedded(self) -> list[tuple[str, str]]:
        load, deadline_s = self._load, start_deadline_s()
        for number in range(load.engines):
            command = [sys.executable, "-m", "warmroute_lab.engine", "--engine-id", f"a{number}"]
            command += ["--model", load.model, "--host", "127.0.0.1", "--port", "0", "--page-size", str(PAGE_SIZE)]
            command += ["--kv-tokens", str(load.kv_tokens), "--speed", str(load.speed), "--seed", str(load.seed)]
            self._engines.append(Child(f"a{number}", command, self._run_dir))
        return [(child.name, child.listening(deadline_s)["url"]) for child in self._engines]

    def _sglang(self) -> list[tuple[str, str]]:
        flags = ("--max-total-tokens", str(self._load.kv_tokens))
        names = [f"a{number}" for number in range(self._load.engines)]
        self._servers += [Server("aggregated", self._run_dir, name=name, flags=flags, tiers=False) for name in names]
        try:
            for server in self._servers:
                server.start()
            wait_all(self._servers)
        except (NotInstalledError, StartError) as error:
            raise FleetError(str(error)) from None
        return [(server.name, server.url) for server in self._servers]

    def _config(self, number: int, port: int, others: list[str], engines: list[tuple[str, str]]) -> str:
        tables = [
            table("\n[[engine]]", {"id": name, "url": url, "region": "here", "role": "aggregated"})
            for name, url in engines
        ]
        values = {
            "model": self._load.model,
            "port": port,
            "others": others,
            "state_dir": str(self._run_dir / f"proxy{number}"),
            "secret_file": str(state.secret_file(self._state_dir)),
            "key_sha256": key_sha256(self.api_key),
            "wait_s": self._wait_s,
        }
        return render(values, "tight.toml") + "".join(tables)

    def stop(self) -> None:
        try:
            stop_all(self._proxies, STOP_GRACE_S)
        finally:
            stop_all(self._engines, STOP_GRACE_S)
            for server in self._servers:
                server.kill()


def run(arguments: Namespace) -> int:
    """Play both passes and print their table. Returns 0 if fewer tokens were computed with admission, else 1."""
    load = replace(ON_SGLANG if arguments.engine == "sglang" else Load(), seed=arguments.seed)
    out = report.console()
    found: dict[str, Figures] = {}
    if arguments.engine == "sglang":
        out.print("SGLang on this CPU (2 GB) starts and plays twice: one to four minutes")
    with stopping_on_signals(), locked_state(arguments.state_dir) as state_dir:
        for name, wait_s in (("without", 0.0), ("with", 120.0)):
            run_dir = state_dir / f"tight-{name}"
            shutil.rmtree(run_dir, ignore_errors=True)
            with TightFleet(state_dir, run_dir, load, wait_s) as fleet:
                found[name] = figures(asyncio.run(play(fleet.urls, fleet.api_key, load)), load.speed)
    if arguments.json:
        write_json(arguments.json, {name: asdict(row) for name, row in found.items()})
    show(out, load, found)
    return 0 if found["with"].computed_tokens < found["without"].computed_tokens else 1


def show(out: Console, load: Load, found: dict[str, Figures]) -> None:
    need = load.sessions * (load.first_tokens + load.more_tokens * load.turns // 2)
    out.print(
        f"{load.sessions} sessions need about {need:,} tokens of KV, and have {load.engines * load.kv_tokens:,} in"
        f" {load.engines} engine{'s' * (load.engines > 1)}.",
        markup=False,
    )
    out.print(f"{'working set':<12}{'hit':>6}{'computed':>12}{'TTFT p50 s':>12}{'p90 s':>8}{'session s':>11}")
    for name, row in found.items():
        out.print(
            f"{name:<12}{row.hit:>6.3f}{row.computed_tokens:>12,}{row.ttft_p50_s:>12.1f}{row.ttft_p90_s:>8.1f}"
            f"{row.session_s:>11.0f}",
            markup=False,
            highlight=False,
        )
    saved = 1 - found["with"].computed_tokens / max(1, found["without"].computed_tokens)
    out.print(f"Admission by working set computes {saved:.0%} less. Seconds are the engines'.", markup=False)


async def play(urls: Sequence[str], api_key: str, load: Load) -> list[ClientTurn]:
    """Play all sessions at once. The turns of a session go to the proxies in rotation."""
    limits = httpx.Limits(max_connections=None)
    headers = {"authorization": f"Bearer {api_key}"}
    options: dict[str, Any] = {"headers": headers, "timeout": TURN_TIMEOUT_S * slowness(), "limits": limits}
    async with httpx.AsyncClient(trust_env=False, **options) as client:
        played = await asyncio.gather(*[_session(client, urls, load, number) for number in range(load.sessions)])
    return [turn for turns in played for turn in turns]


async def _session(client: httpx.AsyncClient, urls: Sequence[str], load: Load, number: int) -> list[ClientTurn]:
    start_s, *pauses_s = pauses_of(load, number)
    await asyncio.sleep(start_s / load.speed)
    messages = [{"role": "user", "content": text_of(number, 0, load.first_tokens * load.bytes_per_token)}]
    turns: list[ClientTurn] = []
    for at in range(load.turns):
        body = {
            "model": load.model, "messages": messages, "stream": True, "max_tokens": load.output_tokens,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        turn, text = await _turn(client, urls[(number + at) % len(urls)], body, number)
        turns.append(turn)
        messages += [
            {"role": "assistant", "content": text},
            {"role": "user", "content": text_of(number, at + 1, load.more_tokens * load.bytes_per_token)},
        ]
        await asyncio.sleep(pauses_s[at] / load.speed)
    return turns


def pauses_of(load: Load, session: int) -> list[float]:
    """Virtual seconds until a session starts, and after each of its turns."""
    draw = random.Random(f"{load.seed}:{session}")  # noqa: S311 (a reproducible plan, not a secret)
    return [draw.uniform(0, load.think_s[1]), *[draw.uniform(*load.think_s) for _ in range(load.turns)]]


async def _turn(client: httpx.AsyncClient, url: str, body: dict[str, Any], number: int) -> tuple[ClientTurn, str]:
    began_s, first_s = time.monotonic(), 0.0
    usage: dict[str, Any] = {}
    texts: list[str] = []
    headers = {"x-session-affinity": f"tight-{number}"}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        if answer.status_code != 200:
            raise FleetError(f"a turn was refused: {answer.status_code} {(await answer.aread())[:200]!r}")
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line[6:])
            if chunk.get("error"):
                raise FleetError(f"a turn broke off: {chunk['error']}")
            usage = chunk.get("usage") or usage
            text = "".join(choice.get("delta", {}).get("content") or "" for choice in chunk.get("choices", ()))
            if text and not texts:
                first_s = time.monotonic()
            texts += [text] if text else []
    now_s = time.monotonic()
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    turn = ClientTurn(number, usage["prompt_tokens"], cached, (first_s or now_s) - began_s, now_s - began_s)
    return turn, "".join(texts)


def text_of(session: int, turn: int, size: float) -> str:
    """A text of about `size` bytes that differs between sessions and turns."""
    draw = random.Random(f"{session}:{turn}")  # noqa: S311 (a reproducible text, not a secret)
    words = [f"{draw.getrandbits(28):07x}" for _ in range(round(size / 8))]
    return " ".join(words)


def figures(turns: Sequence[ClientTurn], speed: float) -> Figures:
    prompt, cached = sum(turn.prompt_tokens for turn in turns), sum(turn.cached_tokens for turn in turns)
    ttfts = sorted(turn.ttft_s * speed for turn in turns)
    sessions = len({turn.session for turn in turns})
    return Figures(
        cached / prompt,
        prompt - cached,
        ttfts[len(ttfts) // 2],
        ttfts[len(ttfts) * 9 // 10],
        sum(turn.took_s for turn in turns) * speed / sessions,
    )
