"""What was translated before is found by its bytes alone, and is bounded."""

import pytest
from msgspec import Raw

from warmroute_proxy.dialects import known
from warmroute_proxy.dialects.known import Known


def test_only_the_same_bytes_in_the_same_scope_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "xxh3_64_intdigest", lambda _raw: 1)
    made: Known[str] = Known()
    made.keep("tenant", Raw(b"[1]"), "one", 3)
    assert made.get("tenant", Raw(b"[1]")) == "one"
    assert made.get("tenant", Raw(b"[2]")) is None
    assert made.get("other", Raw(b"[1]")) is None


def test_it_is_bounded() -> None:
    made: Known[int] = Known(max_bytes=10_000)
    for number in range(100):
        made.keep("tenant", Raw(b"%d" % number), number, 100)
    kept = [number for number in range(100) if made.get("tenant", Raw(b"%d" % number)) == number]
    assert 0 < len(kept) < 20
    assert kept[-1] == 99
    long = Raw(b'"%b"' % (b"x" * known.MAX_ENTRY_BYTES))
    made.keep("tenant", long, 0, 0)
    assert made.get("tenant", long) is None
