"""The tests that show where the embedded engine and SGLang differ on purpose.

The differences are the rows of the table in `docs/contribute/engine-fidelity.md`. No other test of the contract may
look at which subject it has.
"""

from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "contribute" / "engine-fidelity.md"
SHOWN_BY: Final = {
    "tokens": "test_differences.py::test_tokens",
    "template": "test_differences.py::test_template",
    "`metadata.script`": "test_differences.py::test_script",
    "thinking switched on": "test_differences.py::test_reasoning",
    "`/server_info`": "test_differences.py::test_server_info",
    "`/engine/finished`": "test_differences.py::test_own_paths",
    "`/v1/messages`": "test_differences.py::test_other_paths",
    "`/health` of an idle engine": "test_differences.py::test_health",
    "`/v1/loads?format=prometheus`": "test_differences.py::test_loads_format",
    "`decode_moments` in `/v1/loads`": "test_differences.py::test_left_out_members",
    "wall-clock times in `meta_info`": "test_differences.py::test_meta_times",
    "`/metrics`": "test_differences.py::test_metrics",
    "a body that is JSON but not an object": "test_differences.py::test_json_that_is_no_object",
    "an unknown member of `sampling_params`": "test_differences.py::test_unknown_sampling_parameter",
    "`echo` of a completion": "test_differences.py::test_echo",
    "a client of a whole answer leaves": "test_differences.py::test_leaving",
    "abort by the id of one of several choices": "test_differences.py::test_abort_of_one_choice",
    "an eviction on the device": "cache/test_cache_differences.py::test_how_much_an_eviction_takes",
    "cache policies": "cache/test_cache_differences.py::test_cache_policies",
    "figures about drafts": "speculative/test_speculative.py::test_what_is_told_of_drafts",
    "`bootstrap_room` 0": "pd/test_pd_differences.py::test_room_zero",
    "a second request with a live `bootstrap_room`": "pd/test_pd_differences.py::test_a_room_that_is_live",
    "prefill aborted": "pd/test_pd_differences.py::test_prefill_aborted_when_decode_is_there",
    "`/route` of the bootstrap server": "pd/test_pd_differences.py::test_facts_of_the_bootstrap_server",
    "a room without `bootstrap_host`, sent to decode": "pd/test_pd_differences.py::test_a_room_without_a_host",
}
"""The start of a row and its test below `tests/contract`, in the order of the table."""

META_TIMES: Final = frozenset({
    "api_server_dispatch_finish_ts", "decode_throughput", "e2e_latency", "first_token_latency", "forward_entry_time",
    "prefill_finished_time", "queue_time", "request_finished_ts", "request_received_ts", "response_sent_to_client_ts",
})  # fmt: skip
LEFT_OUT: Final = META_TIMES | {"decode_moments", "embedding"}
"""Members that only SGLang's answers have; a recorded answer is compared without them."""


def rows() -> list[list[str]]:
    """The cells of the table: what differs, in SGLang, in the embedded engine, and why."""
    lines = PAGE.read_text().partition("## Where the two engines differ on purpose\n")[2].splitlines()
    table = [line for line in lines if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in table[2:]]
