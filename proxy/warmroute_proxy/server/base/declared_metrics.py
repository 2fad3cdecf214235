"""Every metric, declared once: its name, and its description in `# HELP` and in docs/reference/metrics.md.

Code that counts uses these objects, so a misspelt name fails in the type check and at import, not at a scrape.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Metric(NamedTuple):
    name: str
    help: str


REQUESTS_TOTAL: Final = Metric("warmroute_requests_total", "Requests by route and HTTP status.")
PROMPT_TOKENS_TOTAL: Final = Metric("warmroute_prompt_tokens_total", "Prompt tokens of settled turns.")
COMPLETION_TOKENS_TOTAL: Final = Metric("warmroute_completion_tokens_total", "Completion tokens of settled turns.")
CACHED_TOKENS_TOTAL: Final = Metric("warmroute_cached_tokens_total", "Cached prompt tokens by tier.")
LOSS_TOKENS_TOTAL: Final = Metric("warmroute_loss_tokens_total", "Prompt tokens that were not cached, by class.")
LIST_NANOUSD_TOTAL: Final = Metric(
    "warmroute_list_nanousd_total", "Price of settled turns without any cached token, in billionths of a USD."
)
PRICE_NANOUSD_TOTAL: Final = Metric("warmroute_price_nanousd_total", "Price of settled turns, in billionths of a USD.")
NORMALISED_TOTAL: Final = Metric(
    "warmroute_normalised_total", "Settled turns by rule that took something out of their prompt."
)
TURNS_TOTAL: Final = Metric("warmroute_turns_total", "Settled turns by outcome.")
RETRIES_TOTAL: Final = Metric("warmroute_retries_total", "Turns dispatched again after an engine failed.")
CONTINUED_TOTAL: Final = Metric("warmroute_continued_total", "Retries that continued an answer which had begun.")
JOINS_TOTAL: Final = Metric(
    "warmroute_joins_total", "Requests that got the answer of an earlier one with the same Idempotency-Key."
)
ENGINE_FAILURES_TOTAL: Final = Metric(
    "warmroute_engine_failures_total", "Failed attempts of a worker, by kind of failure."
)
SUSPECTS_TOTAL: Final = Metric(
    "warmroute_suspects_total", "Requests that had no token yet when their engine went away, by outcome."
)
RETRIES_REFUSED_TOTAL: Final = Metric(
    "warmroute_retries_refused_total", "Turns not dispatched again because the retry budget was spent."
)
REFUSED_TOTAL: Final = Metric("warmroute_refused_total", "Requests refused before a dispatch, by reason.")
CONNECTIONS_CLOSED_TOTAL: Final = Metric(
    "warmroute_connections_closed_total",
    "Connections that a full port closed for newer ones, or refused, by port (`public`, `admin`) and reason.",
)
QUEUE_LEFT_TOTAL: Final = Metric(
    "warmroute_queue_left_total", "Turns whose client left while they waited in the queue."
)
QUEUE_WAIT_SECONDS: Final = Metric(
    "warmroute_queue_wait_seconds", "Time in the queue, seconds, of turns that had to wait."
)
QUEUE_MEMORY_WAIT_SECONDS: Final = Metric(
    "warmroute_queue_memory_wait_seconds",
    "Time that turns waited for KV memory, seconds, without turns that did not wait.",
)
BEGUN_TOTAL: Final = Metric(
    "warmroute_begun_total", "Sessions that began after their first turn had waited for KV memory."
)
FORWARDS_TOTAL: Final = Metric("warmroute_forwards_total", "Requests forwarded to another region.")
FORWARD_FAILURES_TOTAL: Final = Metric(
    "warmroute_forward_failures_total", "Forwards that failed before the first byte and were served here."
)
ANNOUNCEMENTS_TOTAL: Final = Metric(
    "warmroute_announcements_total", "Turns and conversations announced to other regions, and received from them."
)
SHARED_EVENTS_TOTAL: Final = Metric(
    "warmroute_shared_events_total",
    "Events and newest requests sent to other proxies of this region, and events applied from them.",
)
VOIDS_ORDERED_TOTAL: Final = Metric(
    "warmroute_voids_ordered_total", "Forwards whose answer was lost: their rows in other regions are voided."
)
TRACES_TOTAL: Final = Metric(
    "warmroute_traces_total", "Traces by outcome: exported, failed (not taken), or dropped as many waited."
)
TTFT_SECONDS: Final = Metric("warmroute_ttft_seconds", "Time to the first content byte of streams, seconds.")
PREDICTED_TOKENS_TOTAL: Final = Metric(
    "warmroute_predicted_tokens_total", "Prompt tokens predicted to be cached, by tier."
)
PREDICTION_ERROR_RATIO: Final = Metric(
    "warmroute_prediction_error_ratio", "Absolute error of predicted cached tokens, as a share of the prompt."
)
OVERPREDICTION_RATIO: Final = Metric(
    "warmroute_overprediction_ratio", "Cached tokens predicted but not reported, as a share of the prompt."
)
UNDERPREDICTION_RATIO: Final = Metric(
    "warmroute_underprediction_ratio", "Cached tokens reported but not predicted, as a share of the prompt."
)
KV_EVENT_BATCHES_TOTAL: Final = Metric("warmroute_kv_event_batches_total", "Batches of KV events applied.")
KV_EVENT_GAPS_TOTAL: Final = Metric("warmroute_kv_event_gaps_total", "Gaps in the numbers of KV event batches.")
KV_EVENT_BATCHES_REPLAYED_TOTAL: Final = Metric(
    "warmroute_kv_event_batches_replayed_total", "Missing batches of KV events recovered by a replay."
)
KV_EVENT_RESTARTS_TOTAL: Final = Metric("warmroute_kv_event_restarts_total", "Restarts of an engine's KV events.")
KV_INDEX_DROPS_TOTAL: Final = Metric(
    "warmroute_kv_index_drops_total", "Drops of a worker's prefix index: KV events were lost or unreadable."
)
KV_BLOCKS_TOTAL: Final = Metric(
    "warmroute_kv_blocks_total", "Blocks in KV events. joined: whether this proxy knows the prompt of the block."
)
CLIENT_LEFT_TOTAL: Final = Metric(
    "warmroute_client_left_total", "Turns whose client left before the end of the answer."
)
RE_PREFILLS_TOTAL: Final = Metric(
    "warmroute_re_prefills_total", "Prompts of a draining or failed engine, computed on another one, by outcome."
)
RE_PREFILLED_TOKENS_TOTAL: Final = Metric(
    "warmroute_re_prefilled_tokens_total", "Prompt tokens of re-prefills, by outcome."
)
LOOP_LAG_SECONDS: Final = Metric(
    "warmroute_loop_lag_seconds", "Lag of the event loop, seconds, by the longest running callback."
)
RELOADS_TOTAL: Final = Metric(
    "warmroute_reloads_total", "Config files that were applied, or refused, while the proxy ran, by outcome."
)
LARGE_BODIES_TOTAL: Final = Metric(
    "warmroute_large_bodies_total", "Large and dense request bodies, by the outcome of reading."
)
LARGE_BODIES_WAITING: Final = Metric(
    "warmroute_large_bodies_waiting", "Large and dense request bodies of this process that wait to be read."
)
LARGE_BODIES_WAITING_SECONDS: Final = Metric(
    "warmroute_large_bodies_waiting_seconds", "Waiting time of the oldest large or dense body, seconds."
)
DISCOVERY_UP: Final = Metric("warmroute_discovery_up", "Whether a source of engines can be read, in this process.")
DISCOVERY_ENGINES: Final = Metric("warmroute_discovery_engines", "Engines that a source named last.")
DISCOVERY_PROBLEMS: Final = Metric(
    "warmroute_discovery_problems", "Engines of a source that are not used: a duplicate id, or a fault of the engine."
)
STORE_UP: Final = Metric("warmroute_store_up", "Whether a store that proxies share answers; only if one is configured.")
LEDGER_UNSENT_ROWS: Final = Metric(
    "warmroute_ledger_unsent_rows", "Rows that wait in the ledger file until the database has them."
)
LEDGER_FILE_BYTES: Final = Metric("warmroute_ledger_file_bytes", "Size of the ledger file with its WAL, bytes.")
STATE_VOLUME_BYTES: Final = Metric("warmroute_state_volume_bytes", "Size of the volume of `state_dir`, bytes.")
STATE_VOLUME_FREE_BYTES: Final = Metric(
    "warmroute_state_volume_free_bytes", "Free space of the volume of `state_dir`, bytes."
)
START_TIME_SECONDS: Final = Metric("warmroute_start_time_seconds", "When the proxy started, unix seconds.")
CERTIFICATE_EXPIRY_SECONDS: Final = Metric(
    "warmroute_certificate_expiry_seconds",
    "Until when the certificate of the clients' port is valid, unix seconds; only with TLS.",
)
BUDGET_REFUSED_TOTAL: Final = Metric(
    "warmroute_budget_refused_total", "Requests refused because a budget is used up, or cannot be asked."
)
BUDGET_WARNINGS_TOTAL: Final = Metric(
    "warmroute_budget_warnings_total", "Answers with a warning, by budget and by the limit that is mostly used."
)
LIMIT_LEFT: Final = Metric(
    "warmroute_limit_left", "Amount left of a budget's per-minute limit over all proxies, at the store's last answer."
)
MARKERS_MISSED_TOTAL: Final = Metric(
    "warmroute_markers_missed_total", "Keyed requests begun without a marker, because Redis did not answer in time."
)
NONCES_MISSED_TOTAL: Final = Metric(
    "warmroute_nonces_missed_total",
    "Forwarded requests begun without Redis, which says whether another proxy has accepted them: it was too late.",
)
MARKER_REFUSALS_TOTAL: Final = Metric(
    "warmroute_marker_refusals_total", "Keyed requests refused because another process has their key."
)
BUDGET_LEASE_NANOUSD: Final = Metric(
    "warmroute_budget_lease_nanousd", "Amount of a budget that this proxy may still spend, in billionths of a USD."
)
BUDGET_LEFT_NANOUSD: Final = Metric(
    "warmroute_budget_left_nanousd", "Amount left of a budget when its store last answered, without what is leased."
)
BUILD_INFO: Final = Metric(
    "warmroute_build_info", "Always 1. version: of this proxy; build: `compiled`, or `pure` Python."
)
PROCESSES: Final = Metric("warmroute_processes", "Running processes of this proxy; only if it has several.")
REGION_UP: Final = Metric("warmroute_region_up", "Whether the last probe of another region's proxies succeeded.")
REGION_RTT_SECONDS: Final = Metric(
    "warmroute_region_rtt_seconds", "How long the last probe of another region took that succeeded, in seconds."
)
ENGINE_UP: Final = Metric("warmroute_engine_up", "Whether an engine answers.")
ENGINE_DRAINING: Final = Metric(
    "warmroute_engine_draining", "Whether an engine drains, by an operator's order or by its own /ready."
)
ENGINE_CONNECTIONS: Final = Metric("warmroute_engine_connections", "Open connections to an engine.")
WORKER_ACCEPT_LENGTH: Final = Metric(
    "warmroute_worker_accept_length", "Tokens that a worker accepts in a step with drafts, as its engine reports."
)
WORKER_KV_USAGE_RATIO: Final = Metric(
    "warmroute_worker_kv_usage_ratio", "Share of a worker's KV pool in use, by tier, as its engine reports."
)
WORKER_ENGINE_QUEUE_REQUESTS: Final = Metric(
    "warmroute_worker_engine_queue_requests", "Requests in a queue of a worker's engine, as it reports."
)
EMPTY_ANSWERS_TOTAL: Final = Metric(
    "warmroute_empty_answers_total", "Answers with neither text nor calls, by worker and model."
)
IMPOSSIBLE_COUNTS_TOTAL: Final = Metric(
    "warmroute_impossible_counts_total", "Counts of tokens that cannot be true, by worker and count."
)
WORKER_RETRACTED_REQUESTS: Final = Metric(
    "warmroute_worker_retracted_requests", "Requests that an engine has taken out of its pool since it started."
)
WORKER_FAILED_TRANSFERS: Final = Metric(
    "warmroute_worker_failed_transfers", "Transfers of KV that have failed since the engine started."
)
WORKER_TRANSFER_S: Final = Metric(
    "warmroute_worker_transfer_s", "Mean time of a transfer of KV between the last two reports, seconds."
)
TROUBLE: Final = Metric("warmroute_trouble", "1 while a process of this proxy reports this problem at /ready.")
CONDITION: Final = Metric("warmroute_condition", "Whether a condition is raised: docs/reference/conditions.md.")
KV_EVENT_LAG_SECONDS: Final = Metric(
    "warmroute_kv_event_lag_seconds", "Age of a worker's KV events on arrival, seconds."
)
KV_BLOCKS_HELD: Final = Metric(
    "warmroute_kv_blocks_held", "Cache blocks of a worker that the proxy knows from KV events."
)

OF_PROCESSES: Final[Mapping[str, Metric]] = {
    name: Metric(f"warmroute_{name}", description)
    for name, description in {
        "announcements_waiting": "Announcements that another region has not confirmed yet.",
        "resident_memory_bytes": "Resident memory of the proxy's processes, bytes.",
        "cpu_seconds": "CPU time that the proxy's processes have used since their start, seconds.",
        "turns_live": "Open turns.",
        "tokens_in_flight": "Tokens of this proxy's open turns: prompts and generated tokens.",
        "queue_requests": "Requests in the queue.",
        "queue_bytes": "Size of the bodies in the queue, bytes.",
        "queue_memory_missing_tokens": "KV tokens that turns waiting for memory need, mean of the last minute.",
        "queue_begin_requests": "Requests in the queue that wait for KV memory to begin a session.",
        "queue_memory_requests": "Requests in the queue that wait for KV memory.",
        "kept_prompts": "Prompts of hot sessions in memory, for a re-prefill when an engine leaves.",
        "ledger_rows_waiting": "Ledger rows that wait, since the ledger could not be written when their turns ended.",
        "kept_prompt_bytes": "Size of the kept prompts, bytes.",
        "body_memory_bytes": "Memory that bodies and gathered answers hold, of `body_memory_bytes`.",
    }.items()
}
"""Field of `Gauges` -> the gauge of what a process holds."""

OF_WORKERS: Final[Mapping[str, Metric]] = {
    name: Metric(f"warmroute_worker_{name}", description)
    for name, description in {
        "dp_rank": "The data-parallel rank of a worker.",
        "running": "Open requests of a worker.",
        "running_limit": "Requests that a worker runs at once, if that is known.",
        "prefill_tokens": "Prompt tokens that a worker has yet to compute.",
        "prefill_limit": "Most prompt tokens yet to compute; above this limit, new requests wait in the proxy.",
        "resident_tokens": "Tokens of open requests of all proxies in the worker's KV pool.",
        "token_limit": "Size of the worker's KV pool in tokens, if that is known.",
        "kv_sessions": "Conversations that hold KV on a worker, as far as the proxy knows.",
        "kv_protected_tokens": "Tokens held by conversations that are active or likely to return within the window.",
        "kv_window_s": "How long an idle conversation is worth its KV memory, seconds.",
        "queue_s": "Prefill time ahead of a new request, seconds.",
        "prefill_s_per_token": "Measured prefill time of a worker, seconds a token.",
        "decode_s_per_token": "Measured decode time, seconds a token; 0 if that is not known.",
        "decode_slower_s_per_token": "Excess over the decode time of similar workers, seconds a token.",
        "load_s_per_token": "Measured time to load from host memory, seconds a token.",
        "fetch_s_per_token": "Measured time to fetch from storage, seconds a token.",
        "failures_in_a_row": "Failures since the last success; three close the worker for a while.",
        "proven": "1 once the worker has shown its speed since it began.",
    }.items()
}
"""Name in the router's snapshot -> the gauge of a worker."""

BY_NAME: Final[Mapping[str, Metric]] = {
    each.name: each
    for each in (*globals().values(), *OF_PROCESSES.values(), *OF_WORKERS.values())
    if isinstance(each, Metric)
}
