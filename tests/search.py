"""How many examples hypothesis tries of a property, by profile.

`scripts/test` tries a quarter of the examples of `scripts/test full`. Both try the same ones in each run, so that a
change is judged by itself. `scripts/test stress` tries a quarter, and other ones in each run.
"""

from typing import Any, Final

from hypothesis import HealthCheck, settings

FULL: Final = 100
SHORT: Final = 25
LEAST: Final = 5

_COMMON: Final = settings(
    deadline=None,  # shared machines stall: a slow example says nothing about the code
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=True,
    database=None,
)


def register() -> None:
    """Make the profiles known, and load that of `scripts/test`."""
    settings.register_profile("short", _COMMON, max_examples=SHORT)
    settings.register_profile("full", _COMMON, max_examples=FULL)
    settings.register_profile("stress", _COMMON, max_examples=SHORT, derandomize=False)
    settings.load_profile("short")


def searched(examples: int = FULL, **more: Any) -> settings:
    """Settings of a property of which `scripts/test full` tries so many examples; other profiles try a part of them."""
    share = settings.default.max_examples / FULL if settings.default else 1.0
    return settings(max_examples=max(LEAST, round(examples * share)), **more)
