"""Whether the workers of a model have capacity for another request (`load.capacity`)."""

from warmroute_proxy.core.placement.choices import Choices


def has_idle_prefill(choices: Choices, now_s: float) -> bool:
    """Whether some worker has less prefill queued than keeps it busy."""
    return any(
        load.prefills.tokens < load.capacity.prefill and load.availability.is_usable(now_s) for load in choices.loads
    )


def may_forward(choices: Choices, now_s: float) -> bool:
    """Whether a peer region is usable."""
    return any(peer.load.availability.is_usable(now_s) for peer in choices.peers)


def is_full(choices: Choices, now_s: float) -> bool:
    """Whether no worker, and no pair of them, would run another request now, and no peer region is usable."""
    if may_forward(choices, now_s):
        return False
    if not has_idle_prefill(choices, now_s):
        return True
    decodes = any(
        worker.load.has_slots() and worker.load.availability.is_usable(now_s) for worker in choices.decode_workers
    )
    return not any(
        worker.load.has_slots()
        and (decodes or worker.role == "aggregated")
        and worker.load.availability.is_usable(now_s)
        for worker in choices.cache_workers
    )
