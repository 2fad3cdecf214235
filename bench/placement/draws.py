"""Runs the rows (simulations) at all seeds, and keeps the results: `python -m bench.placement draws`.

A *draw* is one run of a row at one seed. All rows run at the first seed, then at the second, and so on. A draw that is
kept does not run again, so a run that was interrupted continues where it stopped. The page can be written at any time,
from the draws that exist. After a change of a placement rule, remove `docs/benchmarks/placement/draws.json`.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.placement.figures import replay
from bench.placement.rows import Row

FILE: Final = Path("docs/benchmarks/placement/draws.json")


class Draw(NamedTuple):
    """The results of one policy on a row at one seed."""

    seed: int
    hit: float
    p90_s: float
    """p90 of TTFT."""
    token_p90_s: float
    """p90 of the time per token."""
    computed_tokens: float = 0.0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0
    """`mean_s`, `p50_s`, `p99_s` and `max_s` are of TTFT."""
    session_s: float = 0.0
    """The mean time that a session waits for its answers."""
    new_p50_s: float = 0.0
    new_p90_s: float = 0.0
    new_max_s: float = 0.0
    """`new_p50_s`, `new_p90_s` and `new_max_s` are of the TTFT of turns that begin a session."""
    running_max_s: float = 0.0
    """The longest TTFT of all other turns. In old draws, fields that were added since are 0."""


_COLUMNS: Final = (
    "hit", "ttft_p90_s", "tpot_p90_s", "computed_tokens", "ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "ttft_max_s",
    "session_s", "new_p50_s", "new_p90_s", "new_max_s", "running_max_s",
)  # fmt: skip
"""The fields of a result of `warmroute replay`, in the order of `Draw`."""


Draws = dict[str, dict[str, list[Draw]]]
"""Draws by row and policy, in the order of seeds."""


def kept(file: Path = FILE) -> Draws:
    """Return the draws that the file has."""
    if not file.exists():
        return {}
    rows = json.loads(file.read_text("utf-8"))
    return {
        row: {policy: [Draw(*draw) for draw in draws] for policy, draws in policies.items()}
        for row, policies in rows.items()
    }


def keep(draws: Draws, file: Path = FILE) -> None:
    """Write the draws, a line for each policy of a row. If the process ends meanwhile, the old file stays."""
    rows = [
        f'"{row}": {{\n' + ",\n".join(f' "{policy}": {json.dumps(each)}' for policy, each in policies.items()) + "}"
        for row, policies in draws.items()
    ]
    new = file.with_suffix(".new")
    new.write_text("{" + ",\n".join(rows) + "}\n", encoding="utf-8")
    new.replace(file)


def play(rows: Sequence[Row], seeds: Iterable[int], traces: str, file: Path = FILE) -> Draws:
    """Run the missing draws of these rows at these seeds, and return all draws of the file. Rows with one command share
    one run of it. Two processes may run different rows at once: each adds its draws to those in the file.
    """
    by_words: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        by_words.setdefault(row.words, []).append(row)
    for seed in seeds:
        for words, group in by_words.items():
            draws = kept(file)
            given = [word.replace("$TRACES", traces) for word in words]
            for policy in [each for each in group[0].policies if not _has(draws, group, each, seed)]:
                began_s = time.monotonic()
                found, _ = replay([*given, "--seed", str(seed), "--policy", policy])
                results = {result["policy"]: result for result in found}
                draws = kept(file)
                for row in group:
                    _add(draws.setdefault(row.name, {}), row, policy, seed, results)
                keep(draws, file)
                print(f"seed {seed}: {group[0].name}, {policy}, {time.monotonic() - began_s:.0f} s", flush=True)
    return kept(file)


def _add(
    of_row: dict[str, list[Draw]], row: Row, policy: str, seed: int, results: Mapping[str, Mapping[str, Any]]
) -> None:
    result = results[row.label.format(policy=policy)]
    # Another process may have added this draw, too.
    others = [draw for draw in of_row.get(policy, ()) if draw.seed != seed]
    of_row[policy] = sorted([*others, Draw(seed, *(_short(result[column]) for column in _COLUMNS))])


def command(row: Row, seed: int | str) -> str:
    """Return the command that runs a row, as the page shows it."""
    return " ".join(["warmroute replay", *row.words, "--seed", str(seed), "--policy", *row.policies])


def _has(draws: Draws, group: Sequence[Row], policy: str, seed: int) -> bool:
    return all(any(draw.seed == seed for draw in draws.get(row.name, {}).get(policy, ())) for row in group)


def _short(value: float) -> float:
    return float(f"{value:.5g}")
