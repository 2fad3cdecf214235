"""The page of results of `warmroute conform`."""

from bench.conformity.page import page

SCORED = {
    "name": "a server", "version": "1.2.3", "how": "its defaults",
    "apis": {"openai": {"cells": [{"check": "n > 1", "state": "pass", "finding": "", "shown_by": []}]}},
}  # fmt: skip


def test_a_server_that_fails_now_is_not_shown_by_an_older_score() -> None:
    assert "| n > 1 | yes |" in page([SCORED])
    text = page([SCORED, {"name": "a server", "why": "it did not start"}])
    assert "- a server: `it did not start`" in text
    assert "1.2.3" not in text
