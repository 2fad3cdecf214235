"""The two forms of a line of the log: text, and JSON."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal

_TEXT: Final = "%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"


class _Json(logging.Formatter):
    """A line of JSON for each record, however many lines its text has."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str | int | None] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "process": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as(log_format: Literal["text", "json"]) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if log_format == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
