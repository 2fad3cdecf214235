"""What a plan is made of, read from disk: a checkpoint's folder, a table of GPUs, a plan file."""

from functools import partial
from pathlib import Path
from typing import Any, Final

from warmroute.files.documents import DocumentError, json_of, toml_in
from warmroute.files.given import UnreadableFile, given_bytes
from warmroute_backend.plan.deployment import Plan
from warmroute_backend.plan.errors import PlanError
from warmroute_backend.plan.hardware import GPUS, Gpu, gpus_with
from warmroute_backend.plan.measured import measured_gpu
from warmroute_backend.plan.model import Model, model_from_config
from warmroute_backend.plan.models import known_model
from warmroute_backend.plan.plan_file import read

MAX_BYTES: Final = 64 << 20
MAX_TOML_BYTES: Final = 4 << 20
INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"


def find_model(name: str, *, flags_only: bool = False) -> Model:
    """The model of a known name, or of a checkpoint's folder; `flags_only`: of any family. Raises PlanError."""
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
    """The size of all tensors: the index says it; of a single file, its own size is as good."""
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
    """The table of GPUs, with those of a file, and one with the shares of peaks that were `measured` on it."""
    found = dict(GPUS) if path is None else gpus_with(_toml(path).get("gpu", []), str(path))
    if measured is not None:
        gpu = measured_gpu(_toml(measured), found, str(measured))
        found[gpu.name] = gpu
    return found


def load_plan(path: Path) -> tuple[Plan, str]:
    """The plan in a file, and what names its model."""
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
