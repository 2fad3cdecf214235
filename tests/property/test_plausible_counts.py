"""No count of an engine is charged that cannot be true, whatever it reports; and what must be true is never doubted."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.core.accounting.plausible import (
    MOST_THOUGHTS,
    SILENT_TOKENS,
    TEMPLATE_TOKENS,
    TOKENS_PER_BYTE,
    Allowed,
    doubted,
    is_sure,
    without,
)
from warmroute_proxy.core.accounting.usage import merge_usage
from warmroute_proxy.core.accounting.usage_fields import MAX_TOKENS
from warmroute_proxy.core.prompt.bytes_per_token import BYTES_PER_TOKEN_MAX, BYTES_PER_TOKEN_MIN

counts = st.one_of(st.integers(0, 5_000), st.integers(0, MAX_TOKENS), st.integers(-5, 2**70), st.none())
reports = st.fixed_dictionaries(
    {"prompt_tokens": counts, "completion_tokens": counts},
    optional={"reasoning_tokens": counts, "prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": counts})},
)
allowances = st.builds(
    Allowed,
    prompt_bytes=st.integers(1, 10_000_000),
    opaque=st.booleans(),
    prompts=st.integers(1, 4),
    answers=st.integers(1, 4),
    most_tokens=st.one_of(st.just(MAX_TOKENS), st.integers(1, 100_000)),
    demanded_tokens=st.just(0),
    answer_bytes=st.integers(0, 100_000),
)


@given(reports, allowances, st.integers(0, 1000))
def test_what_is_left_can_be_true(report: dict[str, object], allowed: Allowed, seen: int) -> None:
    usage = merge_usage(report, None, None, seen)
    names = doubted(usage, allowed)
    seen = min(seen, allowed.most_tokens)
    settled = without(usage, names, seen) if names else usage
    answers = allowed.answers * allowed.prompts
    if "completion_tokens" not in settled.estimated:
        assert settled.completion_tokens <= allowed.most_tokens
        thoughts = min(settled.reasoning_tokens or 0, MOST_THOUGHTS * answers)
        assert settled.completion_tokens <= allowed.answer_bytes + SILENT_TOKENS * answers + thoughts
    elif "completion_tokens" in names:
        assert settled.completion_tokens == seen
    if "prompt_tokens" not in settled.estimated and not allowed.opaque:
        most = TOKENS_PER_BYTE * allowed.prompt_bytes + TEMPLATE_TOKENS * allowed.prompts
        assert settled.prompt_tokens <= most * allowed.answers
    assert set(names) <= set(settled.estimated)
    assert settled.device + settled.host + settled.storage == settled.cached_tokens <= settled.prompt_tokens


@given(
    st.integers(1, 5_000_000),
    st.floats(BYTES_PER_TOKEN_MIN, 16.0),
    st.integers(0, TEMPLATE_TOKENS),
    st.integers(0, 50_000),
    st.integers(0, SILENT_TOKENS),
)
def test_a_count_of_a_sound_engine_is_believed(
    prompt_bytes: int, bytes_per_token: float, template: int, answer_bytes: int, silent: int
) -> None:
    prompt = int(prompt_bytes / bytes_per_token) + template
    completion = answer_bytes // 2 + silent
    usage = merge_usage({"prompt_tokens": prompt, "completion_tokens": completion}, None, None, 0)
    allowed = Allowed(prompt_bytes, False, 1, 1, completion, 0, answer_bytes)
    assert doubted(usage, allowed) == ()


@given(
    reports, st.integers(1, 10_000_000), st.floats(BYTES_PER_TOKEN_MIN, BYTES_PER_TOKEN_MAX), st.integers(1, 2**31 - 1)
)
def test_what_is_sure_is_never_doubted(report: dict[str, object], size: int, ratio: float, most: int) -> None:
    usage = merge_usage(report, None, None, 0)
    if is_sure(usage, int(size / ratio), most):
        assert doubted(usage, Allowed(size, False, 1, 1, most, 0, 0)) in {(), ("prompt_tokens",)}
        assert "prompt_tokens" not in doubted(usage, Allowed(size - size % 512, False, 1, 1, most, 0, 0)) or size < 1024
