"""Whatever stands in a query, it is a question or a 400 that names the parameter."""

import re

from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.control.usage_question import read_question, session_key
from warmroute_proxy.server.ledger.usage_sums import MAX_LISTED

NOW_S = 1_800_000_000.0
ALLOWED = ("by", "since", "limit", "session_hash")

times = st.one_of(
    st.from_regex(r"\d{1,10}[smhdwx]?", fullmatch=True),
    st.from_regex(r"\d{4}-\d\d-\d\d", fullmatch=True),
    st.text(max_size=12),
)
parameters = st.lists(
    st.one_of(
        st.tuples(st.just("since"), times),
        st.tuples(st.just("by"), st.sampled_from(["session", "model", "tenant", "day", "hour", "", "Day"])),
        st.tuples(st.just("session_hash"), st.one_of(st.text("0123456789abcdefg", max_size=17), st.text(max_size=4))),
        st.tuples(st.just("limit"), st.one_of(st.integers(-3, 300).map(str), st.text(max_size=4))),
        st.tuples(st.text(max_size=9), st.text(max_size=9)),
    ),
    max_size=4,
)


@given(parameters)
def test_a_query_is_a_question_or_a_400(given_parameters: list[tuple[str, str]]) -> None:
    try:
        question = read_question(given_parameters, ALLOWED, NOW_S)
    except Refusal as refusal:
        assert (refusal.status, refusal.param in dict(given_parameters)) == (400, True)
        return
    names = [name for name, _ in given_parameters]
    assert sorted(names) == sorted(set(names) & set(ALLOWED))
    assert 1 <= question.limit <= MAX_LISTED
    assert question.session_hash is None or re.fullmatch("[0-9a-f]{16}", question.session_hash)
    assert (question.since_s is None) == ("since" not in names)


@given(st.text(max_size=400))
def test_a_session_header_is_a_key_or_a_400(text: str) -> None:
    header = text.encode("utf-8", "surrogatepass").decode("latin-1")
    try:
        assert session_key(header) in {text, None} or not text.isascii()
    except Refusal as refusal:
        assert (refusal.status, refusal.param) == (400, "x-session-affinity")


def test_times_are_read_as_people_write_them() -> None:
    for text, since_s in (("1h", NOW_S - 3600), ("2w", NOW_S - 1_209_600), ("1970-01-02", 86_400.0), ("12.5", 12.5)):
        assert read_question([("since", text)], ALLOWED, NOW_S).since_s == since_s
