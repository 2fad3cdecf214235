"""Memory for the bodies of a test that is not about memory."""

from warmroute_proxy.server.http.body_memory import BodyMemory


def plenty(total_bytes: int = 2**30) -> BodyMemory:
    """As much as a proxy has by default."""
    return BodyMemory(total_bytes, 2, [0])


class NoBudget:
    """Memory without a bound."""

    def grow(self, size_bytes: int) -> bool:
        return size_bytes >= 0
