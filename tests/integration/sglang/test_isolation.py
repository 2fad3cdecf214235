"""`warmroute audit isolation` on real SGLang: tenants see nothing of each other, on the device and on the host."""

import json
from pathlib import Path

import pytest

from tests.integration.proxy.harness import ProxyProcess
from tests.integration.sglang.behind import toml
from warmroute_backend.sglang import Server
from warmroute_cli.main import main
from warmroute_proxy.server.base.secrets import new_api_key

pytestmark = pytest.mark.timeout(400)

FILLER = "14"
"""Prompts of about 2,500 tokens, more than the pool of 32,768 holds."""


@pytest.mark.parametrize("tier", [("device",), ("host", "--filler", FILLER)], ids=["device", "host"])
def test_tenants_see_nothing_of_each_other(
    tmp_path: Path, sglang_aggregated: Server, capsys: pytest.CaptureFixture[str], tier: tuple[str, ...]
) -> None:
    keys = (new_api_key()[0], new_api_key()[0])
    files = [tmp_path / name for name in ("key", "other")]
    for file, key in zip(files, keys, strict=True):
        file.write_text(key)
    proxy = ProxyProcess(tmp_path / "p", [toml(sglang_aggregated)], keys=keys).start()
    try:
        options = ["--base-url", proxy.url, "--model", "kimi-k2.5", "--trials", "8", "--prompt-bytes", "6000", "--json"]
        options += ["--key-file", str(files[0]), "--other-key-file", str(files[1]), "--tier", *tier]
        status = main(["audit", "isolation", *options])
    finally:
        proxy.stop()
    outsider, itself = json.loads(capsys.readouterr().out)
    assert (outsider["finding"], outsider["hits"]) == ("sees nothing", 0)
    assert (itself["finding"], itself["hits"]) == ("finds its own prompts", 8)
    assert status == 0
