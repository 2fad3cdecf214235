"""Decides whether an engine hangs. Pure.

An engine hangs if, for longer than a limit, it has running requests and its scheduler does nothing, or if its
`/metrics` does not answer for that time.

SGLang 0.5.23 counts tokens after each batch (`realtime_tokens_total`). SGLang updates the number of running requests
every 40 decode batches, at each prefill, and when it becomes idle
(`managers/scheduler_components/metrics_reporter.py`). The number is not updated while the scheduler waits without a
batch: decode waits for KV of prefill, prefill waits for a place in decode, or the engine is paused. So a token count
that stays the same does not prove a hang. In each second of its loop, the scheduler also counts its CPU time
(`_record_scheduler_time`), even while it waits, but not inside a batch that does not end. Another process answers
`/metrics`, and continues to answer while the scheduler hangs. Ranks are judged together: with attention groups all
ranks compute the same batches, and a rank without requests keeps its last number.

SGLang's own watchdog (`--watchdog-timeout`, 300 s) writes stacks and ends a server whose batch does not end. The
watchdog is a thread of the scheduler, so it cannot act if the scheduler is stopped or keeps the interpreter's lock.
`HANG_S` is longer, so that SGLang acts first if it can.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

HANG_S: Final = 360.0
HANGS: Final = "hangs: "
"""The first word of each finding of a hang."""
READ_EVERY_S: Final = 10.0
LONGEST_STEP: Final = 3
"""The maximum number of periods that one reading adds to a hang, since a launcher that was paused has observed nothing
meanwhile."""

_LINE: Final = re.compile(
    r"^sglang:(num_running_reqs|realtime_tokens_total|scheduler_process_cpu_seconds_total)\{([^}]*)\} ([0-9.eE+-]+)$",
    re.MULTILINE,
)
_PRIORITY: Final = re.compile(r'(?<!\w)priority="[^"]')
"""The label of lines that count only the running requests of one priority. The line without this label counts all."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of an engine. `at_s`: time of the newest reading; `work`: tokens plus the scheduler's CPU seconds,
    below 0 if the engine counts no tokens; `still_s`: how long `work` has stayed the same in spite of running requests;
    `silent_s`: how long `/metrics` has not answered.
    """

    at_s: float
    running: float = 0.0
    work: float = -1.0
    still_s: float = 0.0
    silent_s: float = 0.0


def observed(before: Progress, text: str | None, now_s: float, read_every_s: float = READ_EVERY_S) -> Progress:
    """The progress after a reading. `text`: the answer of `/metrics`, or None if it did not answer. `read_every_s`: the
    period of readings. `still_s` stays 0 for an engine that does not count tokens.
    """
    step_s = min(now_s - before.at_s, LONGEST_STEP * read_every_s)
    if text is None:
        return replace(before, at_s=now_s, silent_s=before.silent_s + step_s)
    running, tokens, cpu_s = 0.0, -1.0, 0.0
    for family, labels, value in _LINE.findall(text):
        if family == "realtime_tokens_total":
            tokens = max(tokens, 0.0) + float(value)
        elif family == "scheduler_process_cpu_seconds_total":
            cpu_s += float(value)
        elif not _PRIORITY.search(labels):
            running += float(value)
    work = -1.0 if tokens < 0 else tokens + cpu_s
    is_still = work == before.work >= 0 and running > 0 and before.running > 0
    return Progress(now_s, running, work, before.still_s + step_s if is_still else 0.0)


def hang(progress: Progress, limit_s: float) -> str:
    """What hangs, and for how long; empty if the engine does not hang."""
    if progress.silent_s >= limit_s:
        return f"{HANGS}/metrics has not answered for {progress.silent_s:.0f} s"
    if progress.still_s >= limit_s:
        requests = f"{progress.running:.0f} running request{'s' * (progress.running != 1)}"
        return f"{HANGS}{requests}, and no token was computed for {progress.still_s:.0f} s"
    return ""
