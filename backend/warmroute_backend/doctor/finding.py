"""One judgement of the doctor."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. Only a problem makes the exit status 1."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a topic, and what to do, if there is something to do."""

    level: Level
    topic: str
    text: str
    todo: str = ""
