"""Reasons for an answer's end that OpenAI does not know: what was cut, withheld or has failed never looks whole."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.apis.case import CASES, Run
from tests.apis.played import Answered, Scene, completion

USAGE: Final = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
SHORT: Final = ("model_context_window_exceeded", "model_length", "MAX_TOKENS", "sensitive")
FAILED: Final = ("network_error", "ERROR", "insufficient_system_resource")
ENDS: Final = {
    "messages": (r'"stop_reason":"(\w+)"', ["model_context_window_exceeded", "max_tokens", "max_tokens", "refusal"]),
    "responses": (r'"incomplete_details":{"reason":"(\w+)"', [*["max_output_tokens"] * 3, "content_filter"]),
    "gemini": (r'"finishReason":"(\w+)"', [*["MAX_TOKENS"] * 3, "SAFETY"]),
}


def played(folder: Path, api: str, stream: bool, reasons: tuple[str, ...]) -> list[Answered]:
    path, body = Run(CASES / api / "plain", stream).request()
    says = [completion({"content": "half"}, USAGE, stream=stream, reason=reason) for reason in reasons]
    return Scene(folder, says, engine_count=1).play_turns(path, [lambda _: body] * len(says))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", ENDS)
def test_an_answer_that_stopped_short_says_so(tmp_path: Path, api: str, stream: bool) -> None:
    pattern, expected = ENDS[api]
    answered = played(tmp_path, api, stream, SHORT)
    assert [re.findall(pattern, each.body.decode())[-1:] for each in answered] == [[reason] for reason in expected]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("api", ["chat", *ENDS])
def test_an_answer_that_has_failed_is_an_error_and_not_charged(tmp_path: Path, api: str, stream: bool) -> None:
    for answered in played(tmp_path, api, stream, FAILED):
        assert (answered.status, answered.row and answered.row["price_nanousd"]) == (502, 0)
