"""What a pick is beside its first choice: the engines that a gateway may try next, and which one has answered."""

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.picker.addresses import Addresses


def named(decision: Decision, engines: Engines, addresses: Addresses, count: int) -> list[str]:
    """The `count` addresses that the gateway is to try, the cheapest first; one, if there is one engine.

    Where others cannot take what was made for the picked one, that is named again: a gateway that has tried all may go
    on with any.
    """
    picked = decision.worker or decision.decode
    assert picked is not None
    address = addresses.of(engines.of(picked))
    if address is None:
        return []
    if len(engines.by_id) == 1:
        return [address]
    found = [address, *_fallbacks(decision, engines, addresses, count - 1)]
    return found + [address] * (count - len(found))


def _fallbacks(decision: Decision, engines: Engines, addresses: Addresses, most: int) -> list[str]:
    """Addresses of other engines, the cheapest first. A pair has none: its other half waits for this engine."""
    picked = decision.worker
    if picked is None or most == 0:
        return []
    found: list[str] = []
    first = engines.of(picked)
    workers = {worker.id: worker for worker in engines.workers()}
    for candidate in decision.reasons[1:]:
        worker = workers.get(candidate.id)
        if worker is None or worker.engine == picked.engine or worker.role != picked.role:
            continue
        engine = engines.of(worker)
        address = addresses.of(engine)
        takes_it = _takes_the_same(first, engine) and engine.info.dp_size > picked.dp_rank
        if address is not None and address not in found and takes_it:
            found.append(address)
            if len(found) == most:
                break
    return found


def _takes_the_same(first: Engine, other: Engine) -> bool:
    """Whether what was made for one engine may go to another: its key, its path, its body."""
    one, two = first.config, other.config
    return (
        (one.kind, one.provider, one.model_names) == (two.kind, two.provider, two.model_names)
        and first.bearer == other.bearer
        and first.upstream.base_path == other.upstream.base_path
    )


def all_but(address: str, decision: Decision, engines: Engines, addresses: Addresses) -> frozenset[str] | None:
    """All workers but the one at an address that has answered; None if that is the one which was picked."""
    picked = decision.worker or decision.decode
    engine = addresses.engine_at(address)
    if engine is None or picked is None or engine.config.id == picked.engine:
        return None
    rank = picked.dp_rank if engine.info.dp_size > 1 else 0
    workers = engines.workers()
    return frozenset(each.id for each in workers if each.engine != engine.config.id or each.dp_rank != rank)
