"""Readers of foreign logs take any line: they pass over what they cannot read, and no count leaves its bounds."""

import json

from hypothesis import given
from hypothesis import strategies as st

from warmroute.contract.money import Rates
from warmroute_proxy.ladder.of_reports import Reports
from warmroute_proxy.ladder.prefixes import Prefixes
from warmroute_proxy.ladder.readers.litellm import LiteLLM
from warmroute_proxy.ladder.readers.otel import Otel
from warmroute_proxy.ladder.readers.sglang import SGLang
from warmroute_proxy.ladder.readers.vllm import VLLM
from warmroute_proxy.ladder.steps import STEPS
from warmroute_proxy.ladder.sums import Ladder

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8)
names = st.sampled_from(
    ["spend", "prompt_tokens", "completion_tokens", "metadata", "usage_object", "prompt_tokens_details", "messages",
     "cached_tokens", "request_tags", "status", "startTime", "resourceSpans", "scopeSpans", "spans", "attributes",
     "key", "value", "intValue", "resource", "event", "obj", "out", "meta_info", "input_ids", "output_ids", "text",
     "headers", "proxy_server_request", "session_id", "timestamp"]
)  # fmt: skip
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4)
)  # fmt: skip
rows = st.dictionaries(names, values, max_size=8)
finished = rows.map(lambda row: {**row, "event": "request.finished"})
spent = rows.map(lambda row: {"spend": 1, "prompt_tokens": 7, **row})
texts = st.sampled_from(
    [b"Finish: obj=X(input_ids=[1, 2, 3], text='a'), out={'prompt_tokens': 3, 'cached_tokens': 9}",
     b"Request a details: prompt: 'x', prompt_token_ids: [1, 2], prompt_embeds shape: None."]
)  # fmt: skip
lines = st.lists((rows | finished | spent).map(lambda row: json.dumps(row).encode()) | st.binary(max_size=60) | texts)


@given(lines, st.none() | st.integers(1, 1_000))
def test_any_log_is_read_to_its_end(log: list[bytes], kv_tokens: int | None) -> None:
    for reader in (LiteLLM(), Otel(), SGLang("a"), VLLM("a")):
        reports, ladder = Reports({"": Rates(600_000, 100_000, 3_000_000)}, kv_tokens), Ladder("model")
        for report in reader.reports(log):
            turn = reports.turn_of(report)
            assert turn.price_nanousd >= 0
            ladder.add(turn)
        levels = ladder.all.levels()
        assert levels["billed"][1] == ladder.all.price_nanousd
        assert all(0 <= levels[step][0] <= ladder.all.prompt_tokens for step in STEPS)


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=80), st.sampled_from(["a", "b"])), max_size=12),
    st.none() | st.integers(16, 200),
    st.sampled_from([1, 4, 16]),
)
def test_no_cache_holds_more_than_was_ever_sent(
    prompts: list[tuple[list[int], str]], units: int | None, page: int
) -> None:
    prefixes = Prefixes(units, page)
    sent: list[list[int]] = []
    for prompt, worker in prompts:
        seen = prefixes.add(prompt, worker)
        best = max((_common(prompt, other) for other in sent), default=0)
        assert seen.chosen <= seen.held <= seen.reachable <= best
        assert seen.reachable == min(best // page, max(0, len(prompt) - 1) // page) * page
        if units is not None:
            assert seen.held <= max(units, page)
        sent.append(prompt)


def _common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
