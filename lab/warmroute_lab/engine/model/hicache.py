"""HiCache: the settings of the host and storage tiers, and the storage tier's `file` backend.

The backend is a directory with an empty file for each page, named by the page's key. The key is a hash of the page's
whole path and namespace, so engines that name the same directory share its pages, and the pages outlive the engines.
(SGLang's file backend has the page's KV in such a file, named by the page's SHA-256.) Page size and served model are in
the name of a subdirectory: engines that differ in either share nothing.

Backends can be attached and detached while the engine is idle. The answers are those of SGLang's
`/hicache/storage-backend`.

Bounds: one engine stores and finds at most `MAX_PAGES` pages in a directory. A directory that cannot be read or
written (full, gone, not allowed) counts as empty and takes no pages; the engine goes on without it, as SGLang does.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

MAX_PAGES: Final = 1_000_000
BYTES_PER_TOKEN: Final = 70_272
"""KV bytes of a token for `--hicache-size`: 61 layers of MLA with 576 bf16 values, as Kimi K2 and DeepSeek V3 have."""
DIRECTORY_VARIABLE: Final = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
BACKEND_NAME: Final = "HiCacheFile"
_log = logging.getLogger(__name__)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")

PREFETCH_POLICY: Final = "wait_complete"
WRITE_POLICY: Final = "write_through"
"""The only policies that are modelled."""


class ExtraConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of `--hicache-storage-backend-extra-config` that are modelled."""

    prefetch_threshold: int = 256
    """A hit in storage of fewer tokens is not fetched."""
    file_storage_path: str | None = None


@dataclass(frozen=True, slots=True)
class HiCache:
    """The settings of an engine's cache tiers. `ratio`: the capacity of the host tier / that of the device."""

    ratio: float = 2.0
    size_gb: float = 0.0
    storage_backend: Literal["file"] | None = None
    extra_config: str | None = None

    def host_tokens(self, device_tokens: int, bytes_per_token: float) -> int:
        """The capacity of a rank's host tier, from the size in GB (10^9 bytes) or, without a size, from the ratio."""
        return int(self.size_gb * 1e9 / bytes_per_token) if self.size_gb else int(device_tokens * self.ratio)


def read_extra_config(text: str | None) -> ExtraConfig:
    """The options of a storage backend.

    Raises: ValueError.
    """
    try:
        extra = msgspec.json.decode(text or "{}", type=ExtraConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the extra configuration of the storage backend is not usable: {error}") from None
    if extra.prefetch_threshold < 0:
        raise ValueError(f"prefetch_threshold must not be negative, got {extra.prefetch_threshold}")
    return extra


def directory_of(extra: ExtraConfig) -> Path:
    """The directory of the file backend.

    Raises: ValueError, if no directory is configured.
    """
    root = os.environ.get(DIRECTORY_VARIABLE) or extra.file_storage_path
    if root is None:
        raise ValueError(
            f"the file backend needs a directory: set {DIRECTORY_VARIABLE}, or file_storage_path in its options"
        )
    return Path(root)


class FileStore:
    """The pages in one directory, as far as this engine has found or stored them."""

    def __init__(self, directory: Path) -> None:
        """Raises: OSError, if the directory cannot be made."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._known: set[int] = set()
        self._warned = False

    def __contains__(self, key: object, /) -> bool:
        if key in self._known:
            return True
        if isinstance(key, int) and len(self._known) < MAX_PAGES and self._tried(self._file(key).exists):
            self._known.add(key)
            return True
        return False

    def add(self, key: int, /) -> None:
        """Store a page, unless it is there or the store is full."""
        if key not in self._known and len(self._known) < MAX_PAGES:
            self._tried(lambda: self._store(key))

    def clear(self) -> None:
        """Remove every page, including those of other engines."""
        self._known.clear()
        self._tried(self._empty)

    def _store(self, key: int) -> bool:
        self._file(key).touch()
        self._known.add(key)
        return True

    def _empty(self) -> bool:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        return True

    def _tried(self, access: Callable[[], bool]) -> bool:
        """The result of an access to the directory; False if it fails. Only the first failure is logged."""
        try:
            return access()
        except OSError as error:
            if not self._warned:
                _log.warning("the storage tier in %s cannot be used: %s", self._directory, error.strerror)
            self._warned = True
            return False

    def _file(self, key: int) -> Path:
        return self._directory / f"{key:016x}"


class StorageBackend:
    """The attached backend. `apply` gives the schedulers the store (None if detached) and the threshold in tokens."""

    def __init__(
        self, config: HiCache, model: str, page_size: int, apply: Callable[[FileStore | None, int], None]
    ) -> None:
        """Raises: ValueError or OSError, if the configured backend cannot be opened."""
        self._config = replace(config, storage_backend=None)
        self._folder_name = f"{_UNSAFE.sub('-', model)}-{page_size}"
        self._apply = apply
        self.store: FileStore | None = None
        if config.storage_backend is not None:
            self._open(config.extra_config)
            self._config = config

    def attach(self, changes: dict[str, Any]) -> tuple[bool, str]:
        """Attach the backend that a PUT names, or change its policies. Returns success and a message."""
        backend = changes["hicache_storage_backend"]
        attached = self._config.storage_backend
        if attached is not None and backend != attached:
            return False, (
                f"HiCache storage backend is already enabled with backend '{attached}'. Cannot attach different "
                f"backend '{backend}'. Detach first."
            )
        if backend != "file":
            return False, f"Unknown storage backend: {backend}"
        extra = changes.get("hicache_storage_backend_extra_config_json")
        extra = self._config.extra_config if extra is None else extra
        for name, only in (
            ("hicache_storage_prefetch_policy", PREFETCH_POLICY),
            ("hicache_write_policy", WRITE_POLICY),
        ):
            if changes.get(name) not in (None, only):
                return False, f"Only {name} '{only}' is modelled, got '{changes[name]}'."
        try:
            self._open(extra)
        except (ValueError, OSError) as error:
            return False, str(error)
        self._config = replace(self._config, storage_backend="file", extra_config=extra)
        if attached is None:
            return True, "Attached HiCache storage backend successfully."
        return True, "HiCache storage backend already enabled with same backend; policies updated."

    def detach(self) -> str:
        """Detach the backend; its pages stay."""
        self.store = None
        self._config = replace(self._config, storage_backend=None, extra_config=None)
        self._apply(None, 0)
        return "Detached HiCache storage backend successfully."

    def status(self) -> dict[str, str | None]:
        config = self._config
        return {
            "hicache_storage_backend": config.storage_backend,
            "hicache_storage_backend_extra_config": config.extra_config,
            "hicache_storage_prefetch_policy": PREFETCH_POLICY,
            "hicache_write_policy": WRITE_POLICY,
        }

    def _open(self, extra_config: str | None) -> None:
        extra = read_extra_config(extra_config)
        self.store = FileStore(directory_of(extra) / self._folder_name)
        self._apply(self.store, extra.prefetch_threshold)
