"""Tells Kubernetes which engines to end last: a pod's `pod-deletion-cost` follows how much warm KV its engine holds.

A ReplicaSet that scales down ends the pods with the lowest cost first. A pod's cost is how many thousand KV tokens of
sessions its engine holds. Kubernetes asks clients to change costs rarely, so a pod is annotated at most once every
`EVERY_S`, and only if its cost has changed by more than a tenth.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from warmroute_proxy.server.base.config import DiscoveryConfig
from warmroute_proxy.server.base.config_source import LiveConfig
from warmroute_proxy.server.discovery.discovery import Discovery
from warmroute_proxy.server.discovery.kubernetes import PODS
from warmroute_proxy.server.discovery.kubernetes_api import Api
from warmroute_proxy.server.discovery.source import SourceError

ANNOTATION: Final = "controller.kubernetes.io/pod-deletion-cost"
EVERY_S: Final = 60.0
SILENT_S: Final = 10.0
MAX_COST: Final = 2_147_483_647
_LEAST_CHANGE: Final = 0.1
_TOKENS: Final = 1_000

log = logging.getLogger(__name__)


class DeletionCosts:
    """Annotates the pods of each [[discovery]] that has `deletion_cost`."""

    def __init__(self, live: LiveConfig, discovery: Discovery, warm_tokens: Callable[[], dict[str, int]]) -> None:
        """`warm_tokens`: returns engine -> number of KV tokens of sessions that the engine holds."""
        self._live = live
        self._discovery = discovery
        self._warm_tokens = warm_tokens
        self._costs: dict[tuple[str, str], int] = {}  # (discovery, pod) -> the cost that was last sent
        self._refused: dict[str, str] = {}  # discovery -> why the last annotation failed

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            await self.annotate()

    async def annotate(self) -> None:
        """Annotate the pods whose cost has changed. A failure is logged once, not each time it repeats."""
        tokens = self._warm_tokens()
        for discovery in self._live.now.discoveries:
            if discovery.deletion_cost:
                mine = self._discovery.named_by(discovery.id)
                await self._annotate(discovery, _costs_by_pod({each: tokens[each] for each in mine if each in tokens}))

    async def _annotate(self, discovery: DiscoveryConfig, costs: dict[str, int]) -> None:
        self._costs = {key: cost for key, cost in self._costs.items() if key[0] != discovery.id or key[1] in costs}
        try:
            api = Api(discovery.api, discovery.credentials)
            path = PODS.format(discovery.namespace or api.namespace())
            for pod, cost in costs.items():
                before = self._costs.get((discovery.id, pod))
                if before is None or abs(cost - before) > _LEAST_CHANGE * max(cost, before):
                    annotations = {"metadata": {"annotations": {ANNOTATION: str(cost)}}}
                    await api.patch(f"{path}/{pod}", msgspec.json.encode(annotations), SILENT_S)
                    self._costs[discovery.id, pod] = cost
        except SourceError as error:
            if self._refused.get(discovery.id) != str(error):
                log.error("discovery %s: pods do not get their deletion cost: %s", discovery.id, error)
            self._refused[discovery.id] = str(error)
        else:
            self._refused.pop(discovery.id, None)


def _costs_by_pod(tokens: dict[str, int]) -> dict[str, int]:
    """Pod -> its cost. An engine's id is the name of its pod, followed by a port if the pod has several engines."""
    costs: dict[str, int] = {}
    for engine, held in tokens.items():
        pod = engine.partition(":")[0]
        costs[pod] = min(MAX_COST, costs.get(pod, 0) + held // _TOKENS)
    return costs
