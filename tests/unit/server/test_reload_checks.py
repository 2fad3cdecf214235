"""What is checked of a config that is to be in force, beside what its file says."""

from dataclasses import replace
from pathlib import Path

import pytest

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, parse_config, read_config
from warmroute_proxy.server.base.config_source import FileChanges
from warmroute_proxy.server.reload.checks import problems_for_processes


def config(tmp_path: Path, **engine: str) -> Config:
    document = {
        "proxy": {"region": "east", "state_dir": "state"},
        "ledger": {"dsn_file": "dsn"},
        "region": [{"name": "east"}],
        "engine": [{"id": "a", "url": "http://a", "region": "east", **engine}],
        "model": [{"name": "m", "free": True}],
    }
    return parse_config(document, tmp_path, "test")


def test_a_config_without_a_problem_has_none(tmp_path: Path) -> None:
    assert problems_for_processes(config(tmp_path)) == []


def test_each_problem_is_named(tmp_path: Path) -> None:
    good = config(tmp_path, key_file="nowhere.key")
    limits = replace(good.limits, body_bytes=good.limits.body_memory_bytes)
    models = (replace(good.models[0], books=()),)
    memory, price, key = problems_for_processes(replace(good, limits=limits, models=models))
    assert "body_memory_bytes waits for a restart" in memory
    assert "model m: has no price" in price
    assert "cannot read the engine key" in key


def test_the_first_look_at_a_file_counts_as_a_change(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    changes = FileChanges(file)
    assert not changes.found(), "it is not there"
    file.write_text("")
    assert [changes.found(), changes.found()] == [True, False]


def test_a_file_that_is_nested_too_deeply_is_a_problem_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_config(b"a = " + b"[" * 5_000, tmp_path, "test")
