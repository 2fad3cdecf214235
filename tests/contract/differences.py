"""Where the embedded engine and SGLang differ on purpose: the rows of the table in
`docs/contribute/engine-fidelity.md`.

Every row names the test that shows the difference on both subjects, and no other test of the contract may look at
which subject it has. `python -m tests.contract.differences` writes the table into the page.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[2] / "docs" / "contribute" / "engine-fidelity.md"
START, END = "<!-- differences: begin -->", "<!-- differences: end -->"


@dataclass(frozen=True)
class Difference:
    """One row. `shown_by` is `file::test` below `tests/contract`."""

    what: str
    sglang: str
    embedded: str
    why: str
    shown_by: str


DIFFERENCES: Final = (
    Difference(
        what="tokens",
        sglang="the model's tokenizer",
        embedded="4 bytes of the rendered text are a token",
        why="the engine has no model; only shared beginnings of prompts matter",
        shown_by="test_differences.py::test_tokens",
    ),
    Difference(
        what="template",
        sglang="the model's chat template",
        embedded="a fixed one: tools, then messages, then the head of the answer",
        why="the engine has no model",
        shown_by="test_differences.py::test_template",
    ),
    Difference(
        what="`metadata.script`",
        sglang="ignored",
        embedded="sets the answer: text, tool calls, an error ([examples](scripted-answers.md))",
        why="an agent's loop can be driven without a model",
        shown_by="test_differences.py::test_script",
    ),
    Difference(
        what="thinking switched on, without `--reasoning-parser`",
        sglang="the model's output is content",
        embedded="a third of the answer is `reasoning_content`",
        why="clients that show reasoning can be tested",
        shown_by="test_differences.py::test_reasoning",
    ),
    Difference(
        what="`/server_info`",
        sglang="all of some 550 arguments",
        embedded="the arguments that a proxy reads, and `engine`, `engine_id`, `speed`, `started_at`",
        why="the engine identifies itself",
        shown_by="test_differences.py::test_server_info",
    ),
    Difference(
        what="`/engine/finished`, `/engine/faults`, `/engine/draining`, `/engine/conditions`",
        sglang="404",
        embedded=(
            "the log of ended requests; faults, a 503 of `/ready` and [conditions](../reference/conditions.md) on order"
        ),
        why="audits and failure tests",
        shown_by="test_differences.py::test_own_paths",
    ),
    Difference(
        what="`/v1/messages`, `/v1/responses`, `/v1/embeddings`, `/detokenize` and others",
        sglang="served",
        embedded="404",
        why="the proxy sends nothing there",
        shown_by="test_differences.py::test_other_paths",
    ),
    Difference(
        what="`/health` of an idle engine",
        sglang="generates a token and takes a second",
        embedded="answers at once",
        why="the process that answers is the scheduler, so there is nothing to wait for",
        shown_by="test_differences.py::test_health",
    ),
    Difference(
        what="`/v1/loads?format=prometheus`",
        sglang="Prometheus text",
        embedded="ignored: JSON",
        why="`/metrics` has the same figures",
        shown_by="test_differences.py::test_loads_format",
    ),
    Difference(
        what="`decode_moments` in `/v1/loads`, `embedding` in `/model_info`",
        sglang="there",
        embedded="left out",
        why="sums for the engine's tuning, and fields of embedding models only",
        shown_by="test_differences.py::test_left_out_members",
    ),
    Difference(
        what="wall-clock times in `meta_info` of `/generate`",
        sglang="ten of them",
        embedded="left out",
        why="they would be times of the model's clock, not of the wall",
        shown_by="test_differences.py::test_meta_times",
    ),
    Difference(
        what="`/metrics`",
        sglang="some 100 families, with histograms",
        embedded="those that the proxy and the dashboards read, without histograms",
        why="the rest would be made up",
        shown_by="test_differences.py::test_metrics",
    ),
    Difference(
        what="a body that is JSON but not an object",
        sglang="500 in plain text, and the connection is closed",
        embedded="400 as for any other body",
        why="the engine's fault, not part of its protocol",
        shown_by="test_differences.py::test_json_that_is_no_object",
    ),
    Difference(
        what="an unknown member of `sampling_params`",
        sglang="400",
        embedded="ignored",
        why="the list of names changes with every version",
        shown_by="test_differences.py::test_unknown_sampling_parameter",
    ),
    Difference(
        what="`echo` of a completion",
        sglang="the text begins with the prompt",
        embedded="ignored",
        why="the proxy passes it through unread",
        shown_by="test_differences.py::test_echo",
    ),
    Difference(
        what="a client of a whole answer leaves",
        sglang="noticed within 4 s",
        embedded="noticed at once",
        why="SGLang polls; a test should not have to wait",
        shown_by="test_differences.py::test_leaving",
    ),
    Difference(
        what="abort by the id of one of several choices",
        sglang="ends that choice",
        embedded="the id of the first choice ends all choices; other ids end none",
        why="choices are one piece of work in its scheduler",
        shown_by="test_differences.py::test_abort_of_one_choice",
    ),
    Difference(
        what="an eviction on the device",
        sglang="takes whole nodes of the tree: all pages that were cached together",
        embedded="takes as many pages as are needed, from the end of a path",
        why="simpler; pages that stay longer than in SGLang are evicted next",
        shown_by="cache/test_cache_differences.py::test_how_much_an_eviction_takes",
    ),
    Difference(
        what="cache policies other than `write_through` and `wait_complete`",
        sglang="`write_back`, `write_through_selective`; `best_effort`, `timeout`",
        embedded="refused",
        why="only these two are modelled",
        shown_by="cache/test_cache_differences.py::test_cache_policies",
    ),
    Difference(
        what="figures about drafts: `spec_tokens_details`, `speculative` in `/v1/loads`, `spec_*` metrics",
        sglang="reported by an engine that drafts",
        embedded="only an accept length of 3; cache and KV events are those of an engine that drafts",
        why="the engine drafts nothing, and the proxy relays the figures",
        shown_by="speculative/test_speculative.py::test_what_is_told_of_drafts",
    ),
    Difference(
        what="`bootstrap_room` 0",
        sglang="prefill answers, decode waits until its time is up",
        embedded="400",
        why="no router may send it; the mistake should show",
        shown_by="pd/test_pd_differences.py::test_room_zero",
    ),
    Difference(
        what="a second request with a live `bootstrap_room`",
        sglang="is taken like the first",
        embedded="500",
        why="no router may send it; the mistake should show",
        shown_by="pd/test_pd_differences.py::test_a_room_that_is_live",
    ),
    Difference(
        what="prefill aborted after the decode leg has arrived",
        sglang="decode waits until its time is up",
        embedded="decode fails at once",
        why="one connection carries the pair, and its end shows the abort",
        shown_by="pd/test_pd_differences.py::test_prefill_aborted_when_decode_is_there",
    ),
    Difference(
        what="`/route` of the bootstrap server",
        sglang="the layout of KV on every rank",
        embedded="sizes only, and no rank's address",
        why="no KV is moved",
        shown_by="pd/test_pd_differences.py::test_facts_of_the_bootstrap_server",
    ),
    Difference(
        what="a room without `bootstrap_host`, sent to decode",
        sglang="the server ends",
        embedded="400",
        why="the engine's fault, not part of its protocol",
        shown_by="pd/test_pd_differences.py::test_a_room_without_a_host",
    ),
)

META_TIMES: Final = frozenset(
    {
        "api_server_dispatch_finish_ts",
        "decode_throughput",
        "e2e_latency",
        "first_token_latency",
        "forward_entry_time",
        "prefill_finished_time",
        "queue_time",
        "request_finished_ts",
        "request_received_ts",
        "response_sent_to_client_ts",
    }
)
LEFT_OUT: Final = META_TIMES | {"decode_moments", "embedding"}
"""Members that only SGLang's answers have; a recorded answer is compared without them."""


def table() -> str:
    """The rows as Markdown."""
    head = "| What | SGLang | Embedded engine | Why |\n| --- | --- | --- | --- |\n"
    return head + "".join(f"| {row.what} | {row.sglang} | {row.embedded} | {row.why} |\n" for row in DIFFERENCES)


def rendered(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
