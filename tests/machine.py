"""Limits of tests, so that they end what hangs and not what is only slow.

A test waits for an event, or goes by virtual time. Where only a limit can end a wait for what never comes, the limit is
what an idle machine of the reference's speed needs, with much to spare, and `seconds` stretches it for this machine as
it is now. The speed is measured once a process; the load is read each time.
"""

from warmroute_backend.sglang.speed import MAX_SLOWNESS, measured, slowness

__all__ = ["MAX_SLOWNESS", "configured", "measured", "seconds", "slowness"]


def seconds(limit_s: float, most: float = MAX_SLOWNESS) -> float:
    """A limit for an idle reference machine, as a limit for this machine now; at most so many times as long."""
    return limit_s * min(most, slowness())


def configured(limit_s: float) -> float:
    """A limit that the product is given and a test waits for, so stretched less; what is quick must not run into it."""
    return round(seconds(limit_s, 5.0), 1)
