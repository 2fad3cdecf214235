"""Replays a record that a proxy has kept (`[proxy] record`), and compares every decision."""

from pathlib import Path
from typing import Final, NamedTuple

from warmroute.files.given import GivenFile
from warmroute_proxy.core.placement.decision import Candidate, Decision
from warmroute_proxy.core.replicas.record import Closed, Frame, Frames, Opened, Placed, RecordError
from warmroute_proxy.core.replicas.recorder import Playback

MAX_BYTES: Final = 2 << 30
"""The largest record that is read. A proxy ends a record at 1 GiB."""


class ReplayVerdict(NamedTuple):
    """The result of replaying a record.

    `first_difference`: the first decision that differs, and in what; None if all are equal. `cut_off`: the place at
    which a record without an end marker ends (its proxy was killed, or the disk was full); None for a whole record.
    """

    software: str
    decisions: int
    differing: int
    first_difference: str | None
    cut_off: str | None
    closed: str | None


def verify(path: Path) -> ReplayVerdict:
    """Repeat every decision of the record in a file. Raises: RecordError, UnreadableFile."""
    with GivenFile(path, MAX_BYTES) as file:
        try:
            return judge(Frames(file.read))
        except RecordError as error:
            raise RecordError(f"{path} {error}") from None


def judge(frames: Frames) -> ReplayVerdict:
    """Repeat every decision of these frames. Raises: RecordError, if frames are unreadable or out of order."""
    opened = playback = first = closed = None
    decisions = differing = 0
    for found in frames:
        call = found.call
        if isinstance(call, Opened):
            opened, playback = call, Playback(call)
        elif isinstance(call, Closed):
            closed = call.reason
        elif playback is not None and isinstance(call, Placed):
            again = playback.place(call)
            decisions += 1
            if again != call:
                differing += 1
                first = first or _difference(found, decisions, call, again)
        elif playback is not None:
            _apply(playback, found)
    if opened is None:
        raise RecordError(f"is empty: cut off {frames.cut_off}")
    return ReplayVerdict(opened.software, decisions, differing, first, frames.cut_off, closed)


def _apply(playback: Playback, found: Frame) -> None:
    try:
        playback.apply(found.call)
    except Exception as error:
        name, where = type(found.call).__name__, f"at byte {found.offset}, frame {found.number}"
        problem = f"{type(error).__name__}: {error}"
        raise RecordError(f"cannot be played {where} ({name}): {problem}; was it written by another version?") from None


def _difference(found: Frame, number: int, then: Placed, now: Placed) -> str:
    where = f"decision {number} (frame {found.number}, at {then.now_s:.3f} s)"
    if then.decision is None or now.decision is None:
        return f"{where}: {_outcome(then)} then, {_outcome(now)} now"
    for field, shown in zip(Decision.__struct_fields__, Decision.__struct_encode_fields__, strict=True):
        old, new = getattr(then.decision, field), getattr(now.decision, field)
        if old != new:
            name, one, other = _differing_reason(old, new) if field == "reasons" else (shown, old, new)
            return f"{where}: {name} was {one}, is {other}"
    return f"{where}: served was {then.served}, is {now.served}"


def _outcome(call: Placed) -> str:
    if call.decision is not None:
        return f"to {call.decision.cache_worker}"
    return "no worker can be used" if call.served else "no worker exists"


def _differing_reason(old: tuple[Candidate, ...], new: tuple[Candidate, ...]) -> tuple[str, object, object]:
    for at, (one, other) in enumerate(zip(old, new, strict=False)):
        for name in Candidate._fields:
            if getattr(one, name) != getattr(other, name):
                return f"reasons[{at}].{name}", getattr(one, name), getattr(other, name)
    return "the number of reasons", len(old), len(new)
