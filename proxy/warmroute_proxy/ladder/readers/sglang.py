"""Reads SGLang's request log: `--log-requests`, as text or with `--log-requests-format json`.

The reader takes the lines of finished requests (sgl-project/sglang 0.5.23, python/sglang/srt/utils/request_logger.py).
At every log level, these lines have the token counts. Level 2 adds the prompt's tokens, which may be truncated; level 3
has all of them. `cached_tokens` is what the engine's prefix cache delivered. The session is known if a client sends
`x-smg-routing-key`, the only header that SGLang logs by default. Each file is the log of one worker.

String literals in a line may come from the client, so the reader interprets nothing inside them. The text form also
has the names of a client's parameters as they came, line breaks included (`_dataclass_to_string_truncated`). So a
client can forge lines of the text form, but not of the JSON form.
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
_TEXT_LINE: Final = re.compile(rb"(?:\[\d[^]\[\"'{}()]{1,80}\] )?Finish: obj=")
_JSON_LINE: Final = re.compile(rb"(?:\[\d[^]\[\"'{}()]{1,80}\] )?(?=\{)")
"""This pattern and the one before match only the beginning of a line: anything later may come from a prompt."""

_LITERAL: Final = re.compile(r"""'[^'\\]*+(?:\\.?[^'\\]*+)*+(?:'|\Z)|"[^"\\]*+(?:\\.?[^"\\]*+)*+(?:"|\Z)""", re.DOTALL)
"""A Python string literal, with either quotes. An unclosed literal ends with the line, so each byte is read once."""

_NAME: Final = re.compile(r"'[a-z_]{1,40}'")
_NAMES_TEXT: Final = re.compile(r"\btext=$")
_COUNT: Final = re.compile(r"'(prompt_tokens|completion_tokens|cached_tokens)': (\d{1,13})\b")
_IDS: Final = re.compile(r"\binput_ids=(\[[\d, ]*\])")
_ANSWER: Final = re.compile(r"'output_ids': (\[[\d, ]*\])")
_AT: Final = re.compile(r"\[(\d{4}-\d\d-\d\d[ T][\d:.]+)")
_CUT: Final = " ... "


def is_finished(line: bytes) -> bool:
    """Whether a line is of a finished request, in the text form or the JSON form."""
    return _TEXT_LINE.match(line) is not None or (FINISHED.encode() in line and _JSON_LINE.match(line) is not None)


class SGLang:
    """Reads the log of one worker. `worker`: its name. The log does not name the model."""

    def __init__(self, worker: str) -> None:
        self.skipped = 0
        self._worker = worker

    def reports(self, lines: Iterable[bytes]) -> Iterator[Report]:
        for line in lines:
            is_text = _TEXT_LINE.match(line) is not None
            if not is_text and not is_finished(line):
                continue
            try:
                found = self._of_text(line) if is_text else self._of_json(line)
            except ValueError:
                found = None
            if found is not None:
                yield found
            elif is_text or _event(line) in {None, FINISHED}:
                self.skipped += 1

    def _of_json(self, line: bytes) -> Report | None:
        row = json_object(line[line.find(b"{") :])
        if row is None or row.get("event") != FINISHED:
            return None
        obj, headers, out = (_object(row.get(name)) for name in ("obj", "headers", "out"))
        at = text_of(row.get("timestamp"))
        session = text_of(headers.get(SESSION))
        return self._report(_object(out.get("meta_info")), _units(obj), _ids(out.get("output_ids")), session, at)

    def _of_text(self, line: bytes) -> Report | None:
        """Read a line of the text form. Raises: ValueError, if lists of tokens are malformed."""
        if len(line) > MAX_LINE_BYTES:
            return None
        plain = _Plain(line.decode(errors="replace"))
        asked, _, out = plain.rest.rpartition(_OUT)
        counts = {name: count_of(digits) for name, digits in _COUNT.findall(out)}
        ids = _IDS.search(asked)
        units = json.loads(ids[1]) if ids is not None and ids[1] != "[]" else pieces_of(plain.text)
        ids_of_answer = _ANSWER.search(out)
        answer = json.loads(ids_of_answer[1]) if ids_of_answer is not None else []
        at = _AT.match(asked)
        return self._report(counts, units, answer, plain.session, at[1] if at else "")

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
            keys={"session": session, "model": "", "day": at[:10]},
        )


class _Plain:
    """A line of the text form, split into its structure and its string literals.

    `rest`: the line with emptied literals, except for names. `text`: the prompt; empty if the log has truncated it.
    `session`: the session key in the headers.
    """

    def __init__(self, line: str) -> None:
        self.text = self.session = ""
        pieces, ends_at, name_before, is_found = [], 0, "", False
        for literal in _LITERAL.finditer(line):
            between, found = line[ends_at : literal.start()], literal[0]
            ends_at = literal.end()
            if not is_found and _NAMES_TEXT.search(between[-6:]):
                is_found = True
                self.text = "" if line.startswith(_CUT, ends_at) else _plain(found)
            if between == ": " and name_before == SESSION:
                self.session = _plain(found)[:256]
            name_before = found[1:-1] if len(found) < 64 else ""
            pieces += [between, found if _NAME.fullmatch(found) else "''"]
        self.rest = "".join([*pieces, line[ends_at:]])


def _plain(literal: str) -> str:
    """The text in a literal. Only escaped single quotes are unescaped, so a text is the same in single and double
    quotes."""
    return literal[1:-1].replace("\\'", "'") if literal[0] == "'" else literal[1:-1]


def _event(line: bytes) -> object:
    row = json_object(line[line.find(b"{") :])
    return None if row is None else row.get("event")


def _units(obj: Mapping[str, Any]) -> list[int | str] | None:
    """The prompt; None if the level of the log leaves it out or truncates it."""
    text = obj.get("text")
    return _ids(obj.get("input_ids")) or (pieces_of(text) if isinstance(text, str) and text else None)


def _ids(found: object) -> list[int | str]:
    """Token ids; empty if `found` is not a list of them, or if the log has truncated it."""
    return list(found) if isinstance(found, list) and all(type(each) is int for each in found) else []


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
