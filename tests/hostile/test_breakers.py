"""A client's own failures are its own: they close no engine to another tenant."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from .conftest import HOSTILE, INNOCENT, MakePlace

BAD = "the engine fails at this"


def test_answers_of_500_close_no_engine_to_another_tenant(make_place: MakePlace) -> None:
    """Whatever a field does to an engine that it does not end: SGLang answers 500 to a bad `stop_regex`."""
    place = make_place(2)
    place.order(fault="status", status=500, count=10_000, containing=BAD)

    def hostile(number: int) -> int:
        return place.ask(HOSTILE, f"{BAD} {number}").status_code

    def innocent(number: int) -> int:
        return place.ask(INNOCENT, f"question {number}").status_code

    with ThreadPoolExecutor(2) as bad, ThreadPoolExecutor(2) as good:
        failed, served = bad.map(hostile, range(40)), good.map(innocent, range(40))
        assert set(failed) == {502}
        assert set(served) == {200}
    assert place.proxy.metric("warmroute_retries_total") > 0


def test_one_tenant_does_not_close_the_only_engine(make_place: MakePlace) -> None:
    place = make_place(1)
    place.order(fault="status", status=500, count=10_000, containing=BAD)
    assert {place.ask(HOSTILE, f"{BAD} {number}").status_code for number in range(30)} == {502}
    assert place.failures() == {"e0": 0}
    assert place.ask(INNOCENT, "hello").status_code == 200


def test_an_answer_that_is_too_large_is_nobodys_fault(make_place: MakePlace) -> None:
    place = make_place(1, limits="response_bytes = 1024")
    for number in range(6):
        answer = place.ask(HOSTILE, f"long {number}", n=8)
        assert answer.status_code == 502
        assert "1024 bytes" in answer.json()["error"]["message"]
    assert place.failures() == {"e0": 0}


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_engine_that_fails_two_tenants_is_closed(make_place: MakePlace, ranks: int) -> None:
    place = make_place(2, ranks)

    def most_failures() -> int:
        return max(failures for worker, failures in place.failures().items() if worker.startswith("e0"))

    httpx.post(f"{place.engines[0].url}/engine/faults", json={"fault": "status", "status": 500, "count": 10_000})
    for number in range(40):
        own = [{"role": "user", "content": f"{number} " * 200}]  # of no cached prefix, so that both engines are chosen
        assert place.ask(number // 2 % 2, "", messages=own).status_code == 200  # the other engine answers
        if most_failures() >= 3:
            break
    assert most_failures() >= 3


def test_another_rank_answers_if_there_is_no_other_engine(make_place: MakePlace) -> None:
    place = make_place(1, ranks=2)
    place.order(fault="status", status=500, count=1)
    assert place.ask(INNOCENT, "hello").status_code == 200
    assert place.proxy.metric("warmroute_retries_total") == 1
