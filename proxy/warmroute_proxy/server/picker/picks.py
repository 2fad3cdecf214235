"""Names the engines that a gateway may try after the picked one, and finds the worker that has answered instead."""

from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.engines.engine import Engine
from warmroute_proxy.server.engines.engines import Engines
from warmroute_proxy.server.picker.addresses import Addresses


def named(decision: Decision, engines: Engines, addresses: Addresses, count: int) -> list[str]:
    """The `count` addresses that the gateway should try, the cheapest first; one address if there is only one engine.

    If too few other engines can take the request that was made for the picked one, the picked address is repeated.
    Otherwise a gateway that has tried all addresses might go on with any engine.
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
    """Up to `most` addresses of other engines, the cheapest first. A prefill/decode pair has no fallback, since the
    prefill engine waits for the picked decode engine.
    """
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
    """Whether a request that was made for one engine may go to the other: its key, path and body must not differ."""
    one, two = first.config, other.config
    return (
        (one.kind, one.provider, one.model_names) == (two.kind, two.provider, two.model_names)
        and first.bearer == other.bearer
        and first.upstream.base_path == other.upstream.base_path
    )


def all_but(address: str, decision: Decision, engines: Engines, addresses: Addresses) -> frozenset[str] | None:
    """All workers but the one at `address`, which has answered; None if that engine is the picked one or unknown."""
    picked = decision.worker or decision.decode
    engine = addresses.engine_at(address)
    if engine is None or picked is None or engine.config.id == picked.engine:
        return None
    rank = picked.dp_rank if engine.info.dp_size > 1 else 0
    workers = engines.workers()
    return frozenset(each.id for each in workers if each.engine != engine.config.id or each.dp_rank != rank)
