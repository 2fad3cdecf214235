"""What is not the client's: the server, time, or nothing at all."""

import pytest

from warmroute.guard.causes import Cause
from warmroute.guard.outcome import UNKNOWN, Keeping, outcome

OPENAI = Keeping(ttl_s=600, min_tokens=1024)


@pytest.mark.parametrize(
    ("expected", "cached", "prompt", "idle_s", "keeping", "cause"),
    [
        (8000, 0, 8200, 20.0, OPENAI, Cause.PROVIDER_MISS),
        (8000, 4608, 8200, 20.0, OPENAI, Cause.PROVIDER_MISS),
        (8000, 0, 8200, 601.0, OPENAI, Cause.IDLE),
        (8000, 0, 8200, 601.0, UNKNOWN, Cause.PROVIDER_MISS),
        (900, 0, 1100, 20.0, OPENAI, Cause.TOO_SHORT),
        (0, 0, 8000, 0.0, OPENAI, Cause.FIRST_TURN),
        (0, 7900, 8000, 0.0, OPENAI, None),
        (8000, 7936, 8200, 20.0, OPENAI, None),
        (8000, 8000, 8200, 9000.0, OPENAI, None),
        (200, 128, 220, 20.0, UNKNOWN, None),
        (8000, None, 8200, 20.0, OPENAI, None),
        (8000, 0, 0, 20.0, OPENAI, None),
        (8000, 3900, 4000, 20.0, OPENAI, None),
    ],
)  # fmt: skip
def test_the_cause_of_what_is_not_cached(
    expected: int, cached: int | None, prompt: int, idle_s: float, keeping: Keeping, cause: Cause | None
) -> None:
    assert outcome(expected, cached, prompt, idle_s, keeping) is cause
