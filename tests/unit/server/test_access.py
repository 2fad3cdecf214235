"""Keys of a config and of a database together."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from warmroute_proxy.server.base.config_file import load_config
from warmroute_proxy.server.base.config_stores import counts_limits_alone
from warmroute_proxy.server.stores.directory.access import Access, key_records, tenant_records

DIGEST = hashlib.sha256(b"wr-1").hexdigest()
CONFIG = f"""
[proxy]
region = "east"
[secret]
file = "secret"
[[engine]]
url = "http://127.0.0.1:7001"
region = "east"
[[region]]
name = "east"
[[model]]
name = "m"
free = true
[[tenant]]
name = "acme"
key_sha256 = ["{DIGEST}"]
"""


def test_a_key_of_config_and_database_keeps_its_id_while_the_database_is_away(tmp_path: Path) -> None:
    file = tmp_path / "warmroute.toml"
    file.write_text(CONFIG)
    directory: Any = SimpleNamespace(age_s=0.0)
    keys = key_records()
    keys.apply(1, [(DIGEST, json.dumps({"id": "k-0123456789", "tenant": "acme"}))], whole=True)
    access = Access(load_config(file), directory, keys, tenant_records(), 60.0, lambda: 0.0)
    ids = []
    for age_s in (0.0, 61.0):
        directory.age_s = age_s
        access.sweep()
        owner = access.api_keys.owner_of(b"wr-1")
        assert owner is not None
        ids.append(owner.key_id)
    assert ids == ["k-0123456789"] * 2


@pytest.mark.parametrize(("extra", "alone"), [("", True), ("counts_alone = true", False)])
def test_limits_of_the_database_that_each_proxy_counts_alone_are_known(extra: str, alone: bool, tmp_path: Path) -> None:
    file = tmp_path / "warmroute.toml"
    file.write_text(CONFIG.replace("[proxy]", f'[proxy]\nother_proxies = ["http://127.0.0.1:1"]\n{extra}', 1))
    directory: Any = SimpleNamespace(age_s=0.0)
    tenants = tenant_records()
    access = Access(load_config(file), directory, key_records(), tenants, 60.0, lambda: 0.0)
    assert not counts_limits_alone(access.config)
    tenants.apply(1, [("globex", json.dumps({"tokens_per_minute": 9}))], whole=True)
    access.sweep()
    assert counts_limits_alone(access.config) is alone
