"""Reads `--since`: what the proxy reads, and days as people call them, which begin at midnight of the local time."""

from datetime import datetime, timedelta
from typing import Final

_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def since_parameter(text: str, now: datetime) -> str:
    """What the proxy is asked for. `now` has a time zone. The proxy reads or refuses what is no word for a day."""
    days = _days_ago(text.strip().lower(), now.weekday())
    if days is None:
        return text
    day = (now - timedelta(days=days)).date()
    return f"{datetime(day.year, day.month, day.day, tzinfo=now.tzinfo).timestamp():.0f}"


def _days_ago(word: str, today: int) -> int | None:
    if word in {"today", "yesterday"}:
        return int(word == "yesterday")
    found = [number for number, name in enumerate(_WEEKDAYS) if len(word) >= 3 and name.startswith(word)]
    return (today - found[0]) % 7 if found else None
