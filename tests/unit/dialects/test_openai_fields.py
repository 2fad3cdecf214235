"""Which members of a request reach an engine: within the bounds of the list, and nothing else."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute_proxy.dialects.fields import FieldError, FieldsReader, Permissions, names_of
from warmroute_proxy.dialects.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS
from warmroute_proxy.dialects.work import is_deeper

GRANTED = Permissions(grants=frozenset({"regex", "ebnf", "structural_tag", "stop_regex"}), vocabulary=1000)
KNOWN = Permissions(vocabulary=1000)
NONE = Permissions()


def members(**given: Any) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(json.dumps(given), type=dict[str, msgspec.Raw])


def chat(allowed: Permissions = NONE, **given: Any) -> set[str]:
    return set(FieldsReader(CHAT_FIELDS, given).read(members(**given), allowed).dropped)


def completion(allowed: Permissions = NONE, **given: Any) -> set[str]:
    return set(FieldsReader(COMPLETION_FIELDS, given).read(members(**given), allowed).dropped)


@pytest.mark.parametrize(
    "lethal",
    [
        {"logprobs": True, "top_logprobs": 1_000_000},
        {"top_logprobs": -1},
        {"top_k": 10**12},
        {"top_k": -2},
        {"min_tokens": 10, "stop_token_ids": [99_999_999]},
        {"stop_token_ids": [-1]},
        {"stop_token_ids": [1.5]},
        {"logit_bias": {"1000": 1.0}},
        {"logit_bias": {"-1": 1.0}},
        {"logit_bias": {"x": 1.0}},
        {"seed": 2**64},
        {"n": 1000},
        {"temperature": -1},
        {"repetition_penalty": 0},
        {"repetition_penalty": 1e-300},
        {"max_tokens": 2**40},
        {"stop": ["x"] * 33},
        {"response_format": {"type": "structural_tag", "structures": []}},
        {"response_format": {"type": {}}},
        {"chat_template_kwargs": {"tokenize": True}},
        {"chat_template_kwargs": {"chat_template": "{{ x }}"}},
    ],
    ids=json.dumps,
)
def test_what_ends_an_engine_is_refused_by_name(lethal: dict[str, Any]) -> None:
    with pytest.raises(FieldError) as raised:
        chat(KNOWN, model="m", messages=[], **lethal)
    assert raised.value.field in lethal
    assert raised.value.field in str(raised.value)


@pytest.mark.parametrize("prompt", [[-1], [[-1]], [99_999_999], [[1, 2], [99_999_999]]], ids=json.dumps)
def test_prompts_of_token_ids_stay_within_the_vocabulary(prompt: object) -> None:
    with pytest.raises(FieldError, match="token id"):
        completion(KNOWN, prompt=prompt)


def test_completions_bound_their_log_probabilities() -> None:
    with pytest.raises(FieldError, match="logprobs"):
        completion(prompt="x", logprobs=1_000_000)


def test_token_ids_need_a_known_vocabulary() -> None:
    assert completion(KNOWN, prompt=[[1, 2], [3]], logit_bias={"7": -100}) == set()
    for fields in ({"prompt": [1]}, {"stop_token_ids": [1]}, {"logit_bias": {"1": 1}}):
        with pytest.raises(FieldError, match="vocabulary") as raised:
            completion(NONE, **fields)
        assert raised.value.code == "token_ids_not_allowed"
    assert completion(NONE, prompt=["a", "b"], stop_token_ids=[], logit_bias={}) == set()


@pytest.mark.parametrize("name", ["regex", "ebnf", "structural_tag", "stop_regex"])
def test_grammars_of_clients_need_a_grant(name: str) -> None:
    with pytest.raises(FieldError, match="ask the operator") as raised:
        chat(KNOWN, **{name: "a+"})
    assert raised.value.code == "field_not_allowed"
    assert chat(GRANTED, **{name: "a+"}) == set()
    assert chat(NONE, **{name: None}) == set()


def test_schemas_are_bounded_in_size_and_depth() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"x": deep}}
    for schema in (deep, {"enum": ["x" * 70_000]}):
        with pytest.raises(FieldError, match="response_format"):
            chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    assert (
        chat(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}})
        == set()
    )
    with pytest.raises(FieldError, match="tools"):
        chat(tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}])


def test_unlisted_members_are_dropped_passed_or_refused() -> None:
    given: dict[str, Any] = {"model": "m", "beam_width": 4, "kv_magic": {}, "temperature": 0}
    assert chat(**given) == {"beam_width", "kv_magic"}
    assert chat(Permissions(unlisted="pass"), **given) == set()
    with pytest.raises(FieldError, match="beam_width") as raised:
        chat(Permissions(unlisted="refuse"), **given)
    assert raised.value.code == "unknown_field"


def test_null_is_an_absent_member() -> None:
    for fields in (CHAT_FIELDS, COMPLETION_FIELDS):
        nulls = members(**dict.fromkeys(fields))
        assert FieldsReader(fields, nulls).read(nulls, NONE).values == dict.fromkeys(fields)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(VALUES)
def test_the_depth_is_that_of_the_parsed_value(value: object) -> None:
    def depth(of: object) -> int:
        if isinstance(of, dict):
            return 1 + max(map(depth, of.values()), default=0)
        return 1 + max(map(depth, of), default=0) if isinstance(of, list) else 0

    raw = json.dumps(value).encode()
    assert not is_deeper(raw, depth(value))
    assert depth(value) == 0 or is_deeper(raw, depth(value) - 1)


@given(st.dictionaries(st.sampled_from(sorted(CHAT_FIELDS)) | st.text(), VALUES, max_size=6))
def test_any_body_is_checked_without_another_error(body: dict[str, object]) -> None:
    try:
        dropped = chat(KNOWN, **body)
    except FieldError as error:
        assert any(name.startswith(error.field.removesuffix("...")) for name in body)
        assert re.fullmatch("[a-z_]+", error.code)
    else:
        assert dropped == set(body) - set(CHAT_FIELDS)


def test_a_body_is_bounded_where_all_that_passes_is_listed_and_needs_no_grant() -> None:
    def bounded(allowed: Permissions, **given: Any) -> bool:
        return FieldsReader(CHAT_FIELDS, given).read(members(**given), allowed).bounded

    assert bounded(NONE, model="m", temperature=1, beam_width=4)
    assert not bounded(Permissions(unlisted="pass"), model="m", beam_width=4)
    assert not bounded(GRANTED, model="m", regex="a+")


def test_long_names_are_shortened_in_errors_and_receipts() -> None:
    with pytest.raises(FieldError) as raised:
        chat(Permissions(unlisted="refuse"), **{"x" * 100_000: 1})
    assert len(str(raised.value)) < 200
    assert names_of(frozenset({"y", "x" * 100_000})) == ("x" * 64 + "...", "y")
