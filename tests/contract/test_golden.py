"""Recorded answers of SGLang: both subjects still answer in their shape, to every name of a member and JSON type.

A file in `golden/` is an answer with its values masked. `WARMROUTE_UPDATE_GOLDEN=1` writes them anew from the real
server; what changed then is in the diff. Texts, counts and times are masked; names, types and errors' kinds are not.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.contract.differences import LEFT_OUT
from tests.contract.subject import (
    CHAT,
    COMPLETION,
    GENERATE,
    Subject,
    chat,
    completion,
    endless,
    events,
    generate,
    unique,
)

FOLDER: Final = Path(__file__).with_name("golden")
UPDATE: Final = "WARMROUTE_UPDATE_GOLDEN"
KEPT: Final = frozenset({"object", "role", "type", "finish_reason", "code", "mode", "disaggregation_mode", "param"})
"""Members whose strings are part of the contract."""

RUNNING = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
USAGE = {"stream_options": {"include_usage": True}}
WARM = "a prompt that is sent again and again, so that some of its pages are cached by then. " * 4


def _aborted(engine: Subject) -> Any:
    rid = unique()
    with engine.open(CHAT, endless(chat("to be aborted", rid=rid, **USAGE))) as lines:
        next(lines)
        next(lines)
        engine.abort(rid)
        return events(lines)[-2:]


def _twice(ask: Callable[[], Any]) -> Any:
    ask()
    return ask()


def _facts(engine: Subject) -> Any:
    read = (
        *("status", "version", "model_path", "served_model_name", "page_size", "dp_size", "tp_size", "context_length"),
        *("max_total_num_tokens", "max_req_input_len", "max_running_requests", "max_queued_requests"),
        *("chunked_prefill_size", "schedule_policy", "radix_eviction_policy", "disable_radix_cache"),
        *("enable_cache_report", "random_seed", "disaggregation_mode", "load_balance_method"),
        *("enable_hierarchical_cache", "hicache_storage_backend"),
    )
    facts = engine.facts()
    return {name: facts[name] for name in read}


SAMPLES: Final[dict[str, Callable[[Subject], Any]]] = {
    "chat": lambda engine: engine.answer(CHAT, chat("hello")),
    "chat_details": lambda engine: _twice(
        lambda: engine.answer(CHAT, chat(WARM, return_cached_tokens_details=True, cache_salt="golden"))
    ),
    "chat_choices": lambda engine: engine.answer(CHAT, chat("hello", n=2)),
    "chat_logprobs": lambda engine: engine.answer(CHAT, chat("hello", logprobs=True, top_logprobs=2)),
    "chat_stream": lambda engine: engine.events(CHAT, chat("hello", max_tokens=12, **USAGE)),
    "chat_stream_running_usage": lambda engine: engine.events(CHAT, chat("hello", max_tokens=12, **RUNNING)),
    "chat_stream_details": lambda engine: _twice(
        lambda: engine.events(CHAT, chat(WARM, return_cached_tokens_details=True, cache_salt="golden", **USAGE))
    ),
    "chat_stream_logprobs": lambda engine: engine.events(
        CHAT, chat("hello", logprobs=True, top_logprobs=1, max_tokens=12)
    ),
    "chat_stream_aborted": _aborted,
    "completion": lambda engine: engine.answer(COMPLETION, completion("hello")),
    "completion_batch": lambda engine: engine.answer(COMPLETION, completion(["hello", "there"])),
    "completion_logprobs": lambda engine: engine.answer(COMPLETION, completion([5, 6], logprobs=1)),
    "completion_stream": lambda engine: engine.events(COMPLETION, completion("hello", max_tokens=12, **USAGE)),
    "completion_stream_running_usage": lambda engine: engine.events(
        COMPLETION, completion("hello", max_tokens=12, **RUNNING)
    ),
    "generate": lambda engine: engine.answer(GENERATE, generate("hello")),
    "generate_details": lambda engine: _twice(lambda: engine.answer(GENERATE, generate(WARM, cache_salt="golden"))),
    "generate_logprobs": lambda engine: engine.answer(
        GENERATE, generate("hello", return_logprob=True, top_logprobs_num=2)
    ),
    "generate_stream": lambda engine: engine.events(GENERATE, generate("hello", max_new_tokens=12)),
    "generate_batch_stream": lambda engine: sorted(
        engine.events(GENERATE, generate(["hello", "there"], max_new_tokens=12)),
        key=lambda event: (event["index"], event["meta_info"]["completion_tokens"]),
    ),
    "error_schema": lambda engine: engine.post(CHAT, {}).json(),
    "error_wish": lambda engine: engine.post(CHAT, chat("hello", max_tokens=-1)).json(),
    "error_generate": lambda engine: engine.post(GENERATE, generate("hello", max_new_tokens=-1)).json(),
    "error_generate_stream": lambda engine: engine.events(GENERATE, generate("hello", max_new_tokens=-1)),
    "error_path": lambda engine: engine.get("/nope").json(),
    "error_model": lambda engine: engine.get("/v1/models/nobody").json(),
    "loads": lambda engine: engine.get("/v1/loads").json(),
    "models": lambda engine: engine.get("/v1/models").json(),
    "model_info": lambda engine: engine.get("/model_info").json(),
    "server_info": _facts,
    "tokenize": lambda engine: engine.answer("/v1/tokenize", {"prompt": "hello"}),
    "tokenize_batch": lambda engine: engine.answer("/v1/tokenize", {"prompt": ["hello", "there"]}),
}


def masked(value: Any, name: str = "") -> Any:
    """The value with what changes from run to run made plain. Runs of list items that then are equal become one."""
    if isinstance(value, dict):
        if name == "top_logprobs":
            return {"...": 0}  # by token
        return {key: masked(item, key) for key, item in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        items = [masked(item, name) for item in value]
        return [item for i, item in enumerate(items) if i == 0 or item != items[i - 1]]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return value if name in KEPT else "..."
    return value if name == "code" else 0


@pytest.mark.parametrize("name", SAMPLES)
def test_an_answer_has_the_shape_of_the_recorded_one(engine: Subject, name: str) -> None:
    found = masked(SAMPLES[name](engine))
    path = FOLDER / f"{name}.json"
    if os.environ.get(UPDATE) and engine.kind == "sglang":
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(path.read_text())


def test_every_recorded_answer_is_compared() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(SAMPLES)
