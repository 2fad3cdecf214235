"""Replays a trace with another placement, fleet, KV memory or prices, and explains the price difference by causes.

The differences by cause add up to the difference of the two prices, to the nanodollar. If the rates differ, `prices` is
one more cause. Figures come from the simulated engines of `warmroute replay` (docs/reference/replay.md).
"""

from argparse import ArgumentTypeError
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from warmroute.contract.money import Rates
from warmroute.files.given import GivenFile
from warmroute_cli.arguments import count, rates_of
from warmroute_cli.replay.replay_options import kv_tokens, workers
from warmroute_lab.replay.loaders import begins_as_record
from warmroute_lab.replay.record import MAX_BYTES
from warmroute_lab.replay.setup import DEFAULT_POLICY, POLICIES, Setup, run_watched
from warmroute_lab.replay.trace import Trace
from warmroute_proxy.core.replicas.record import Frames, Opened
from warmroute_proxy.ladder.of_reports import Report, Reports
from warmroute_proxy.ladder.sums import Ladder
from warmroute_proxy.ladder.turn import LadderTurn

NAMES: Final = ("policy", "workers", "kv-tokens", "max-running", "price")


@dataclass(frozen=True, slots=True)
class Case:
    """The policy, fleet and rates with which the trace is played."""

    name: str
    policy: str = DEFAULT_POLICY
    setup: Setup = field(default_factory=Setup)
    rates: Rates | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """How a case differs from the first case. `causes`: cause -> additional tokens and nanodollars that are lost."""

    name: str
    delivered: int
    price_nanousd: int
    more_nanousd: int
    causes: dict[str, tuple[int, int]]

    def as_dict(self) -> dict[str, Any]:
        causes = [
            {"cause": name, "tokens": tokens, "nanousd": nanousd} for name, (tokens, nanousd) in self.causes.items()
        ]
        return {
            "what_if": self.name,
            "delivered_tokens": self.delivered,
            "price_nanousd": self.price_nanousd,
            "more_nanousd": self.more_nanousd,
            "causes": causes,
        }


def first_case(paths: list[Path], given: str | None, device_tokens: int | None) -> Case:
    """The case that others are compared with: a record's fleet or the default fleet, with the changes in `given`.

    Raises: ValueError, OSError.
    """
    setup = Setup() if device_tokens is None else Setup(kv_tokens=device_tokens)
    roles = _roles(paths[0])
    decodes = roles.count("decode")
    if roles:
        setup = replace(setup, prefills=max(1, len(roles) - decodes), decodes=decodes)
    case = Case("as it is", setup=setup)
    return case if given is None else changed(case, given, "--as-it-is")


def changed(case: Case, text: str, option: str) -> Case:
    """A case with some settings changed: `policy=round_robin,kv-tokens=600k`. Raises: ValueError, with `option`."""
    try:
        return _changed(case, text)
    except (ArgumentTypeError, ValueError) as error:
        raise ValueError(f"{option} {text!r}: {error}") from None


def _changed(case: Case, text: str) -> Case:
    setup, policy, rates = case.setup, case.policy, case.rates
    for each in text.split(","):
        name, equals, value = each.partition("=")
        if not equals or name not in NAMES:
            raise ValueError(f"{each!r} is not one of {', '.join(f'{known}=' for known in NAMES)}")
        if name == "policy":
            if value not in POLICIES:
                raise ValueError(f"no policy {value}; there are {', '.join(POLICIES)}")
            policy = value
        elif name == "workers":
            prefills, decodes = workers(value)
            setup = replace(setup, prefills=prefills, decodes=decodes)
        elif name == "kv-tokens":
            device, host, store = kv_tokens(value)
            setup = replace(setup, kv_tokens=device, host_tokens=host, store_tokens=store)
        elif name == "max-running":
            setup = replace(setup, max_running=count(value))
        else:
            rates = rates_of(value)
    return Case(text, policy, setup, rates)


def _roles(path: Path) -> list[str]:
    """The roles of the workers in a proxy's record of decisions; empty if the file is not a record."""
    if not begins_as_record(path):
        return []
    with GivenFile(path, MAX_BYTES) as file:
        for _, _, opened in Frames(file.read):
            return [worker.role for worker in opened.workers] if isinstance(opened, Opened) else []
    return []


