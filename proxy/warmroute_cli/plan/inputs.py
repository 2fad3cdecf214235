"""Reads the inputs of a plan: its traffic, and from disk a checkpoint, a table of GPUs or a plan file."""

from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from warmroute.files.documents import DocumentError, json_of, toml_in
from warmroute.files.given import UnreadableFile, given_bytes
from warmroute_backend.plan.deployment import Plan, Traffic
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import GPUS, Gpu, gpus_with
from warmroute_backend.plan.measured import measured_gpu
from warmroute_backend.plan.model import Model, model_from_config
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.plan_file import read
from warmroute_lab.replay.trace import Request, Trace, mixed

TURN_S: Final = 30.0
"""Time from one turn of an agent to the next, for its answer and its tools."""
LEAST_REQUESTS: Final = 400
MAX_REQUESTS: Final = 2400
SPAN_S: Final = 60.0
"""Time in which the counted requests arrive, unless their number is limited. An answer takes a few seconds."""
MAX_SESSIONS: Final = 1000
WARM_UP_TOKENS_PER_S: Final = 2000
SEED: Final = 1
AVERAGE: Final = "average traffic"
BLOCK_TOKENS: Final = 512
SMALL_BLOCK_TOKENS: Final = 64
SMALL_PROMPT_TOKENS: Final = 8192


def average_trace(traffic: Traffic) -> Trace:
    """A trace with a warm-up turn of each session, then the requests of this traffic in `SPAN_S`, but at least
    `LEAST_REQUESTS` and at most `MAX_REQUESTS`. Equal traffic gives an equal trace."""
    random = np.random.default_rng(SEED)
    block = SMALL_BLOCK_TOKENS if traffic.input_tokens < SMALL_PROMPT_TOKENS else BLOCK_TOKENS
    sessions = max(1, min(MAX_SESSIONS, round(traffic.requests_per_s * TURN_S)))
    warm_up_s = traffic.input_tokens / WARM_UP_TOKENS_PER_S
    requests_count = max(LEAST_REQUESTS, min(MAX_REQUESTS, round(traffic.requests_per_s * SPAN_S)))
    count = sessions + requests_count
    steps_s = np.concatenate(
        (np.full(sessions, warm_up_s), random.exponential(1 / traffic.requests_per_s, requests_count))
    )
    times = np.cumsum(steps_s).tolist()
    full = traffic.input_tokens // block
    shared = min(full, int(traffic.input_tokens * traffic.cached_share) // block)
    prefixes = [mixed(np.arange(shared, dtype=np.uint64) + np.uint64(number << 32), 0) for number in range(sessions)]
    own = mixed(np.arange(count * (full - shared + 1), dtype=np.uint64) + np.uint64(1 << 62), 0)
    chosen = [*range(sessions), *random.integers(sessions, size=requests_count).tolist()]
    turns = [0] * sessions
    requests = []
    for number, at_s in enumerate(times):
        session = chosen[number]
        fresh = own[number * (full - shared + 1) : (number + 1) * (full - shared + 1)]
        tail = fresh[-1] if traffic.input_tokens % block else None
        blocks = prefixes[session] + fresh[: full - shared] + ([tail] if tail is not None else [])
        turns[session] += 1
        turn = turns[session]
        continued = shared * block if turn > 1 else 0
        requests.append(Request(
            number=number, at_s=at_s, after=None, session=session, turn=turn, input_tokens=traffic.input_tokens,
            output_tokens=traffic.output_tokens, blocks=blocks, tail=tail, continued_tokens=continued,
        ))  # fmt: skip
    return Trace(AVERAGE, block, requests, sessions, named_sessions=True)


def average_of(trace: Trace) -> Traffic:
    """The average figures of a trace. For the rate, a turn that follows another turn counts as arriving 30 s after it.
    The cached share is what a single cache that never evicts would reach."""
    requests = trace.requests
    count = len(requests)
    starts = [request.at_s for request in requests if request.after is None]
    span_s = max(starts) - min(starts) if len(starts) > 1 else 1.0
    followers = count - len(starts)
    span_s = max(span_s, 1.0) + 30.0 * followers / max(1, trace.sessions)
    return Traffic(
        input_tokens=max(1, round(sum(request.input_tokens for request in requests) / count)),
        output_tokens=max(1, round(sum(request.output_tokens for request in requests) / count)),
        requests_per_s=count / span_s,
        cached_share=min(0.999, trace.ceiling()),
    )


def warm_up_share(trace: Trace) -> float:
    """The share of requests that is warm-up: all warm-up turns of an `average_trace`, a tenth of any other trace."""
    return trace.sessions / len(trace.requests) if trace.name == AVERAGE else 0.1


MAX_BYTES: Final = 64 << 20
MAX_TOML_BYTES: Final = 4 << 20
INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"


def find_model(name: str, *, flags_only: bool = False) -> Model:
    """The model with a known name, or in a checkpoint's folder. `flags_only`: accept any model family. Raises:
    PlanError."""
    path = Path(name)
    if path.is_file() and path.name == "config.json":
        path = path.parent
    if not path.is_dir():
        if "/" in name and path.parent.is_dir() and not name.count("/") == 1:
            raise PlanError(f"{name} is not a folder of a checkpoint.")
        return known_model(name)
    config = _object(path / "config.json")
    size = _checkpoint_bytes(path)
    return model_from_config(config, path.resolve().name, str(path), size, flags_only=flags_only)


def _checkpoint_bytes(folder: Path) -> int:
    """The size of all tensors from the index, or the size of the file if the checkpoint is a single file."""
    if (folder / INDEX).is_file():
        metadata = _object(folder / INDEX).get("metadata")
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        if not isinstance(total, int | float) or total <= 0:
            raise PlanError(f"{folder / INDEX} has no metadata.total_size.")
        return int(total)
    if (folder / SINGLE).is_file():
        return (folder / SINGLE).stat().st_size
    raise PlanError(
        f"{folder} has neither {INDEX} nor {SINGLE}, so the size of its weights is not known.",
        [f"copy {INDEX} of the checkpoint beside its config.json"],
    )


def load_gpus(path: Path | None, measured: Path | None = None) -> dict[str, Gpu]:
    """The table of GPUs with those in `path`, and the GPU in `measured` with its measured shares of peak speeds."""
    found = dict(GPUS) if path is None else gpus_with(_toml(path).get("gpu", []), str(path))
    if measured is not None:
        gpu = measured_gpu(_toml(measured), found, str(measured))
        found[gpu.name] = gpu
    return found


def load_plan(path: Path) -> tuple[Plan, str]:
    """The plan in a file, and the name of its model."""
    return read(_toml(path), partial(find_model, flags_only=True), str(path))


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json_of(given_bytes(path, MAX_BYTES))
    except UnreadableFile as error:
        raise PlanError(f"{error}.") from None
    except DocumentError as error:
        raise PlanError(f"{path} {error}.") from None
    if not isinstance(found, dict):
        raise PlanError(f"{path} is not a JSON object.")
    return found


def _toml(path: Path) -> dict[str, Any]:
    try:
        return toml_in(path, MAX_TOML_BYTES)
    except UnreadableFile as error:
        raise PlanError(f"{error}.") from None
