"""Tests whether a tenant can find out what another one has sent (`warmroute audit isolation`).

A tenant could find it out by cached tokens or by shorter times.

Exit codes: 0: isolated; 1: a leak, or trials that show nothing; 2: the audit could not be made.
"""

import argparse
import json
import math
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from warmroute.contract.receipt import TIERS, cached_tokens
from warmroute_cli.arguments import KeyFileError, count, keys_in, whole
from warmroute_cli.tables import Column, Row, fitted, width
from warmroute_lab.conform.shapes import Shape
from warmroute_lab.conform.wire import Endpoint, NotReached

TRIALS = 20
PROMPT_BYTES = 16_000


def add(audit: argparse.ArgumentParser) -> None:
    what = audit.add_subparsers(required=True, metavar="WHAT")
    isolation = what.add_parser("isolation", help="test whether one tenant can detect another's prompts")
    option = isolation.add_argument
    option("--base-url", required=True, metavar="URL", help="base URL of the proxy, or of any server with the same API")
    option("--model", required=True, metavar="NAME", help="model of the requests")
    option(
        "--key-file",
        required=True,
        type=Path,
        metavar="FILE",
        help="file with the key of the tenant whose prompts are probed",
    )
    option("--other-key-file", required=True, type=Path, metavar="FILE", help="file with the key of another tenant")
    option(
        "--group-key-file",
        type=Path,
        metavar="FILE",
        help="file with the key of a tenant in the first one's share group",
    )
    option("--trials", type=count, default=TRIALS, metavar="N", help="counted trials, at least 8 (%(default)d)")
    option("--prompt-bytes", type=count, default=PROMPT_BYTES, metavar="N", help="size of each prompt (%(default)d)")
    option(
        "--tier", choices=TIERS, default=TIERS[0], help="cache tier of the prompts when they are probed (%(default)s)"
    )
    option(
        "--filler", type=whole, default=0, metavar="N", help="other prompts in between, to evict from upper tiers (0)"
    )
    option("--json", action="store_true", help="print the verdicts as JSON")


TIMEOUT_S: Final = 600.0


class AuditError(Exception):
    """The audit cannot go on; the message says why."""


class Probe(NamedTuple):
    """What a sender observed of one request. `tiers`: cached tokens by tier; without warmroute's receipt in the answer,
    all count as `device`. `worker`: the worker that computed the prompt; empty if no receipt names one."""

    ttft_s: float
    cached: int
    tiers: dict[str, int]
    worker: str


