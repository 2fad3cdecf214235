"""Parses and resolves command lines with the real SGLang, as its launcher would before it starts processes.

    .venv-sglang/bin/python tests/integration/sglang/resolve.py < cases.json > outcomes.json

A case is `{"argv": [...], "environment": {...}, "gpu": {"name", "memory_mib", "capability": [9, 0]}}`, an outcome
`{"error": null | text, "resolved": {...}}`, with `store` where the environment names a Mooncake file. argparse knows
names only; conflicts surface in `resolve_once`. It asks for a GPU, which this machine lacks, in these places, and each
of them is answered for here:

- torch.cuda: is_available, device_count, current_device, get_device_capability, get_device_name, get_device_properties,
  mem_get_info, and torch.version.cuda
- sglang.srt.utils.common.get_nvgpu_memory_capacity, which runs nvidia-smi
- the modules sgl_kernel, deep_gemm, flashinfer and pynvml, which have kernels: their names can be imported, and a call
  raises
- importlib.metadata for the versions of kernel packages that SGLang insists on

What SGLang remembers of a machine (`lru_cache`) is forgotten between two kinds of GPUs.
"""

# mypy: disable-error-code="import-not-found"
import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.metadata
import json
import logging
import os
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

KERNELS = ("sgl_kernel", "deep_gemm", "flashinfer", "pynvml")
REMEMBERS = type(functools.lru_cache(len))
SHOWN = (
    "mem_fraction_static", "chunked_prefill_size", "page_size", "kv_cache_dtype", "max_running_requests", "tp_size",
    "attn_dp_size", "ep_size", "pp_size", "moe_a2a_backend", "ep_num_redundant_experts", "enable_two_batch_overlap",
    "context_length", "disable_radix_cache", "enable_hierarchical_cache", "hicache_mem_layout", "hicache_io_backend",
    "hicache_storage_backend", "speculative_num_draft_tokens",
)  # fmt: skip


class Kernel:
    """Stands for whatever a module of kernels has; a call raises."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> "Kernel":
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(f"{self.__name__}.{name}")

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        raise NotImplementedError(f"{self.__name__} is a kernel")

    def __mro_entries__(self, _bases: object) -> tuple[type, ...]:
        return (object,)


class Kernels(types.ModuleType):
    """A module of kernels."""

    __path__ = []  # noqa: RUF012 (a package's path)
    __version__ = "99.0.0"

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return Kernel(f"{self.__name__}.{name}")


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of kernels and all of their submodules."""

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> Any:
        if name.partition(".")[0] in KERNELS:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Kernels:
        return Kernels(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


class Gpu:
    """What torch says of a GPU."""

    def __init__(self, name: str, memory_mib: int, capability: Sequence[int]) -> None:
        self.name = name
        self.memory_mib = memory_mib
        self.total_memory = memory_mib << 20
        self.major, self.minor = capability
        self.multi_processor_count = 132


_gpu = Gpu("NVIDIA H200", 143_771, (9, 0))


def patch() -> None:
    """Put everything in place, before SGLang is imported."""
    sys.path.insert(0, str(Path(__file__).parents[3] / "scripts" / "sglang_cpu"))
    import shims
    import torch

    shims.torchvision_schemas()
    sys.meta_path.insert(0, Finder())
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 8
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda _device=None: (_gpu.major, _gpu.minor)
    cuda.get_device_name = lambda _device=None: _gpu.name
    cuda.get_device_properties = lambda _device=None: _gpu
    cuda.mem_get_info = lambda _device=None: (_gpu.total_memory, _gpu.total_memory)
    version: Any = torch.version
    version.cuda = "13.0"
    plain = importlib.metadata.version

    def find(distribution_name: str) -> str:
        known = distribution_name.replace("-", "_").partition("_python")[0] in KERNELS
        return "99.0.0" if known else plain(distribution_name)

    importlib.metadata.version = find


def become(gpu: Gpu) -> None:
    """Be a machine with these GPUs."""
    global _gpu  # noqa: PLW0603 (the functions above read it)
    _gpu = gpu
    from sglang.srt.utils import common

    common.get_nvgpu_memory_capacity = lambda: _gpu.memory_mib
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang."):
            for value in list(vars(module).values()):
                if isinstance(value, REMEMBERS):
                    value.cache_clear()


@contextlib.contextmanager
def variables(values: dict[str, str]) -> Iterator[None]:
    """An engine's environment, and after it the one before: resolution sets variables of its own."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def resolve(argv: list[str]) -> dict[str, Any]:
    """Parse and resolve one command line."""
    from sglang.srt.server_args import prepare_server_args

    try:
        arguments = prepare_server_args(argv)
        arguments.resolve_once()
        arguments.check_server_args()
        resolved = arguments.resolved_dict()
        shown = {name: resolved.get(name) for name in SHOWN}
        if Path(os.environ.get("SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "")).is_file():
            from sglang.srt.mem_cache.storage.mooncake_store.mooncake_store import MooncakeStoreConfig

            shown["store"] = vars(MooncakeStoreConfig.from_file())
    except SystemExit as error:
        return {"error": f"argparse: exit {error.code}", "resolved": {}}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "resolved": {}}
    return {"error": None, "resolved": shown}


def main() -> None:
    """Read cases, write outcomes."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    cases = json.load(sys.stdin)
    answers, sys.stdout = sys.stdout, sys.stderr
    patch()
    outcomes = []
    kind = None
    for case in cases:
        gpu = case["gpu"]
        if gpu != kind:
            become(Gpu(gpu["name"], gpu["memory_mib"], gpu["capability"]))
            kind = gpu
        with variables(case.get("environment", {})):
            outcomes.append(resolve(case["argv"]))
        logging.disable(logging.WARNING)
    json.dump(outcomes, answers)


if __name__ == "__main__":
    main()
