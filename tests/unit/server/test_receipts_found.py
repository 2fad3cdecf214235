"""Where a receipt is looked for, and when the proxy says that it does not exist."""

from types import SimpleNamespace
from typing import Any

import pytest

from warmroute_proxy.server.base.config import TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.control.usage_routes import Receipts

RECEIPT = f"wr-{'0' * 24}"
TENANT = TenantConfig("acme", (), "acme")


async def found(
    here: int, there: int, came_from: str | None, *, all_sent: bool = False
) -> tuple[int | None, list[str]]:
    """The status of the answer (404 for no receipt), and who was asked. `here`, `there`: what others answer."""
    asked: list[str] = []

    def answering(name: str, status: int) -> Any:
        async def answer(*_: object) -> tuple[int, bytes]:
            asked.append(name)
            return status, b"{}"

        return answer

    async def has_all() -> bool:
        return all_sent

    async def nothing(*_: object) -> None:
        return None

    receipts = Receipts(
        SimpleNamespace(receipt=lambda *_: None),  # type: ignore[arg-type]
        SimpleNamespace(ask=answering("regions", there)),  # type: ignore[arg-type]
        SimpleNamespace(receipt=nothing, all_sent=has_all),  # type: ignore[arg-type]
        SimpleNamespace(region="east", read=answering("here", here)),  # type: ignore[arg-type]
    )
    try:
        answer = await receipts.find(TENANT, RECEIPT, came_from=came_from)
    except Refusal as refusal:
        return refusal.status, asked
    return (404 if answer is None else answer[0]), asked


@pytest.mark.parametrize(
    ("here", "there", "all_sent", "status"),
    [
        (200, 503, False, 200),
        (503, 202, False, 202),
        (404, 404, False, 404),
        (503, 404, True, 503),
        (404, 503, True, 503),
        (410, 404, False, 503),  # a pod that Kubernetes replaces has rows that nobody else has
        (410, 404, True, 404),
    ],
)
async def test_a_receipt_does_not_exist_only_if_all_say_so(here: int, there: int, all_sent: bool, status: int) -> None:
    assert (await found(here, there, None, all_sent=all_sent))[0] == status


@pytest.mark.parametrize(("came_from", "asked"), [(None, ["here", "regions"]), ("west", ["here"]), ("east", [])])
async def test_another_region_asks_all_proxies_of_this_one(came_from: str | None, asked: list[str]) -> None:
    assert await found(404, 404, came_from) == (404, asked)
