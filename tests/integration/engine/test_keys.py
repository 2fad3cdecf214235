"""Which key opens which path: the table of SGLang 0.5.23 (`srt/utils/auth.py`)."""

from typing import Any

import pytest

KEY, ADMIN = "k-1", "a-1"
OPEN = {"/health", "/ready", "/metrics"}
CONTROL = {"/abort_request", "/flush_cache"}
OTHER = {"/server_info", "/v1/loads", "/v1/models", "/v1/chat/completions", "/nowhere"}


@pytest.mark.parametrize(
    ("flags", "other", "control"),
    [
        ((), {None, KEY, ADMIN}, {None, KEY, ADMIN}),
        (("--api-key", KEY), {KEY}, {KEY}),
        (("--admin-api-key", ADMIN), {None, KEY, ADMIN}, {ADMIN}),
        (("--api-key", KEY, "--admin-api-key", ADMIN), {KEY}, {ADMIN}),
    ],
    ids=["no key", "key", "admin key", "both"],
)
def test_which_key_opens_what(
    start_engine: Any, flags: tuple[str, ...], other: set[str | None], control: set[str | None]
) -> None:
    engine = start_engine(*flags)
    for path in sorted(OPEN | CONTROL | OTHER):
        opens = {None, KEY, ADMIN} if path in OPEN else control if path in CONTROL else other
        for shown in (None, KEY, ADMIN):
            headers = {"authorization": f"Bearer {shown}"} if shown else {}
            method = "POST" if path in CONTROL or path.endswith("completions") else "GET"
            answer = engine.client.request(method, path, headers=headers, **({"json": {}} if method == "POST" else {}))
            assert (answer.status_code == 401) == (shown not in opens), (path, shown)
            if answer.status_code == 401:
                assert answer.json() == {"error": "Unauthorized"}


@pytest.mark.parametrize("header", ["k-1", "Basic k-1", "Bearer", "Bearer k-12", "bearer K-1"])
def test_what_is_not_quite_the_key(start_engine: Any, header: str) -> None:
    engine = start_engine("--api-key", KEY)
    assert engine.client.get("/server_info", headers={"authorization": header}).status_code == 401
    assert engine.client.get("/server_info", headers={"authorization": "bearer k-1"}).status_code == 200
