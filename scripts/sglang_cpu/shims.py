"""What SGLang 0.5.23 needs from CUDA builds, in place of them, on a plain CPU.

All of it is tied to that version. None of it changes what SGLang decides: these are copies of memory, imports, and
events of streams that do not exist on a CPU.
"""

# mypy: disable-error-code="import-not-found"
import builtins
import importlib.machinery
import importlib.util
import multiprocessing
import os
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import speculative
import torch
from parent import die_with_parent

HOST_MEMORY_RESERVE_BYTES = 2**28
"""What HiCache leaves free of the host's memory. Its own 10 GiB are more than a small machine has."""

NIXL_POLL_US = 1000
"""How often NIXL looks for arrived KV. Its own 0 keeps half a core busy while nothing happens."""


WAIT_POLL_S = 0.005
"""How often a scheduler that computes nothing looks for files and KV it waits for. Its own 0 takes most of a core."""


def apply(*, nixl: bool, eagle: bool) -> None:
    """Put everything in place; `nixl` where that moves the KV between servers, `eagle` where drafts are made."""
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    forked_children()
    torchvision_schemas()
    sgl_kernel()
    hicache_copies()
    hicache_reserve()
    pinned_memory()
    cuda_streams()
    resting_scheduler()
    if nixl:
        nixl_memory()
    if eagle:
        drafts()


def forked_children() -> None:
    """SGLang spawns its scheduler and detokenizer, and each imports all again: two thirds of the CPU time of a start.

    They can be forked, since no other thread runs yet and there is no CUDA to be initialised twice.
    """
    plain = multiprocessing.set_start_method

    def fork(_method: str | None, force: bool = False) -> None:
        plain("fork", force)

    setattr(multiprocessing, "set_start_method", fork)  # noqa: B010 (typed otherwise)
    os.register_at_fork(after_in_child=die_with_parent)


