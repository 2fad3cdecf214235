"""`warmroute audit isolation` on real SGLang: tenants see nothing of each other, on the device and on the host."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.sglang.behind import toml
from tests.subjects.processes import ProxyProcess
from warmroute_backend.sglang import Server
from warmroute_cli.main import main
from warmroute_proxy.server.base.secrets import new_api_key

pytestmark = pytest.mark.timeout(400)

PROMPT = "7000"
"""Bytes, and about 6,500 tokens of this model: the pool of 32,768 holds four, so all that a trial sends."""

FILLER = "5"
"""Prompts that drive all others out of the pool."""


def audited(
    folder: Path, server: Server, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """The exit status, and the rows of another tenant and of the tenant itself."""
    keys = (new_api_key()[0], new_api_key()[0])
    files = [folder / name for name in ("key", "other")]
    for file, key in zip(files, keys, strict=True):
        file.write_text(key)
    with ProxyProcess(folder / "p", [toml(server)], keys=keys) as proxy:
        options = ["--base-url", proxy.url, "--model", "kimi-k2.5", "--prompt-bytes", PROMPT, "--json"]
        options += ["--key-file", str(files[0]), "--other-key-file", str(files[1])]
        status = main(["audit", "isolation", *options, *more])
    outsider, itself = json.loads(capsys.readouterr().out)
    return status, outsider, itself


def test_tenants_see_nothing_of_each_other(
    tmp_path: Path, sglang_aggregated: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    status, outsider, itself = audited(tmp_path, sglang_aggregated, capsys, "--trials", "8")
    assert (outsider["finding"], outsider["hits"]) == ("sees nothing", 0)
    assert itself["hits"] == 8
    differs = itself["finding"] == "finds its own prompts"
    assert differs or itself["finding"].startswith("shows nothing of times")  # as on a busy CPU
    assert (status == 0) == differs


def test_nor_on_the_host(tmp_path: Path, sglang_aggregated: Server, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--trials", "8", "--tier", "host", "--filler", FILLER)
    _, outsider, itself = audited(tmp_path, sglang_aggregated, capsys, *more)
    assert (outsider["finding"], outsider["hits"]) == ("sees nothing", 0)
    assert itself["hits"] == 8
    assert "host tier" not in itself["finding"]  # found there; so few times may or may not differ on a busy CPU
