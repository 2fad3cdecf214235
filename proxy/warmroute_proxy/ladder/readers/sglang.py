"""SGLang's request log: `--log-requests`, as text or with `--log-requests-format json`.

Read are the lines of finished requests (sgl-project/sglang 0.5.23, python/sglang/srt/utils/request_logger.py). All
levels have the counts; from level 2 on the prompt's tokens are there, whole at level 3. `cached_tokens` is what the
engine's prefix cache gave. A session is known where a client sends `x-smg-routing-key`, the one header that SGLang
logs by itself. One file is one worker.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from warmroute_proxy.ladder.of_reports import Report
from warmroute_proxy.ladder.readers.lines import MAX_LINE_BYTES, count_of, json_object, pieces_of, text_of

SESSION: Final = "x-smg-routing-key"
FINISHED: Final = "request.finished"
_OUT: Final = ", out={"
_FINISH: Final = "Finish: obj="
_COUNT: Final = re.compile(r"'(prompt_tokens|completion_tokens|cached_tokens)': (\d{1,13})\b")
_IDS: Final = re.compile(r"\binput_ids=(\[[\d, ]*\])")
_TEXT: Final = re.compile(r"\btext='((?:[^'\\]|\\.)*)'")
_ANSWER: Final = re.compile(r"'output_ids': (\[[\d, ]*\])")
_SESSION: Final = re.compile(rf"'{SESSION}': '([^']{{1,256}})'")
_AT: Final = re.compile(r"\[(\d{4}-\d\d-\d\d[ T][\d:.]+)")
_HEADERS: Final = ", headers={"


class SGLang:
    """Reads the log of one worker. `worker`: its name; `model`: what it serves, since the log does not say it."""

    def __init__(self, worker: str = "", model: str = "") -> None:
        self.skipped = 0
        self._worker = worker
        self._model = model

    def reports(self, lines: Iterable[bytes]) -> Iterator[Report]:
        """The reports of a log's lines."""
        for line in lines:
            if FINISHED.encode() in line:
                found = self._of_json(line)
            elif _FINISH.encode() in line:
                found = self._of_text(line)
            else:
                continue
            if found is None:
                self.skipped += 1
            else:
                yield found

    def _of_json(self, line: bytes) -> Report | None:
        begins = line.find(b"{")
        row = json_object(line[begins:]) if begins >= 0 else None
        if row is None or row.get("event") != FINISHED:
            return None
        obj, headers, out = (_object(row.get(name)) for name in ("obj", "headers", "out"))
        at = text_of(row.get("timestamp"))
        session = text_of(headers.get(SESSION))
        return self._report(_object(out.get("meta_info")), _units(obj), _ids(out.get("output_ids")), session, at)

    def _of_text(self, line: bytes) -> Report | None:
        if len(line) > MAX_LINE_BYTES:
            return None
        asked, _, out = line.decode(errors="replace").rpartition(_OUT)
        counts = {name: count_of(digits) for name, digits in _COUNT.findall(out)}
        ids = _IDS.search(asked)
        text = _TEXT.search(asked)
        units = json.loads(ids[1]) if ids is not None and ids[1] != "[]" else pieces_of(text[1] if text else "")
        ids_of_answer = _ANSWER.search(out)
        answer = json.loads(ids_of_answer[1]) if ids_of_answer is not None else []
        session = _SESSION.search(asked.rpartition(_HEADERS)[2]) if _HEADERS in asked else None
        at = _AT.match(asked)
        return self._report(counts, units, answer, session[1] if session else "", at[1] if at else "")

    def _report(
        self, counts: Mapping[str, Any], units: list[int | str] | None, answer: list[int | str], session: str, at: str
    ) -> Report | None:
        prompt = count_of(counts.get("prompt_tokens"))
        if prompt is None:
            return None
        return Report(
            prompt_tokens=prompt,
            completion_tokens=count_of(counts.get("completion_tokens")) or 0,
            delivered=count_of(counts.get("cached_tokens")),
            units=units or None,
            answer=answer if units and isinstance(units[0], int) else (),
            worker=self._worker,
            at=at,
            keys={"session": session, "model": self._model, "day": at[:10]},
        )


def _units(obj: Mapping[str, Any]) -> list[int | str] | None:
    """The prompt; None where the level of the log leaves it out or cuts it."""
    text = obj.get("text")
    return _ids(obj.get("input_ids")) or (pieces_of(text) if isinstance(text, str) and text else None)


def _ids(found: object) -> list[int | str]:
    """Token ids; empty where there are none, or the log has cut them."""
    return list(found) if isinstance(found, list) and all(type(each) is int for each in found) else []


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
