"""How long Redis knows a forward token: for as long as a proxy of the region could take it."""

import asyncio

import pytest

from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.regions.forward_claim import CLOCKS_APART_S, VALID_S, Forwards
from warmroute_proxy.server.regions.region_nonces import RegionNonces

SECRETS = Secrets(b"s" * 32)


class Clock:
    """Of one proxy. `ahead_s`: of the true time."""

    now_s = 1_000.0

    def __init__(self, ahead_s: float) -> None:
        self.ahead_s = ahead_s

    def __call__(self) -> float:
        return Clock.now_s + self.ahead_s


class Store:
    """Keeps nonces as Redis does, by the true time."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    async def spend(self, nonce: str, kept_s: float) -> bool:
        if Clock.now_s < self._until_s.get(nonce, 0.0):
            return False
        self._until_s[nonce] = Clock.now_s + kept_s
        return True


async def test_a_token_is_known_until_the_proxy_with_the_slowest_clock_refuses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Clock, "now_s", 1_000.0)
    nonces = RegionNonces(Store(), Metrics())
    sender = Forwards(SECRETS, "west", Clock(VALID_S + CLOCKS_APART_S), lambda _: "ab")
    fast = Forwards(SECRETS, "east", Clock(CLOCKS_APART_S), lambda _: "")
    slow = Forwards(SECRETS, "east", Clock(0.0), lambda _: "")
    token = sender.sign("t", "t", "wr-1", "east", "body", 600.0)

    async def taken(proxy: Forwards) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        nonces.spend(proxy.check(token, "body"), answer.set_result)
        return await answer

    assert await taken(fast)
    Clock.now_s += 2 * VALID_S + CLOCKS_APART_S - 0.1  # the last moment in which the slow one takes it
    assert not await taken(slow)
