"""What an engine reports: loads, Prometheus metrics, server and model information.

Names and shapes are those of SGLang, with the prefix `sglang:`. The values are the model's, in virtual time.
"""

import time
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from warmroute.contract.version import VERSION
from warmroute_lab.engine.http.errors import Refusal
from warmroute_lab.engine.model.model import Phase, Scheduler
from warmroute_lab.engine.model.tiers import LowerTiers
from warmroute_lab.engine.serving.engine import EmbeddedEngine

# Conditions on request: the engine's reports look like those of an engine in trouble, to test what watches the reports.
#
# `POST /engine/conditions` with `{"show": ["retraction_storm"]}` shows exactly the named conditions; `[]` ends them
# all. SGLang has no such path. The names are those of the conditions that a proxy finds. Each makes the engine report:
#
#     accept_length_falls_after_hits  a low accept length, and prompts of which half was cached in the host tier
#     pd_transfers_fail_or_are_slow   transfers that fail
#     retraction_storm                requests that are retracted
#     pd_side_starves                 a queue of requests
#     predicted_hits_are_not_reported answers that report no cached tokens
#
# Totals grow each time `/metrics` is read.


HIDDEN_HITS: Final = "predicted_hits_are_not_reported"
ACCEPT_LENGTH: Final = 3.0
"""The reported accept length of drafts, if the engine has a speculative algorithm and no condition changes it."""

