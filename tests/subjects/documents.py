"""Configurations that tests need only to have one."""

from pathlib import Path
from typing import Any

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import parse_config


def config_of(folder: Path = Path(), **tables: Any) -> Config:
    """The configuration of a proxy in one region before one engine; `tables`: those that are others, and more."""
    document: dict[str, Any] = {
        "proxy": {"region": "east"},
        "region": [{"name": "east"}],
        "engine": [{"id": "a", "url": "http://a.test:8000", "region": "east"}],
        "model": [{"name": "m", "free": True}],
        "tenant": [{"name": "t", "key_sha256": ["00" * 32]}],
    }
    changed = {**document, **tables}
    return parse_config({name: table for name, table in changed.items() if table is not None}, folder, "test")
