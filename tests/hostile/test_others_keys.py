"""Idempotency keys and kept answers of one tenant are not another's to evict: its retries are charged once."""

import httpx

from tests.hostile.conftest import HOSTILE, INNOCENT, MakePlace, Place
from tests.subjects.body_memory import NoBudget
from tests.subjects.processes import chat
from warmroute_proxy.core.accounting.idempotency import IdempotencyKeys, IdempotentCall
from warmroute_proxy.server.base.config import Limits
from warmroute_proxy.server.request.idempotency import KEYS_EACH, MAX_KEYS, bounds_of


def test_no_number_of_keys_pushes_out_those_of_others() -> None:
    """As many begun by one tenant as 65,536 a second for two seconds."""
    keys = IdempotencyKeys(bounds_of(Limits()))
    first = IdempotentCall(b"first", 1, NoBudget(), "innocent")
    assert keys.begin(first, 0.0)
    keys.add(first, b"an answer", 0.0)
    keys.ended(first, 0.0)
    for number in range(2 * MAX_KEYS):
        call = IdempotentCall(b"%d" % number, 1, NoBudget(), "hostile")
        assert keys.begin(call, 1.0)
        keys.add(call, b"x", 1.0)
        keys.ended(call, 1.0)
    assert keys.find(b"first", 2.0) is first
    assert first.recording is not None
    for number in range(KEYS_EACH):  # and there is room for those that come anew
        assert keys.begin(IdempotentCall(b"new %d" % number, 1, NoBudget(), "late"), 2.0)


def test_keys_under_way_leave_room_for_others() -> None:
    keys = IdempotencyKeys(bounds_of(Limits()))
    begun = 0
    while keys.begin(IdempotentCall(b"%d" % begun, 1, NoBudget(), "hostile"), 0.0):
        begun += 1
    assert begun == MAX_KEYS // 2
    assert keys.begin(IdempotentCall(b"first", 1, NoBudget(), "innocent"), 0.0)


def ask(place: Place, tenant: int, key: str, text: str) -> httpx.Response:
    with place.proxy.client(tenant) as client:
        body = chat(text, max_tokens=64)
        return client.post("/v1/chat/completions", json=body, headers={"idempotency-key": key})


def test_no_answers_push_out_those_of_others(make_place: MakePlace) -> None:
    place = make_place(1, limits="keyed_total_bytes = 8_192")
    first = ask(place, INNOCENT, "first", "tell me")
    assert first.status_code == 200
    for number in range(12):
        assert ask(place, HOSTILE, f"key {number}", f"tell me {number}").status_code == 200
    again = ask(place, INNOCENT, "first", "tell me")
    assert again.status_code == 200, again.text
    assert again.json()["usage"]["warmroute"]["id"] == first.json()["usage"]["warmroute"]["id"]
    assert len(first.content) * 12 > 8_192
    assert ask(place, HOSTILE, "key 0", "tell me 0").status_code == 409  # its own oldest made room
