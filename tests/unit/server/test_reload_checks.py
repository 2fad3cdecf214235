"""What is checked of a config that is to be in force, beside what its file says."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.subjects.documents import config_of

from warmroute_proxy.server.base.config import Config
from warmroute_proxy.server.base.config_file import ConfigError, load_config, read_config
from warmroute_proxy.server.base.config_source import ConfigSource
from warmroute_proxy.server.base.files import FileChanges
from warmroute_proxy.server.base.secrets import SecretError, bearer, load_dsn, load_secret
from warmroute_proxy.server.check import problems_of
from warmroute_proxy.server.reload.reloads import problems_for_processes

CONFIG = """
[proxy]
region = "east"
[ledger]
dsn_file = "dsn"
[[region]]
name = "east"
[[engine]]
url = "http://a"
region = "east"
[[model]]
name = "m"
free = true
"""


def config(tmp_path: Path, **engine: str) -> Config:
    (tmp_path / "secret").write_text("s" * 32)
    return config_of(
        tmp_path,
        secret={"file": "secret"},
        proxy={"region": "east", "state_dir": "state"},
        ledger={"dsn_file": "dsn"},
        engine=[{"id": "a", "url": "http://a", "region": "east", **engine}],
        tenant=None,
    )


def test_a_config_without_a_problem_has_none(tmp_path: Path) -> None:
    assert problems_for_processes(config(tmp_path)) == []


def test_each_problem_is_named(tmp_path: Path) -> None:
    good = config(tmp_path, key_file="nowhere.key")
    limits = replace(good.limits, body_bytes=good.limits.body_memory_bytes)
    models = (replace(good.models[0], books=()),)
    (tmp_path / "secret").write_text("s" * 32 + "\n" + "t" * 32)
    memory, price, secret, key = problems_for_processes(replace(good, limits=limits, models=models))
    assert "body_memory_bytes waits for a restart" in memory
    assert "model m: has no price" in price
    assert "several lines, and none of them is `caches: `" in secret
    assert "cannot read the engine key" in key


def test_a_check_names_all_problems_and_makes_nothing(tmp_path: Path) -> None:
    found = config(tmp_path, key_file="k" * 300)
    wrong = f"key_file: cannot read the engine key in a path of 300 characters below {tmp_path}:"
    assert any(each.startswith(f"engine a: {wrong}") for each in problems_of(found, {}))
    assert not found.proxy.state_dir.exists()
    found.proxy.state_dir.write_text("a file")
    assert f"proxy.state_dir: {tmp_path / 'state'} cannot" in " ".join(problems_of(found, {}))


@pytest.mark.parametrize("load", [load_dsn, bearer, lambda file: load_secret(file, {})])
def test_a_secret_in_place_of_a_file_name_is_not_shown(load: Callable[[Path], object], tmp_path: Path) -> None:
    for name in ("5a" * 32, "sk-live-abc/def+0123456789abcdefghij"):
        with pytest.raises(SecretError) as raised:
            load(tmp_path / name)
        assert str(tmp_path) in str(raised.value)
        assert not any(each in str(raised.value) for each in name.split("/"))
    with pytest.raises(SecretError, match=r"ledger\.dsn"):
        load(tmp_path / "ledger.dsn")


def test_the_first_look_at_a_file_counts_as_a_change(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    changes = FileChanges(file)
    assert not changes.found(), "it is not there"
    file.write_text("")
    assert [changes.found(), changes.found()] == [True, False]


def test_another_mode_is_a_change(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("")
    changes = FileChanges(file)
    assert changes.found()
    seen = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == seen:  # until the file system's clock goes on
        file.chmod(0o600)
    assert [changes.found(), changes.found()] == [True, False]


def test_a_folder_that_kubernetes_swaps_changes_the_files_in_it(tmp_path: Path) -> None:
    def mount(version: str) -> None:
        """As the kubelet does: `dsn` leads to `..data/dsn`, and `..data` to the newest folder."""
        (tmp_path / version).mkdir()
        (tmp_path / version / "dsn").write_text(f"postgresql://a:{version}@host/name")
        (tmp_path / version / "w.toml").write_text(CONFIG)
        (tmp_path / "new").symlink_to(version)
        (tmp_path / "new").replace(tmp_path / "..data")

    for name in ("dsn", "w.toml"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    mount("one")
    found = ConfigSource(tmp_path / "w.toml", {}).read().config
    assert found == load_config(tmp_path / "w.toml")
    assert found.database is not None
    file = found.database.dsn_file
    changes = FileChanges(file)
    assert [changes.found(), changes.found()] == [True, False]
    mount("two")
    shutil.rmtree(tmp_path / "one")
    assert [changes.found(), changes.found()] == [True, False]
    assert load_dsn(file) == "postgresql://a:two@host/name"


def test_an_address_is_read_of_regular_files_of_some_size_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("postgresql://" + "a" * 70_000)
    for name, problem in (("pipe", "is not a regular file"), ("large", "is larger than"), ("none", "No such file")):
        with pytest.raises(SecretError, match=problem):
            load_dsn(tmp_path / name)


def test_a_file_that_is_nested_too_deeply_is_a_problem_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        read_config(b"a = " + b"[" * 5_000, tmp_path, "test")
