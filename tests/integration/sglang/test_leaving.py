"""Clients that leave: the abort reaches SGLang, and the entry is settled with what SGLang had done."""

import json

import pytest

from tests.integration.sglang.behind import LONG_PROMPT, Behind, conversation, work_of
from tests.subjects.processes import until
from warmroute.contract import receipt as contract_receipt

LEFT_WITHIN_S = 8.0
"""SGLang's own notice of a closed connection takes up to 6 s; an abort is faster."""

LONG_ANSWER = 2_000


@pytest.mark.real_deadlines("inference_request")
@pytest.mark.parametrize("moment", ["before the head", "mid-stream", "whole answer"])
def test_a_client_that_leaves_stops_the_work(behind: Behind, moment: str, name: str) -> None:
    text = name + (LONG_PROMPT if moment == "before the head" else "")
    body = conversation(text, stream=moment != "whole answer", max_tokens=LONG_ANSWER)
    with behind.proxy.send(body) as sock:
        if moment == "mid-stream":
            received = b""
            while b"data: " not in received:
                more = sock.recv(1000)
                assert more
                received += more
        else:
            until(lambda: any(work_of(server) for server in behind.servers), "it runs")
    until(behind.idle, "no server works for somebody who left", LEFT_WITHIN_S)

    row = behind.proxy.rows(expected=1)[0]
    assert (row["state"], row["outcome"], row["status"]) == ("settled", "client_left", 0)
    usage = json.loads(row["usage"])
    assert contract_receipt.check(usage) == []
    assert usage["completion_tokens"] < LONG_ANSWER
    if moment == "mid-stream":
        assert usage["prompt_tokens"] > 0
        assert usage["completion_tokens"] > 0
    else:
        assert usage["prompt_tokens"] > 0 or "prompt_tokens" in usage["warmroute"]["estimated"]
