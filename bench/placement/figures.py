"""Runs each part (a simulation that is run once) by `warmroute replay`, and keeps the figures in one JSON file."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.placement.parts import PARTS, PRODUCTION, SPEED, WAITING, Part

from warmroute_lab.replay.loaders import load
from warmroute_lab.replay.made_up import made_up
from warmroute_lab.replay.scenarios.by_name import scenario

FILE: Final = Path("docs/benchmarks/placement/figures.json")
_LEFT_OUT: Final = frozenset({"load_times_s", "load_tokens", "retries"})

Row = dict[str, Any]
Figures = dict[str, Any]
"""`rows`: the rows of each part. `bounds`: each part's hit ratio of a cache that never forgets. `speed`: by part."""


def kept() -> Figures:
    """The figures that the file has."""
    if not FILE.exists():
        return {"rows": {}, "bounds": {}, "speed": {}}
    found: Figures = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def keep(figures: Figures) -> None:
    """Write the figures, a line for each row."""
    parts = [f'"{name}": [\n{_lines(rows)}\n]' for name, rows in sorted(figures["rows"].items())]
    rest = {key: figures[key] for key in ("bounds", "speed")}
    text = '{"rows": {\n' + ",\n".join(parts) + "},\n" + json.dumps(rest, indent=1)[2:]
    FILE.write_text(text + "\n", encoding="utf-8")


def play(wanted: Sequence[str], traces: str) -> None:
    """Run parts by name, or measure `speed`; do all if no part is named."""
    figures = kept()
    only = [name for name in wanted if name != "speed"]
    if only or not wanted:
        _measure(figures, names(only), traces)
        keep(figures)
    if "speed" in wanted or not wanted:
        _measure_speed(figures, traces)
        keep(figures)


def _measure(figures: Figures, parts: Sequence[Part], traces: str) -> None:
    for part in parts:
        rows, _ = replay(part.words(traces))
        figures["rows"][part.name] = rows
        figures["bounds"][part.name] = round(_bound(part, traces), 4)
        print(f"{part.name}: {len(rows)} runs, {sum(row['cpu_s'] for row in rows):.0f} s of CPU", flush=True)


def _measure_speed(figures: Figures, traces: str) -> None:
    """Time the command in a new process three times. The shortest time counts, since other programs may also run."""
    for part in SPEED:
        words = speed_words(part, traces)
        runs = [replay(words) for _ in range(3)]
        figures["speed"][part.name] = {
            "requests": runs[0][0][0]["requests"],
            "wall_s": round(min(spent["wall_s"] for _, spent in runs), 2),
            "cpu_s": round(min(spent["cpu_s"] for _, spent in runs), 2),
            "simulation_cpu_s": round(min(rows[0]["cpu_s"] for rows, _ in runs), 2),
            "rss_mb": round(max(spent["rss_mb"] for _, spent in runs)),
        }
        print(f"{part.name}: {figures['speed'][part.name]}", flush=True)


def speed_words(part: Part, traces: str) -> list[str]:
    """The arguments of a timed command. The conversation trace is played twice, one after the other."""
    words = part.words(traces)
    return [words[0], *words] if part.name == "speed-conversation" else words


def find(figures: Figures, part: str, policy: str, speed_up: float) -> Row:
    """The row of a part for a policy at a load."""
    for row in figures["rows"][part]:
        if row["policy"] == policy and row["speed_up"] == speed_up:
            found: Row = row
            return found
    sys.exit(f"{policy} at {speed_up:g}x was not played in {part}: run with --only {part}")


def baselines(figures: Figures, part: str, speed_up: float) -> list[Row]:
    """The rows of a part at a load for all policies that are not warmroute's."""
    rows: list[Row] = figures["rows"][part]
    return [row for row in rows if row["speed_up"] == speed_up and not row["policy"].startswith(PRODUCTION)]


def replay(words: Sequence[str]) -> tuple[list[Row], dict[str, float]]:
    """The rows of `warmroute replay` with these arguments, and what the process has used."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.json"
        command = [sys.executable, "-m", "warmroute_cli.main", "replay", *words, "--json", str(path)]
        # Use cached bytecode as an installed package does, even if this shell's environment turns it off.
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
        began_s = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began_s
        if status:
            sys.exit(f"failed: {' '.join(command)}")
        rows = [
            {key: _short(value) for key, value in row.items() if key not in _LEFT_OUT}
            for row in json.loads(path.read_text(encoding="utf-8"))
        ]
    spent = {"wall_s": wall_s, "cpu_s": usage.ru_utime + usage.ru_stime, "rss_mb": usage.ru_maxrss / 1024}
    return rows, spent


def _bound(part: Part, traces: str) -> float:
    if part.trace:
        return load(Path(traces) / part.trace).ceiling()
    option, name = part.what
    return (scenario(name).trace if option == "--scenario" else made_up(name)).ceiling()


def _short(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def _lines(rows: Sequence[Row]) -> str:
    return ",\n".join(json.dumps(row) for row in rows)


def names(parts: Sequence[str]) -> list[Part]:
    """The parts with these names; all parts if there are no names."""
    known = (*PARTS, *WAITING)
    unknown = set(parts) - {part.name for part in known}
    if unknown:
        sys.exit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(part.name for part in known)}")
    return [part for part in known if not parts or part.name in parts]