def new_prompt(size: int) -> str:
    """A prompt that nobody has sent before, of about `size` bytes."""
    words = [secrets.token_hex(2) for _ in range(max(8, size // 5))]
    return " ".join(words)


class Sender:
    def __init__(self, base_url: str, key: str, model: str) -> None:
        """Raises: NotReached."""
        self._endpoint = Endpoint(base_url, (key,), TIMEOUT_S)
        self._model = model

    def send(self, prompt: str) -> Probe:
        """Send a prompt as a new conversation, and wait for the whole answer. Raises: AuditError."""
        asked = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": 1,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        shape = Shape("/v1/chat/completions", {"content-type": "application/json"}, asked)
        found = self._endpoint.send("openai", shape)
        if found.status not in {0, 200}:
            raise AuditError(f"the server answers {found.status}: {_reason(found.error)}")
        if not found.ok or not found.usage:
            raise AuditError(found.error or found.broken or "the server reports no usage")
        cached, receipt = cached_tokens(found.usage), found.usage.get("warmroute") or {}
        tiers = receipt.get("cached") or {**dict.fromkeys(TIERS, 0), "device": cached}
        caching = [worker["id"] for worker in receipt.get("workers", ()) if worker["role"] != "decode"]
        return Probe(found.ttft_s, cached, tiers, caching[0] if caching else "")


def _reason(body: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "no reason that can be read"


# The trials: the first tenant sends a new prompt. Then each sender sends that prompt again, and a new one. The senders
# are another tenant (the outsider), a tenant that may use the first tenant's cache (same share group), and the first
# tenant.
#
# An outsider must see the same number of cached tokens and the same times for the repeated prompt as for a new one.
# The first tenant repeats its prompt, too, as the control. If the control sees no difference, then nothing was cached,
# or noise hides it, and an outsider who sees no difference proves nothing.
#
# Each worker has its own cache. So a repetition counts only if the worker that served the prompt first serves it again.

MOST_TRIALS: Final = 8
"""The audit makes at most `MOST_TRIALS * trials` trials, since a repetition at another worker does not count."""


class Relation(Enum):
    """Who repeats the first tenant's prompt."""

    OUTSIDER = "another tenant"
    MEMBER = "same share group"
    ITSELF = "the tenant itself"


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """`filler`: how many prompts the first tenant sends before one is repeated, to evict that one from the device."""

    trials: int
    prompt_bytes: int
    filler: int


@dataclass(slots=True)
class Seen:
    """The probes of one sender. `again`: of repeated prompts that reached the worker which had served the first tenant;
    `new`: of new prompts."""

    again: list[Probe] = field(default_factory=list)
    new: list[Probe] = field(default_factory=list)


def audit(
    senders: dict[Relation, Sender], options: AuditOptions, on_trial: Callable[[int], None]
) -> dict[Relation, Seen]:
    """Make trials until enough count. Calls `on_trial` with the number that count so far. Raises: AuditError."""
    seen = {relation: Seen() for relation in senders}
    made = 0
    while (counted := min(len(each.again) for each in seen.values())) < options.trials:
        on_trial(counted)
        if made >= MOST_TRIALS * options.trials:
            break
        _trial(senders, options, seen)
        made += 1
    return seen


def _trial(senders: dict[Relation, Sender], options: AuditOptions, seen: dict[Relation, Seen]) -> None:
    tenant = senders[Relation.ITSELF]
    prompt = new_prompt(options.prompt_bytes)
    first = tenant.send(prompt)
    for _ in range(options.filler):
        tenant.send(new_prompt(options.prompt_bytes))
    for relation, sender in senders.items():  # the first tenant is last: it loads the prompt back to the device
        steps = [prompt, new_prompt(options.prompt_bytes)]
        if secrets.randbelow(2):  # a random order, so that a drift over time does not look like a hit
            steps.reverse()
        for step in steps:
            probe = sender.send(step)
            if step is not prompt:
                seen[relation].new.append(probe)
            elif probe.worker == first.worker:
                seen[relation].again.append(probe)


# Whether one set of times is lower than another: the one-sided test of Mann and Whitney (1947).
#
# U counts the pairs in which the first set's value is the lower one; a tie counts as a half. If both sets, of n and m
# values, are drawn from the same distribution, U has the mean n*m/2 and, with ties of t values each, the variance
#
#     n*m/12 * (n + m + 1 - sum(t^3 - t) / ((n + m) * (n + m - 1)))
#
# U is close to normal if each set has eight values or more. The test assumes no distribution of times, so a few slow
# requests do no harm.


class Comparison(NamedTuple):
    """`effect`: the share of pairs in which the first value is lower; 0.5 if the sets do not differ. `p_value`: the
    probability of at least this effect if the sets do not differ."""

    effect: float
    p_value: float


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Whether the values of `first` are lower than those of `second`. If a set is empty, the sets do not differ."""
    n, m = len(first), len(second)
    if not n or not m:
        return Comparison(0.5, 1.0)
    u = sum((a < b) + 0.5 * (a == b) for a in first for b in second)
    ties = sum(t**3 - t for t in Counter([*first, *second]).values())
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * max(1, n + m - 1)))
    if variance <= 0:
        return Comparison(0.5, 1.0)
    z = (u - n * m / 2 - 0.5) / math.sqrt(variance)  # 0.5: U is a whole number, the normal curve is not
    return Comparison(u / (n * m), math.erfc(z / math.sqrt(2)) / 2)


ALPHA: Final = 0.001
"""Times differ if the p-value is below this number. So one audit in a thousand of a sound fleet fails by chance."""

LEAST_EFFECT: Final = 0.6
"""A smaller `Comparison.effect` is not a difference that a tenant could use."""

LEAST_HITS: Final = 0.5
"""The share of repeated prompts that the first tenant and its share group must find in the tier that `--tier` names."""


@dataclass(frozen=True, slots=True)
class IsolationVerdict:
    """The verdict on one sender. `hits`: how many of `samples` repeated prompts were found. Times are in seconds."""

    relation: str
    samples: int
    hits: int
    median_cached: float
    median_ttft_s: float
    median_new_ttft_s: float
    effect: float
    p_value: float
    ok: bool
    finding: str


def verdicts(seen: Mapping[Relation, Seen], trials: int, tier: str) -> list[IsolationVerdict]:
    """The verdict on each sender. `tier`: the tier in which the first tenant and its share group must find the repeated
    prompts; if they do not, the audit shows nothing."""
    return [_verdict(relation, found, trials, tier) for relation, found in seen.items()]


def _verdict(relation: Relation, seen: Seen, trials: int, tier: str) -> IsolationVerdict:
    baseline = max((probe.cached for probe in seen.new), default=0)  # tokens that all prompts share
    hits = [probe for probe in seen.again if probe.cached > baseline]
    times = compare([probe.ttft_s for probe in seen.again], [probe.ttft_s for probe in seen.new])
    ok, finding = _judged(relation, seen, hits=len(hits), times=times, trials=trials, tier=tier)
    return IsolationVerdict(
        relation=relation.value,
        samples=len(seen.again),
        hits=len(hits),
        median_cached=_median([probe.cached for probe in seen.again]),
        median_ttft_s=_median([probe.ttft_s for probe in seen.again]),
        median_new_ttft_s=_median([probe.ttft_s for probe in seen.new]),
        effect=times.effect,
        p_value=times.p_value,
        ok=ok,
        finding=finding,
    )


def _judged(
    relation: Relation, seen: Seen, *, hits: int, times: Comparison, trials: int, tier: str
) -> tuple[bool, str]:
    shorter = times.p_value < ALPHA and times.effect >= LEAST_EFFECT
    if len(seen.again) < trials:
        return False, "shows nothing: too few of its prompts met the tenant's on a worker"
    if relation is Relation.OUTSIDER:
        if hits:
            return False, "LEAK: cached tokens reveal prompts of another tenant"
        if shorter:
            return False, "LEAK: the time to the first token reveals prompts of another tenant"
        return True, "sees nothing"
    in_tier = sum(probe.tiers.get(tier, 0) > 0 for probe in seen.again)
    if hits < LEAST_HITS * len(seen.again):
        return False, "shows nothing: the prompts were not found again"
    if in_tier < LEAST_HITS * len(seen.again):
        return False, f"shows nothing: the prompts were not found in the {tier} tier"
    if not shorter:
        return False, "shows nothing of times: they do not differ even here; send longer prompts, or more"
    return True, "finds its own prompts" if relation is Relation.ITSELF else "shares, as configured"


def _median(values: list[int] | list[float]) -> float:
    return median(values) if values else 0.0


LEAST_TRIALS: Final = 8
_COLUMNS: Final = (
    Column("sender of a repeated prompt"),
    *(Column(name, is_number=True) for name in ("found", "cached", "TTFT ms", "of new ones", "lower in", "p")),
    Column(""),
)


def run(arguments: argparse.Namespace) -> int:
    try:
        if arguments.trials < LEAST_TRIALS:
            raise AuditError(f"--trials {arguments.trials} is too few to tell anything; give {LEAST_TRIALS} or more")
        senders = _senders(arguments)
        options = AuditOptions(arguments.trials, arguments.prompt_bytes, arguments.filler)
        try:
            seen = audit(senders, options, lambda counted: _progress(f"\r{counted} of {arguments.trials} trials"))
        finally:
            _progress("\n")
    except (AuditError, KeyFileError, NotReached) as error:
        print(f"warmroute audit: {error}", file=sys.stderr)
        return 2
    found = verdicts(seen, arguments.trials, arguments.tier)
    print(json.dumps([asdict(each) for each in found], indent=2) if arguments.json else shown(found))
    return 0 if all(each.ok for each in found) else 1


def shown(found: list[IsolationVerdict]) -> str:
    rows = [
        Row((
            each.relation,
            f"{each.hits} of {each.samples}",
            f"{each.median_cached:,.0f}",
            f"{each.median_ttft_s * 1000:,.1f}",
            f"{each.median_new_ttft_s * 1000:,.1f}",
            f"{each.effect:.0%}",
            f"{each.p_value:.2g}",
            each.finding,
        ))
        for each in found
    ]  # fmt: skip
    verdict = "isolated" if all(each.ok for each in found) else "NOT shown to be isolated"
    return "\n".join([*fitted(_COLUMNS, rows, "", width()), verdict])


def _senders(arguments: argparse.Namespace) -> dict[Relation, Sender]:
    """The senders. The first tenant is last, since its request loads the prompt back to the device."""
    files = {
        "--other-key-file": arguments.other_key_file,
        "--group-key-file": arguments.group_key_file,
        "--key-file": arguments.key_file,
    }
    relations = (Relation.OUTSIDER, Relation.MEMBER, Relation.ITSELF)
    return {
        relation: Sender(arguments.base_url, key, arguments.model)
        for relation, key in zip(relations, keys_in(files), strict=True)
        if key
    }


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(text, end="", file=sys.stderr, flush=True)