def torchvision_schemas() -> None:
    """PyPI's torchvision is a CUDA build whose operators do not load beside a CPU torch; its import names two of them.

    A torchvision of the CPU index loads its operators itself: it is tried first, and nothing is defined where it works.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", schema)


def sgl_kernel() -> None:
    """SGLang's CPU kernels have no wheel: a module whose kernels can be imported, and that has the one it uses."""

    class Kernels(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if not name.endswith("_cpu"):
                raise AttributeError(name)

            def missing(*_arguments: Any, **_named: Any) -> None:
                raise NotImplementedError(f"sgl_kernel.{name} has no body on this CPU")

            return missing

    module: Any = Kernels("sgl_kernel")
    module.__spec__ = importlib.machinery.ModuleSpec("sgl_kernel", None, is_package=True)
    module.__path__ = []
    module.__version__ = "0.0.0"
    module.assign_req_to_token_pool_cpu = _assign_req_to_token_pool
    sys.modules["sgl_kernel"] = module


def _assign_req_to_token_pool(
    req_pool_indices: Any, req_to_token: Any, start: Any, end: Any, out_cache_loc: Any, _pool_len: int
) -> None:
    done = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = out_cache_loc[done : done + last - first].to(req_to_token.dtype)
        done += last - first


def hicache_copies() -> None:
    """HiCache imports its copies between device and host on accelerators only; elsewhere the names are builtins."""

    def transfer_kv_direct(
        src_layers: Any,
        dst_layers: Any,
        src_indices: Any,
        dst_indices: Any,
        page_size: int,  # noqa: ARG001
    ) -> None:
        for source, target in zip(src_layers, dst_layers, strict=True):
            target[dst_indices] = source[src_indices]

    def transfer_kv_per_layer_direct_pf_lf(
        src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
    ) -> None:
        for source, target in zip(src_ptrs, dst_ptrs, strict=True):
            target[dst_indices] = source[src_indices // page_size, layer_id, src_indices % page_size]

    def transfer_kv_all_layer_direct_lf_pf(
        src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int
    ) -> None:
        layers = len(src_ptrs) // len(dst_ptrs)
        for number, source in enumerate(src_ptrs):
            target = dst_ptrs[number // layers]
            target[dst_indices // page_size, number % layers, dst_indices % page_size] = source[src_indices]

    for copy in (transfer_kv_direct, transfer_kv_per_layer_direct_pf_lf, transfer_kv_all_layer_direct_lf_pf):
        setattr(builtins, copy.__name__, copy)

    class Cudart:
        cudaHostRegister = staticmethod(lambda *_: 0)  # noqa: N815 (CUDA's names)
        cudaHostUnregister = staticmethod(lambda *_: 0)  # noqa: N815
        cudaGetErrorString = staticmethod(str)  # noqa: N815

    setattr(torch.cuda, "cudart", Cudart)  # noqa: B010 (typed otherwise)


def hicache_reserve() -> None:
    """Only the scheduler imports what this changes, and it is slow to import."""

    def lower(module: Any) -> None:
        module.HICACHE_HOST_MEMORY_RESERVE_BYTES = HOST_MEMORY_RESERVE_BYTES

    after_import("sglang.srt.mem_cache.pool_host.base", lower)


def drafts() -> None:
    """EAGLE-3's kernels, and the attention backend that knows drafts, which SGLang takes on CPUs with AMX only."""
    for name in dir(speculative):
        if name.endswith("_attention_cpu"):
            setattr(torch.ops.sgl_kernel, name, getattr(speculative, name))
        elif name.endswith("_cpu"):
            setattr(sys.modules["sgl_kernel"], name, getattr(speculative, name))

    def claim_amx(module: Any) -> None:
        plain = module.get_platform

        class Platform:
            has_amx = True

            def __getattr__(self, name: str) -> Any:
                return getattr(plain(), name)

        module.get_platform = Platform

    def without_triton(module: Any) -> None:
        module.get_last_loc_triton = module.get_last_loc_torch

    after_import("sglang.srt.arg_groups.overrides", claim_amx)
    after_import("sglang.srt.mem_cache.allocation", without_triton)


def after_import(name: str, change: Callable[[Any], None]) -> None:
    """Change a module of SGLang once it is imported, and not import it for that."""

    class Finder:
        def find_spec(self, wanted: str, _path: Any = None, _target: Any = None) -> Any:
            if wanted != name:
                return None
            sys.meta_path.remove(self)
            found: Any = importlib.util.find_spec(name)
            plain = found.loader.exec_module

            def exec_module(module: Any) -> None:
                plain(module)
                change(module)

            found.loader.exec_module = exec_module
            return found

    sys.meta_path.insert(0, Finder())


def pinned_memory() -> None:
    """Reads of the storage tier and PD's sender ask for pinned tensors; only an accelerator can pin."""
    for name in ("zeros", "empty"):
        plain = getattr(torch, name)

        def unpinned(*arguments: Any, plain: Any = plain, **named: Any) -> Any:
            named.pop("pin_memory", None)
            return plain(*arguments, **named)

        setattr(torch, name, unpinned)


def cuda_streams() -> None:
    """PD's sender records an event on the current CUDA stream; on a CPU what was called is done."""

    class Event(torch.cpu.Event):  # type: ignore[misc]
        def __init__(self, *_arguments: Any, **_named: Any) -> None:
            pass

    setattr(torch.cuda, "Event", Event)  # noqa: B010
    setattr(torch.cuda, "current_stream", torch.cpu.current_stream)  # noqa: B010


def resting_scheduler() -> None:
    """An idle scheduler sleeps. One that waits for the threads that write files, or for another server, only spins."""

    def rest(module: Any) -> None:
        plain = module.Scheduler.on_idle

        def on_idle(self: Any) -> None:
            waits = not self.is_fully_idle()
            plain(self)
            if waits:
                time.sleep(WAIT_POLL_S)

        module.Scheduler.on_idle = on_idle

    after_import("sglang.srt.managers.scheduler", rest)


def nixl_memory() -> None:
    """SGLang tells NIXL that KV lies in VRAM; here it is DRAM. And NIXL's progress thread polls without a pause."""
    from nixl_cu12 import _api as api

    plain = api.nixl_agent.__init__

    def init(self: Any, *arguments: Any, **named: Any) -> None:
        plain(self, *arguments, **named)
        self.nixl_mems["VRAM"] = self.nixl_mems["DRAM"]

    api.nixl_agent.__init__ = init

    class AgentConfig(api.nixlBind.nixlAgentConfig):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, NIXL_POLL_US if name == "pthrDelay" else value)

    api.nixlBind.nixlAgentConfig = AgentConfig
