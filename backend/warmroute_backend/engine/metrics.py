"""What the engine tells of itself: loads, Prometheus metrics, server and model information.

Names and shapes are those of the protocol that the engine speaks (prefix `sglang:` included); the values are the
model's, in virtual time.
"""

import importlib.metadata
import time
from datetime import UTC, datetime
from typing import Any

from warmroute_backend.engine.engine import Engine
from warmroute_backend.engine.model import Phase, Scheduler

ENGINE_NAME = "warmroute-embedded"
_MODES = {"aggregated": "null", "prefill": "prefill", "decode": "decode"}


def version() -> str:
    return importlib.metadata.version("warmroute")


def disaggregation_mode(engine: Engine) -> str:
    return _MODES[engine.settings.role]


def loads(engine: Engine, dp_rank: int | None) -> dict[str, Any]:
    """`/v1/loads`: one element per data-parallel rank."""
    ranks = [
        _load(engine, rank, scheduler)
        for rank, scheduler in enumerate(engine.schedulers)
        if dp_rank is None or dp_rank == rank
    ]
    return {
        "timestamp": time.time(),
        "version": version(),
        "engine": ENGINE_NAME,
        "accelerator": None,
        "num_accelerators": 0,
        "loads": ranks,
    }


def _load(engine: Engine, rank: int, scheduler: Scheduler) -> dict[str, Any]:
    totals = scheduler.totals
    capacity = scheduler.capacity_pages * scheduler.page_size
    running = scheduler.running
    used = _used_tokens(scheduler)
    queued = sum(work.prompt_tokens for work in scheduler.waiting)
    waiting = len(scheduler.waiting) + len(scheduler.delivered)
    bootstrap = engine.rooms.waiting() if rank == 0 else 0
    return {
        "dp_rank": rank,
        "num_running_reqs": sum(work.width for work in running),
        "num_waiting_reqs": waiting,
        "num_waiting_uncached_tokens": scheduler.waiting_uncached_tokens(),
        "num_used_tokens": used,
        "num_total_tokens": used + queued,
        "num_active_tokens": sum(work.prompt_tokens + work.generated * work.width for work in running),
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
        },
        "queues": {"waiting": waiting, "grammar": 0, "paused": 0, "retracted": 0},
    }


def _used_tokens(scheduler: Scheduler) -> int:
    pages = len(scheduler.cache) - scheduler.cache.idle_pages + scheduler.reserved_pages
    return pages * scheduler.page_size


def _gen_throughput(scheduler: Scheduler) -> float:
    """Tokens per virtual second of the batch that decodes now."""
    sequences = sum(work.width for work in scheduler.running if work.phase is Phase.DECODE)
    return sequences / (scheduler.costs.step_overhead_s + scheduler.costs.decode_s(sequences)) if sequences else 0.0


def server_info(engine: Engine, bootstrap_port: int | None) -> dict[str, Any]:
    """`/server_info`."""
    settings = engine.settings
    return {
        "engine": ENGINE_NAME,
        "engine_id": settings.engine_id,
        "speed": settings.speed,
        "status": "draining" if engine.draining else "ready",
        "version": version(),
        "model_path": settings.models[0],
        "served_model_name": settings.models[0],
        "page_size": settings.page_size,
        "dp_size": settings.dp_size,
        "tp_size": 1,
        "context_length": settings.context_length,
        "max_total_num_tokens": settings.kv_tokens,
        "max_req_input_len": engine.max_input_tokens,
        "max_running_requests": settings.max_running,
        "max_queued_requests": settings.max_queued,
        "chunked_prefill_size": settings.costs.chunk_tokens,
        "schedule_policy": "fcfs",
        "radix_eviction_policy": "lru",
        "disable_radix_cache": settings.role == "decode",
        "enable_cache_report": True,
        "random_seed": settings.seed,
        "disaggregation_mode": disaggregation_mode(engine),
        "disaggregation_bootstrap_port": bootstrap_port,
        "load_balance_method": "follow_bootstrap_room" if settings.role == "prefill" else "round_robin",
        "kv_events": None,
        "started_at": engine.started_at,
        "startup_time": datetime.fromtimestamp(engine.started_at, UTC).isoformat(),
        "internal_states": [
            {
                "memory_usage": {"token_capacity": scheduler.capacity_pages * scheduler.page_size},
                "effective_max_running_requests_per_dp": scheduler.max_running,
                "last_gen_throughput": round(_gen_throughput(scheduler), 3),
            }
            for scheduler in engine.schedulers
        ],
    }


def model_info(engine: Engine) -> dict[str, Any]:
    """`/model_info`."""
    name = engine.settings.models[0]
    return {
        "model_path": name,
        "served_model_name": name,
        "tokenizer_path": None,
        "is_generation": True,
        "weight_version": "default",
        "disaggregation_mode": disaggregation_mode(engine),
        "model_type": ENGINE_NAME,
        "architectures": None,
    }


def models(engine: Engine) -> dict[str, Any]:
    """`/v1/models`."""
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


def prometheus(engine: Engine) -> str:
    """`/metrics`."""
    out: list[str] = []
    labels = f'model_name="{engine.settings.models[0]}",engine_type="{ENGINE_NAME}"'
    per_rank = [(f'{labels},dp_rank="{rank}"', _load(engine, rank, s), s) for rank, s in enumerate(engine.schedulers)]

    def family(name: str, kind: str, samples: list[tuple[str, float]]) -> None:
        out.append(f"# TYPE sglang:{name} {kind}")
        out.extend(f"sglang:{name}{{{label}}} {value}" for label, value in samples)

    for name, key in _GAUGES.items():
        family(name, "gauge", [(label, load[key]) for label, load, _ in per_rank])
    for name, attribute in _COUNTERS.items():
        family(name, "counter", [(label, getattr(s.totals, attribute)) for label, _, s in per_rank])
    family(
        "cached_tokens_total",
        "counter",
        [(f'{label},cache_source="device"', s.totals.cached_tokens) for label, _, s in per_rank],
    )
    family(
        "evicted_tokens_total",
        "counter",
        [(label, s.cache.evicted_pages * s.page_size) for label, _, s in per_rank],
    )
    for name in ("prefill_bootstrap_queue", "prefill_inflight_queue", "decode_prealloc_queue", "decode_transfer_queue"):
        samples = [(label, load["disaggregation"][f"{name}_reqs"]) for label, load, _ in per_rank]
        family(f"num_{name}_reqs", "gauge", samples)
    family("num_requests_total", "counter", [(labels, engine.finished_total)])
    family("num_aborted_requests_total", "counter", [(labels, engine.aborted_total)])
    family("time_to_first_token_seconds_sum", "counter", [(labels, round(engine.ttft_sum_s, 6))])
    family("time_to_first_token_seconds_count", "counter", [(labels, engine.ttft_count)])
    return "\n".join(out) + "\n"


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
}
