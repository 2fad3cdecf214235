"""The configuration that the launcher writes: complete, valid, and with a price for every model of the samples."""

import itertools
import tomllib
from pathlib import Path
from typing import Any

import pytest

from warmroute_lab.fleet import ENGINES, MODELS, REGIONS, render
from warmroute_lab.recordings import load_recordings
from warmroute_proxy.server.base.config_file import load_config


@pytest.fixture
def values() -> dict[str, Any]:
    found: dict[str, Any] = {
        "region": "east",
        "port": 0,
        "admin_port": 0,
        "record": "",
        "policy": "cost",
        "state_dir": '/tmp/a folder with "quotes" and \\ in it',
        "secret_file": "/tmp/secret",
        "key_sha256": "0" * 64,
    }
    ports = itertools.count(1000)
    for region in REGIONS:
        found[f"{region}_proxy_url"] = "" if region == "east" else f"http://127.0.0.1:{next(ports)}"
        found[f"{region}_rtt_ms"] = 0 if region == "east" else 30.0
        for name, role in ENGINES:
            found[f"{region}_{name}_url"] = f"http://127.0.0.1:{next(ports)}"
            found[f"{region}_{name}_bootstrap_port"] = next(ports) if role == "prefill" else None
    return found


def test_the_rendered_file_is_what_was_put_in(values: dict[str, Any]) -> None:
    document = tomllib.loads(render(values))
    assert document["proxy"]["state_dir"] == values["state_dir"]
    assert [region["rtt_ms"] for region in document["region"]] == [0, 30.0]
    assert [(engine["id"], engine["role"]) for engine in document["engine"]] == [
        (f"{region}-{name}", role) for region in REGIONS for name, role in ENGINES
    ]


def test_the_proxy_accepts_it(values: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "east.toml"
    path.write_text(render(values))
    config = load_config(path)
    assert config.proxy.policy == "cost"
    assert len(config.engines) == len(REGIONS) * len(ENGINES)


def test_every_model_of_the_samples_is_served_and_priced(values: dict[str, Any]) -> None:
    document = tomllib.loads(render(values))
    asked = {str(request.body["model"]) for recording in load_recordings() for request in recording.requests}
    assert asked <= {model["name"] for model in document["model"]}
    assert {model["name"] for model in document["model"]} == set(MODELS)
