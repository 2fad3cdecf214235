"""`warmroute conform` on real SGLang behind a proxy, and the ladder of what that has billed."""

import json
from pathlib import Path

import pytest

from tests.integration.sglang.behind import Behind
from warmroute_cli.main import main

pytestmark = pytest.mark.timeout(400)


def test_a_proxy_conforms(behind: Behind, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("key", "other")]
    for file, key in zip(files, behind.proxy.keys, strict=True):
        file.write_text(key)
    words = [behind.proxy.url, "--model", "kimi-k2.5", "--key-file", str(files[0]), "--other-key-file", str(files[1])]
    words += ["--api", "openai", "anthropic", "gemini", "--prompt-bytes", "4000", "--turns", "2", "--json"]
    main(["conform", *words])
    found = json.loads(capsys.readouterr().out)
    red = {cell["check"] for api in found["apis"].values() for cell in api["cells"] if cell["state"] == "fail"}
    assert not red, [(cell["check"], cell["finding"]) for api in found["apis"].values() for cell in api["cells"]]
    assert main(["ladder", "--config", str(behind.proxy.config), "--json"]) == 0
    ladder = json.loads(capsys.readouterr().out)
    rows = behind.proxy.rows(ladder["turns"])
    assert ladder["price_nanousd"] == sum(row["price_nanousd"] for row in rows)
    assert ladder["off_nanousd"] == 0
