"""One row of the benchmark as draws of its arrivals: `python -m scripts.placement.draws --made-up short --workers 2`.

Each policy is played at several seeds. The median of a column counts, and its range is shown. A third of the rows is
held back, by a hash of the row's name, so that nobody chooses them. Those are played once, at the end, and reported
apart.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.placement.rule import HIT_SLACK, NEAR, P90_FACTOR

SEEDS: Final = (1, 2, 3, 4, 5)
OURS: Final = ("warmroute", "warmroute+events")
BASELINES: Final = ("llmd_affinity", "smg_event", "dynamo_kv", "lmetric", "session_sticky")
HELD_BACK_OF: Final = 3


class Drawn(NamedTuple):
    """One column of one policy over all draws: the median, the least and the most."""

    median: float
    least: float
    most: float

    def text(self, digits: int) -> str:
        """As a table shows it."""
        return f"{self.median:.{digits}f} ({self.least:.{digits}f}-{self.most:.{digits}f})"


class Policy(NamedTuple):
    """What a policy reaches on a row."""

    hit: Drawn
    p90_s: Drawn


def is_held_back(row: str) -> bool:
    """Whether a row is one of the third that no constant may be chosen by."""
    return int.from_bytes(hashlib.sha256(row.encode()).digest()[:8], "big") % HELD_BACK_OF == 0


def drawn(values: Iterable[float]) -> Drawn:
    """The median and range of some draws."""
    found = sorted(values)
    return Drawn(statistics.median(found), found[0], found[-1])


def policies_of(results: Iterable[Mapping[str, Any]]) -> dict[str, Policy]:
    """Each policy of the results of all draws, as `warmroute replay --json` writes them."""
    by_policy: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        by_policy[result["policy"]].append(result)
    return {
        name: Policy(drawn(each["hit"] for each in rows), drawn(each["ttft_p90_s"] for each in rows))
        for name, rows in by_policy.items()
    }


def rule_holds(ours: Policy, others: Sequence[Policy]) -> bool:
    """The rule of `rule`, on medians."""
    best = max(each.hit.median for each in others)
    limit_s = P90_FACTOR * min(each.p90_s.median for each in others if each.hit.median >= best - NEAR)
    return ours.hit.median >= best - HIT_SLACK and ours.p90_s.median <= limit_s


def play(words: Sequence[str], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """The results of all draws of a row."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "figures.json"
        for seed in seeds:
            command = [sys.executable, "-m", "warmroute_cli.main", "replay", *words, "--seed", str(seed)]
            command += ["--policy", *OURS, *BASELINES, "--json", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            results += json.loads(path.read_text("utf-8"))
    return results


def table(row: str, policies: Mapping[str, Policy]) -> str:
    """The row as Markdown, with what the rule says of ours."""
    others = [policy for name, policy in policies.items() if name not in OURS]
    lines = [f"{row}{' (held back)' if is_held_back(row) else ''}", "", "| policy | hit | TTFT p90 s | the rule |"]
    lines.append("|---|---|---|---|")
    for name, policy in policies.items():
        verdict = ("holds" if rule_holds(policy, others) else "fails") if name in OURS else ""
        lines.append(f"| {name} | {policy.hit.text(3)} | {policy.p90_s.text(2)} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    """The command line: the options are those of `warmroute replay`, for a generated trace."""
    parser = argparse.ArgumentParser(prog="python -m scripts.placement.draws", description=__doc__)
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS, metavar="N")
    asked, words = parser.parse_known_args()
    row = " ".join(words)
    print(table(row, policies_of(play(words, asked.seeds))))


if __name__ == "__main__":
    main()
