"""What people know sessions and agents by, and which session a text names."""

from datetime import datetime
from typing import Any

import pytest

from warmroute_cli import receipts
from warmroute_cli.api import ApiError
from warmroute_cli.main import parser
from warmroute_cli.names import agent_names, question_of, session_names

ONE, OTHER = "3f9a2c0000000001", "77aa000000000002"
BEGAN = datetime(2026, 11, 24, 14, 2).astimezone().timestamp()


def turn(session: str | None, at_s: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"session": session, "settled_at": BEGAN + at_s, **more}


TURNS = [
    turn(OTHER, 900, harness="codex", name="Fix the tests"),
    turn(ONE, 600, harness="claude-code"),
    turn(None, 300),
    turn(ONE, 0, harness="claude-code"),
]


class Asked:
    """A proxy that has these turns."""

    def ask(self, path: str, parameters: Any = None, *, session: str = "") -> Any:
        assert (path, session) == ("/usage/receipts", "")
        return {"data": TURNS}


def test_a_session_is_called_by_its_program_and_its_start_or_by_its_own_name() -> None:
    assert session_names(TURNS) == {ONE: "claude-code 11-24 14:02 (3f9a2c)", OTHER: "Fix the tests (77aa00)"}


@pytest.mark.parametrize(
    "text", [ONE, f"client ({ONE})", "3f9a", "3f9a2c", "claude-code 11-24 14:02 (3f9a2c)", "claude-code 11-24 14:02"]
)
def test_what_a_table_prints_of_a_session_names_it(text: str) -> None:
    assert question_of(Asked(), text) == ({"session_hash": ONE}, "")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["ticket-4711", "ticket-3f9a2c", "beef", "5d0c1c1e-77aa-4a0e-9d36-0a7e3c1f3f9a"])
def test_any_other_text_is_a_key(text: str) -> None:
    assert question_of(Asked(), text) == ({}, text)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["wr-0123456789abcdef01234567", "0123456789abcdef01234567"])
def test_a_receipt_of_any_age_is_found_by_its_whole_id_with_or_without_the_prefix(
    given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked:
        def ask(self, path: str) -> Any:
            raise ApiError(path)

    monkeypatch.setattr(receipts, "tenants_api", lambda _: Asked())
    with pytest.raises(ApiError, match=r"^/usage/receipts/wr-0123456789abcdef01234567$"):
        receipts.run(parser("receipts").parse_args(["receipts", "show", given]))


def test_agents_that_have_an_id_alone_are_numbered_in_the_order_of_their_start() -> None:
    turns = [
        turn(ONE, agent="a" * 16, kind="sub"),
        turn(ONE, agent="b" * 16, kind="sub"),
        turn(ONE, agent="a" * 16, kind="sub"),
        turn(ONE, agent="c" * 16),
        turn(OTHER, agent="b" * 16, kind="sub"),
        turn(ONE, agent="explore", kind="sub"),
        turn(ONE, kind="title"),
        turn(ONE),
    ]
    assert agent_names(turns) == ["sub 1", "sub 2", "sub 1", "main", "sub 1", "explore", "title", "main"]
