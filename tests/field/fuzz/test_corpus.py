"""What the fuzzer has found worth keeping still holds; `python -m tests.field.fuzz` looks for more."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.field.fuzz import body, body_template, dialects, http1, passthrough, sse, websocket

CORPUS = Path(__file__).parent / "corpus"
CHECKS: dict[str, Callable[[bytes], None]] = {
    "http1": http1.check,
    "body": body.check,
    "body_template": body_template.check,
    "dialects": dialects.check,
    "sse": sse.check,
    "passthrough": passthrough.check,
    "websocket": websocket.check,
}


def words(target: str) -> list[bytes]:
    """The fuzzer's dictionary."""
    lines = (Path(__file__).parent / "words" / target).read_text().splitlines()
    return [line[1:-1].encode().decode("unicode_escape").encode("latin-1") for line in lines if line.startswith('"')]


@pytest.mark.parametrize("target", CHECKS)
def test_what_was_found_before(target: str) -> None:
    found = sorted((CORPUS / target).iterdir())
    assert found
    for path in found:
        CHECKS[target](path.read_bytes())


@pytest.mark.parametrize("target", CHECKS)
@given(data=st.data())
def test_any_order_of_what_inputs_are_made_of(target: str, data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.one_of(st.sampled_from(words(target)), st.binary(max_size=3)), max_size=14))
    CHECKS[target](b"".join(parts))