def ladder_of(trace: Trace, case: Case, rates: Rates | None, by: str | None = None) -> Ladder:
    """The ladder of a case. All models have the same `rates`. Raises: TraceError."""
    reports = Reports({} if rates is None else {"": rates})
    ladder = Ladder(by)
    for turn in _turns(trace, case, reports):
        ladder.add(turn)
    return ladder


def _turns(trace: Trace, case: Case, reports: Reports) -> Iterable[LadderTurn]:
    _, played = run_watched(trace, case.setup, case.policy)
    reachable = _reachable(trace)
    of_prompts = _reachable(trace, answers=False) if case.setup.decodes else reachable
    for turn in played:
        request = turn.request
        most = max(reachable[request.number], turn.cached_tokens)
        held = min(max(turn.held_tokens, turn.cached_tokens), most)
        levels = {
            "reachable": most,
            "kept": held,
            "chosen": min(turn.here_tokens, held),
            "delivered": turn.cached_tokens,
            "reported": turn.cached_tokens,
            "billed": turn.cached_tokens,
        }
        keys = {"session": str(request.session), "model": "", "day": ""}
        not_kept = max(0, most - max(held, of_prompts[request.number]))  # KV of answers, which only decode workers have
        under_way = 0 if turn.after_evictions else most - held - not_kept  # not evicted, so still being computed
        yield reports.turn_of(
            Report(
                prompt_tokens=request.input_tokens, completion_tokens=request.output_tokens, levels=levels, keys=keys,
                loss={"not_kept": not_kept, "not_computed_yet": under_way},
            )
        )  # fmt: skip


def _reachable(trace: Trace, *, answers: bool = True) -> list[int]:
    """For each request: the length of its longest prefix that earlier requests sent, or got as `answers`, in tokens."""
    seen: set[int] = set()
    found = []
    for request in trace.requests:
        matched, size = 0, trace.block_tokens
        for block in request.blocks[: request.input_tokens // size]:
            if block not in seen:
                break
            matched += 1
        seen.update(request.blocks[: (request.input_tokens + answers * request.output_tokens) // size])
        found.append(min(matched, (request.input_tokens - 1) // size) * size)  # engines always compute the last token
    return found


def difference(first: Ladder, case: Case, other: Ladder, other_rates: Ladder | None) -> Difference:
    """Split the difference by cause. `other_rates`: the ladder `other` at the case's own rates, if it has any."""
    before, after = first.all.lost, other.all.lost
    causes: dict[str, tuple[int, int]] = {}
    for step, cause in {**before, **after}:
        old, new = before.get((step, cause), (0, 0)), after.get((step, cause), (0, 0))
        tokens, nanousd = causes.get(cause, (0, 0))
        causes[cause] = tokens + new[0] - old[0], nanousd + new[1] - old[1]
    price = other.all.price_nanousd
    if other_rates is not None:
        causes["prices"] = 0, other_rates.all.price_nanousd - price
        price = other_rates.all.price_nanousd
    causes = {name: lost for name, lost in causes.items() if lost != (0, 0)}
    causes = dict(sorted(causes.items(), key=lambda each: (-abs(each[1][1]), -abs(each[1][0]))))
    more = price - first.all.price_nanousd
    return Difference(case.name, other.all.levels()["delivered"][0], price, more, causes)


def differences(trace: Trace, first: Ladder, rates: Rates | None, others: Iterable[Case]) -> list[Difference]:
    """How each case in `others` differs from the first case, whose rates are `rates`. Raises: TraceError."""
    found = []
    for other in others:
        own = None if other.rates is None or other.rates == rates else ladder_of(trace, other, other.rates)
        found.append(difference(first, other, ladder_of(trace, other, rates), own))
    return found


def described(case: Case) -> str:
    setup = case.setup
    tiers = ":".join(str(tokens) for tokens in (setup.kv_tokens, setup.host_tokens, setup.store_tokens) if tokens)
    return f"policy={case.policy},workers={setup.workers},kv-tokens={tiers},max-running={setup.max_running}"
