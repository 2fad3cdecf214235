"""Reads vLLM's log: `vllm serve --enable-log-requests` at the level DEBUG (`VLLM_LOGGING_LEVEL=DEBUG`).

The reader takes the lines `Request ID details: prompt: ..., prompt_token_ids: [...]` (vllm-project/vllm 0.32,
vllm/entrypoints/serve/utils/request_logger.py). These have the prompts, so reachable and kept tokens are exact. vLLM
does not log the cached tokens of a request; only its answers have them. `hit_rate` comes from the statistics line,
which has the rate over the last thousand requests. Each file is the log of one worker.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from warmroute_proxy.ladder.of_reports import Report
from warmroute_proxy.ladder.readers.lines import MAX_LINE_BYTES

_MARK: Final = b"prompt_token_ids: ["
_IDS: Final = re.compile(r"prompt_token_ids: (\[[\d, ]*\]), prompt_embeds")
_AT: Final = re.compile(r"(?:^|\) )[A-Z]+ (\d\d-\d\d \d\d:\d\d:\d\d) ")
_RATE: Final = re.compile(r"Prefix cache hit rate: (\d{1,3}\.\d)%")
_REQUEST: Final = re.compile(rb"[^'\"]{0,300}Request [!-~]{1,300} details: prompt: ")
"""Matches the beginning of a line, up to the first text that comes from a client."""


def is_request(line: bytes) -> bool:
    return _MARK in line and _REQUEST.match(line) is not None


class VLLM:
    """Reads the log of one worker. `hit_rate`: the last rate in the log, from 0 to 1; None if the log has no rate."""

    def __init__(self, worker: str) -> None:
        self.skipped = 0
        self.hit_rate: float | None = None
        self._worker = worker

    def reports(self, lines: Iterable[bytes]) -> Iterator[Report]:
        for line in lines:
            if is_request(line):
                found = self._report(line)
                if found is None:
                    self.skipped += 1
                else:
                    yield found
            elif b"Prefix cache hit rate: " in line and (rate := _RATE.search(line.decode(errors="replace"))):
                self.hit_rate = float(rate[1]) / 100

    def _report(self, line: bytes) -> Report | None:
        if len(line) > MAX_LINE_BYTES:
            return None
        text = line.decode(errors="replace")
        ids = _IDS.search(text, text.rfind(_MARK.decode()))
        try:
            units = json.loads(ids[1]) if ids is not None else []
        except ValueError:
            return None
        if not units:
            return None
        at = _AT.search(text[:200])
        keys = {"session": "", "model": "", "day": ""}
        return Report(prompt_tokens=len(units), units=units, worker=self._worker, at=at[1] if at else "", keys=keys)