_VALUES: Final[Mapping[str, Mapping[str, float]]] = {
    "accept_length_falls_after_hits": {"spec_accept_length": 1.2},
    "pd_transfers_fail_or_are_slow": {},
    "retraction_storm": {},
    "pd_side_starves": {"num_queue_reqs": 12.0},
    HIDDEN_HITS: {},
}
_EACH_READING: Final[Mapping[str, Mapping[str, float]]] = {
    "accept_length_falls_after_hits": {"prompt_tokens_total": 1_000_000, "cached_tokens_total:host": 500_000},
    "pd_transfers_fail_or_are_slow": {"num_transfer_failed_reqs_total": 5},
    "retraction_storm": {"num_retracted_requests_total": 20},
}


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /engine/conditions`."""

    show: list[str]


class Shown:
    """The conditions that an engine shows, and what they have added to its totals."""

    def __init__(self) -> None:
        self.names: frozenset[str] = frozenset()
        self._added: dict[str, float] = {}

    def order(self, body: bytes) -> None:
        """Show the conditions of a request body. Raises: Refusal, which says what is wrong with the body."""
        try:
            names = msgspec.json.decode(body, type=Order).show
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Refusal(400, f"no order of conditions: {error}") from None
        unknown = [name for name in names if name not in _VALUES]
        if unknown:
            raise Refusal(400, f"no condition {unknown[0]!r}; there are {', '.join(_VALUES)}")
        self.names = frozenset(names)

    def read(self) -> None:
        """Let the totals grow: `/metrics` is being read."""
        for name in self.names:
            for family, more in _EACH_READING.get(name, {}).items():
                self._added[family] = self._added.get(family, 0.0) + more

    def value(self, family: str, modelled: float) -> float:
        found = [_VALUES[name][family] for name in sorted(self.names) if family in _VALUES[name]]
        return found[0] if found else modelled

    def total(self, family: str, modelled: float) -> float:
        """The value to report for a total. A total keeps what an ended condition has added, since totals never fall."""
        return modelled + self._added.get(family, 0.0)


ENGINE_NAME = "warmroute-embedded"
SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})
"""The sections that `/v1/loads?include=` may name. The engine reports nothing for `spec` and `lora`."""

_MODES = {"aggregated": "null", "prefill": "prefill", "decode": "decode"}


def disaggregation_mode(engine: EmbeddedEngine) -> str:
    return _MODES[engine.settings.role]


def loads(engine: EmbeddedEngine, dp_rank: int | None, sections: Set[str]) -> dict[str, Any]:
    """`/v1/loads`: one element per data-parallel rank, with the core facts and the `sections` asked for."""
    named = {"memory": "memory", "disaggregation": "disagg", "queues": "queues"}
    left_out = {key for key, name in named.items() if not sections & {"all", name}}
    ranks = [
        {key: value for key, value in _load(engine, rank, scheduler).items() if key not in left_out}
        for rank, scheduler in enumerate(engine.schedulers)
        if dp_rank is None or dp_rank == rank
    ]
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": VERSION,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": ranks,
    }


def _load(engine: EmbeddedEngine, rank: int, scheduler: Scheduler) -> dict[str, Any]:
    totals = scheduler.totals
    capacity = scheduler.capacity_pages * scheduler.page_size
    running = scheduler.running
    used = _used_tokens(scheduler)
    queued = sum(work.prompt_tokens for work in scheduler.waiting)
    waiting = len(scheduler.waiting) + len(scheduler.delivered)
    bootstrap = engine.bootstrap_rooms.waiting() if rank == 0 else 0
    return {
        "timestamp": time.time(),
        "dp_rank": rank,
        "num_running_reqs": sum(work.width for work in running),
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": scheduler.waiting_uncached_tokens(),
        "num_used_tokens": used,
        "num_total_tokens": used + queued,
        "num_active_tokens": sum(work.prompt_tokens + work.generated * work.width for work in running),
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": capacity,
        "max_running_requests": scheduler.max_running,
        "token_usage": round(used / capacity, 4) if capacity else 0.0,
        "gen_throughput": round(_gen_throughput(scheduler), 3),
        "cache_hit_rate": round(totals.cached_tokens / totals.prompt_tokens, 4) if totals.prompt_tokens else 0.0,
        "utilization": round(len(running) / scheduler.max_running, 4),
        "total_prefill_uncached_tokens": totals.prefill_uncached_tokens,
        "total_prefill_busy_us": round(totals.prefill_busy_s * 1e6),
        "memory": {"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": capacity},
        "disaggregation": {
            "mode": disaggregation_mode(engine),
            "prefill_bootstrap_queue_reqs": bootstrap,
            "prefill_inflight_queue_reqs": len(scheduler.transferring),
            "decode_prealloc_queue_reqs": len(scheduler.waiting) if scheduler.role == "decode" else 0,
            "decode_transfer_queue_reqs": len(scheduler.allocated),
            "decode_retracted_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 0.0,
            "kv_transfer_latency_ms": 0.0,
        },
        "queues": {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0},
    }


def _used_tokens(scheduler: Scheduler) -> int:
    pages = len(scheduler.cache) - scheduler.cache.idle_pages + scheduler.reserved_pages
    return pages * scheduler.page_size


def _gen_throughput(scheduler: Scheduler) -> float:
    """Tokens per virtual second of the batch that decodes now."""
    sequences = sum(work.width for work in scheduler.running if work.phase is Phase.DECODE)
    return sequences / (scheduler.costs.step_overhead_s + scheduler.costs.decode_s(sequences)) if sequences else 0.0


def server_info(engine: EmbeddedEngine, bootstrap_port: int | None) -> dict[str, Any]:
    settings = engine.settings
    return {
        "engine": ENGINE_NAME,
        "engine_id": settings.engine_id,
        "speed": settings.speed,
        "status": "draining" if engine.draining else "ready",
        "version": VERSION,
        "model_path": settings.models[0],
        "served_model_name": settings.models[0],
        "page_size": settings.page_size,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "dp_size": settings.dp_size,
        "tp_size": 1,
        "context_length": settings.context_length,
        "max_total_num_tokens": settings.kv_tokens,
        "max_req_input_len": min(settings.context_length, settings.kv_tokens) - 1,
        "max_running_requests": settings.max_running,
        "max_queued_requests": settings.max_queued,
        "chunked_prefill_size": settings.costs.chunk_tokens,
        "schedule_policy": "fcfs",
        "radix_eviction_policy": "lru",
        "disable_radix_cache": settings.role == "decode",
        "enable_cache_report": True,
        "random_seed": settings.seed,
        "disaggregation_mode": disaggregation_mode(engine),
        "enable_pd_role_switch": settings.role_switch,
        "disaggregation_bootstrap_port": bootstrap_port,
        "load_balance_method": "follow_bootstrap_room" if settings.role == "prefill" else "round_robin",
        "kv_events": None if engine.feed is None else engine.feed.describe(),
        "speculative_algorithm": settings.speculative_algorithm,
        **_hicache(engine),
        "started_at": engine.started_at,
        "startup_time": {"tokenizer_e2e": engine.startup_s},
        "internal_states": [
            {
                "memory_usage": {"token_capacity": scheduler.capacity_pages * scheduler.page_size},
                "effective_max_running_requests_per_dp": scheduler.max_running,
                "last_gen_throughput": round(_gen_throughput(scheduler), 3),
            }
            for scheduler in engine.schedulers
        ],
    }


def _hicache(engine: EmbeddedEngine) -> dict[str, Any]:
    config, storage = engine.settings.hicache, engine.storage
    if config is None or storage is None:
        return {"enable_hierarchical_cache": False}
    sizes = {"hicache_ratio": config.ratio, "hicache_size": config.size_gb}
    return {"enable_hierarchical_cache": True, **sizes, **storage.status()}


def model_info(engine: EmbeddedEngine) -> dict[str, Any]:
    name = engine.settings.models[0]
    return {
        "model_path": name,
        "served_model_name": name,
        "tokenizer_path": name,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": disaggregation_mode(engine),
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": ENGINE_NAME,
        "architectures": [ENGINE_NAME],
    }


def models(engine: EmbeddedEngine) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [
            {
                "id": name,
                "object": "model",
                "created": int(engine.started_at),
                "owned_by": ENGINE_NAME,
                "root": name,
                "parent": None,
                "max_model_len": engine.settings.context_length,
            }
            for name in engine.settings.models
        ],
    }


def prometheus(engine: EmbeddedEngine, shown: Shown) -> str:
    """The text of `/metrics`, as changed by the conditions that are shown."""
    shown.read()
    out: list[str] = []
    labels = f'model_name="{engine.settings.models[0]}",engine_type="{ENGINE_NAME}"'
    per_rank = [(f'{labels},dp_rank="{rank}"', _load(engine, rank, s), s) for rank, s in enumerate(engine.schedulers)]

    def family(name: str, kind: str, samples: Sequence[tuple[str, float]]) -> None:
        out.append(f"# TYPE sglang:{name} {kind}")
        out.extend(f"sglang:{name}{{{label}}} {value}" for label, value in samples)

    for name, key in _GAUGES.items():
        family(name, "gauge", [(label, shown.value(name, load[key])) for label, load, _ in per_rank])
    for name, attribute in _COUNTERS.items():
        family(name, "counter", [(label, shown.total(name, getattr(s.totals, attribute))) for label, _, s in per_rank])
    for name, by_tier in _BY_TIER.items():
        label_name = "cache_source" if name == "cached_tokens_total" else "mode"
        samples = [
            (f'{label},{label_name}="{tier}"', shown.total(f"{name}:{tier}", getattr(s.totals, attribute)))
            for label, _, s in per_rank
            for tier, attribute in by_tier.items()
        ]
        family(name, "counter", samples)
    tiers = [(label, s.pool.tiers) for label, _, s in per_rank if s.pool.tiers is not None]
    for name, kind, pages in _TIER_FAMILIES if tiers else ():
        family(name, kind, [(label, pages(tier) * tier.page_size) for label, tier in tiers])
    family(
        "evicted_tokens_total", "counter", [(label, s.cache.evicted_pages * s.page_size) for label, _, s in per_rank]
    )
    for name in ("prefill_bootstrap_queue", "prefill_inflight_queue", "decode_prealloc_queue", "decode_transfer_queue"):
        samples = [(label, load["disaggregation"][f"{name}_reqs"]) for label, load, _ in per_rank]
        family(f"num_{name}_reqs", "gauge", samples)
    if engine.settings.bigram:
        length = shown.value("spec_accept_length", ACCEPT_LENGTH)
        family("spec_accept_length", "gauge", [(label, length) for label, _, _ in per_rank])
    for name in ("num_retracted_requests_total", "num_transfer_failed_reqs_total", "num_bootstrap_failed_reqs_total"):
        family(name, "counter", [(label, shown.total(name, 0)) for label, _, _ in per_rank])
    family("num_requests_total", "counter", [(labels, engine.finished_total)])
    family("num_aborted_requests_total", "counter", [(labels, engine.aborted_total)])
    family("time_to_first_token_seconds_sum", "counter", [(labels, round(engine.ttft_sum_s, 6))])
    family("time_to_first_token_seconds_count", "counter", [(labels, engine.ttft_count)])
    return "\n".join(out) + "\n"


_BY_TIER = {
    "cached_tokens_total": {
        "device": "cached_device_tokens",
        "host": "cached_host_tokens",
        "storage": "cached_storage_tokens",
    },
    "prefill_effective_tokens_total": {
        "input": "prefill_uncached_tokens",
        "device_hit": "cached_device_tokens",
        "host_hit": "cached_host_tokens",
        "storage_hit": "cached_storage_tokens",
    },
    "realtime_tokens_total": {
        "prefill_compute": "prefill_uncached_tokens",
        "prefill_cache": "cached_tokens",
        "decode": "generated_tokens",
    },
}
"""Metric -> value of its label -> attribute of `WorkTotals`."""

_TIER_FAMILIES: tuple[tuple[str, str, Callable[[LowerTiers], int]], ...] = (
    ("hicache_host_used_tokens", "gauge", lambda tiers: tiers.host.resident_pages),
    ("hicache_host_total_tokens", "gauge", lambda tiers: tiers.host_pages),
    ("hicache_backup_tokens_total", "counter", lambda tiers: tiers.host_written_pages),
    ("backuped_tokens_total", "counter", lambda tiers: tiers.storage_written_pages),
)
_GAUGES = {
    "num_running_reqs": "num_running_reqs",
    "num_queue_reqs": "num_waiting_reqs",
    "num_used_tokens": "num_used_tokens",
    "token_usage": "token_usage",
    "max_total_num_tokens": "max_total_num_tokens",
    "gen_throughput": "gen_throughput",
    "cache_hit_rate": "cache_hit_rate",
    "utilization": "utilization",
}
_COUNTERS = {
    "prompt_tokens_total": "prompt_tokens",
    "generation_tokens_total": "generated_tokens",
    "load_back_tokens_total": "load_back_tokens",
    "prefetched_tokens_total": "cached_storage_tokens",
    "storage_prefetch_hit_tokens_total": "cached_storage_tokens",
}
"""Metric -> attribute of `WorkTotals`."""
