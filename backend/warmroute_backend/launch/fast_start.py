"""Chooses the source from which an engine loads its weights at a restart, among those of SGLang 0.5.23. Pure.

    daemon      another process keeps the weights in GPU memory, and the engine maps them
                (`sglang/srt/weight_cache/daemon.py`, `--weight-cache-mode client`)
    presharded  each rank reads its own part from files that the first start wrote after loading
                (`PreshardedModelLoader`)
    disk        the checkpoint

SGLang refuses the daemon with draft models (`arg_groups/model_path_hook.py`) and in all formats but bf16 and block-wise
fp8 (`weight_cache/protocol.py`, `IPC_QUANT_ALLOWLIST`). An engine over several nodes always reads its checkpoint: a
daemon would need another port, and pre-sharded files would need a folder that all nodes share.

SGLang finds the pre-sharded files by the shapes of tensors, not by their values, so each checkpoint has a separate
folder. Each engine also has a separate folder: two engines that write the same files at once would remove each other's.

Three other ways are not used. `--startup-weight-load-mode overlap` is for one or two GPUs, bf16, without drafts or
attention groups (`startup_weight_load.py`). With `--gated-launch-port` a second engine waits beside the first; the
second engine needs further ports, and saves only the time of imports. `sglang.compile_deep_gemm` takes as long as a
complete start: SGLang compiles these kernels at the first start anyway, and keeps them in `SGLANG_CACHE_DIR`.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from warmroute_backend.plan.deployment import Plan, PlannedEngine
from warmroute_backend.plan.models import names_of

Source = Literal["daemon", "presharded", "disk"]

DAEMON: Final = ("-m", "sglang.srt.weight_cache.daemon")
DAEMON_READY: Final = "weight cache daemons on node"
"""A part of the line that the daemons' parent logs once all daemons serve (`launch_weight_cache_daemons`)."""


@dataclass(frozen=True, slots=True)
class FastStart:
    """The chosen source. `flags` are added to the engine's command line; `because`: why no faster source is used."""

    source: Source
    flags: tuple[str, ...] = ()
    because: str = ""


def fast_start(plan: Plan, engine: PlannedEngine, cache_dir: Path) -> FastStart:
    """The fastest source that fits an engine. `cache_dir`: a folder on this node's disk for pre-sharded files."""
    if engine.nodes > 1:
        return FastStart("disk", because="an engine over several nodes reads its checkpoint")
    lack = _no_daemon(plan, engine)
    if not lack:
        return FastStart("daemon", ("--weight-cache-mode", "client"))
    folders = {"presharded_path": str(presharded_dir(plan, engine.name, cache_dir))}
    if engine.speculation is not None:
        draft = engine.speculation.path or _checkpoint(plan)
        folders["draft_presharded_path"] = str(_folder(cache_dir / "presharded-draft", draft, engine.name))
    flags = ("--load-format", "presharded", "--model-loader-extra-config", json.dumps(folders))
    return FastStart("presharded", flags, lack)


def presharded_dir(plan: Plan, engine: str, cache_dir: Path) -> Path:
    return _folder(cache_dir / "presharded", _checkpoint(plan), engine)


def _folder(root: Path, checkpoint: str, engine: str) -> Path:
    return root / hashlib.sha256(checkpoint.encode()).hexdigest()[:12] / engine


def _checkpoint(plan: Plan) -> str:
    return plan.site.model_path or plan.model.path


def _no_daemon(plan: Plan, engine: PlannedEngine) -> str:
    if engine.speculation is not None:
        return "the weight cache excludes drafts"
    if plan.model.weight_format == "bf16" or (plan.model.weight_format == "fp8" and names_of(plan.model)):
        return ""
    return f"the weight cache is not verified for {plan.model.weight_format} of this model"
