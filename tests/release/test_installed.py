"""What users install: the wheels of `scripts/release`, from a folder, by the programs that users have.

pip takes 5 to 25 s for an environment, and an index that is not in its cache more.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.machine import seconds
from tests.release.files import DIST, ROOT, UV, Install, Run

from warmroute.contract.version import VERSION

pytestmark = pytest.mark.timeout(240)

MAX_SDK_DISTRIBUTIONS = 20
"""What `pip install warmroute` brings, itself included."""

MAX_OWN_BYTES = {"compiled": 12_000_000, "pure": 5_000_000}
"""Of what warmroute itself unpacks, which is all five packages; bytecode comes on top."""

MAX_IMPORTED_MODULES = 15
"""Beyond those of a bare interpreter, for `import warmroute`. A count, since times depend on the machine."""

NOT_FOR_THE_IMPORT = ("openai", "httpx", "httpx2", "pydantic", "msgspec", "warmroute_proxy", "warmroute_cli")
OF_AN_EXTRA = {
    "discovery": ["dns.asyncresolver"],
    "doctor": ["pynvml"],
    "lint": ["warmroute.lint.command"],
    "otel": ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"],
    "postgres": ["alembic", "asyncpg", "sqlalchemy.ext.asyncio"],
    "proxy": ["warmroute_proxy.server.main", "warmroute_lab.up", "warmroute_lab.engine.server"],
    "redis": ["redis.asyncio"],
    "replay": ["numpy"],
    "telemetry": ["opentelemetry.trace"],
}
"""Modules that must be importable with an extra alone."""

OF_ALL_EXTRAS = (
    "warmroute_proxy.server.discovery.srv",
    "warmroute_proxy.server.redis.calls",
    "warmroute_proxy.server.stores.fleet_ledger",
    "warmroute_proxy.server.stores.migrate",
    "warmroute_proxy.server.tracing.spans",
    "warmroute_cli.replay.replay",
)

ADDED = "import json, sys; before = set(sys.modules); import warmroute; print(json.dumps([*set(sys.modules) - before]))"
OWN_BYTES = """
from importlib.metadata import distribution, distributions
files = distribution("warmroute").files
print(sum(path.size or 0 for path in files), len({each.name for each in distributions()} - {"pip", "setuptools"}))
"""


FIRST_HOUR = """
export PATH={programs}:$PATH
timeout {limit_s:.0f} warmroute up --record >up.log &
eval "$(warmroute up --wait)"
{curl}
warmroute usage
warmroute receipts list
warmroute receipts show
kill %1
wait
cat up.log
warmroute replay --verify .warmroute/up/east.record
"""
"""The commands of docs/tutorial/first-hour.md that need no program beside warmroute."""


@pytest.fixture(scope="module", params=["pip", "uv"])
def sdk(request: pytest.FixtureRequest, install: Install, run: Run) -> Path:
    """The programs of an environment with `warmroute`, taken from the folder alone; its dependencies from the index."""
    programs = install(seed=request.param == "pip")
    python = programs / "python"
    if request.param == "pip":
        command: list[str | Path] = [python, "-m", "pip", "install", "--quiet"]
    else:
        command = [UV, "pip", "install", "--python", python, "--refresh-package", "warmroute"]
    run(*command, "--no-index", "--no-deps", "--find-links", DIST, "warmroute")
    run(*command, "--find-links", DIST, f"warmroute=={VERSION}")
    return programs


def test_an_installer_takes_the_compiled_wheel_where_one_fits(sdk: Path, run: Run) -> None:
    assert run(sdk / "warmroute", "--version").stdout == f"warmroute {VERSION} (compiled)\n"


def test_importing_the_sdk_loads_no_library(sdk: Path, run: Run) -> None:
    added = json.loads(run(sdk / "python", "-c", ADDED).stdout)
    assert [name for name in added if name.partition(".")[0] in NOT_FOR_THE_IMPORT] == []
    assert len(added) <= MAX_IMPORTED_MODULES


def test_the_sdk_makes_its_client_without_any_extra(sdk: Path, run: Run) -> None:
    code = (
        "import sys; from warmroute import OpenAI; OpenAI(api_key='none').cache.report();"
        "sys.exit(any(name.startswith('warmroute_') for name in sys.modules))"
    )
    run(sdk / "python", "-c", code)


def test_the_install_of_the_sdk_is_small(sdk: Path, run: Run) -> None:
    own_bytes, distributions = map(int, run(sdk / "python", "-c", OWN_BYTES).stdout.split())
    assert own_bytes <= MAX_OWN_BYTES["compiled"]
    assert distributions <= MAX_SDK_DISTRIBUTIONS


def test_a_command_that_needs_an_extra_says_how_to_install_it(sdk: Path, run: Run) -> None:
    said = run(sdk / "warmroute", "proxy", "--config", "none.toml", status=2).stderr
    assert "pip install 'warmroute[proxy]'" in said


@pytest.mark.parametrize("extras", OF_AN_EXTRA)
def test_an_extra_brings_what_it_is_for(install: Install, run: Run, compiled: Path, extras: str) -> None:
    programs = install(f"warmroute[{extras}] @ {compiled.as_uri()}")
    run(programs / "python", "-c", f"import {', '.join(OF_AN_EXTRA[extras])}")


def test_all_extras_go_together(install: Install, run: Run, compiled: Path) -> None:
    programs = install(f"warmroute[{','.join(OF_AN_EXTRA)}] @ {compiled.as_uri()}")
    run(programs / "python", "-c", f"import {', '.join(OF_ALL_EXTRAS)}")


def test_the_pure_wheel_runs_the_same_commands(install: Install, run: Run, pure: Path) -> None:
    programs = install(f"warmroute[proxy,replay] @ {pure.as_uri()}")
    assert run(programs / "warmroute", "--version").stdout == f"warmroute {VERSION} (pure)\n"
    own_bytes, _ = map(int, run(programs / "python", "-c", OWN_BYTES).stdout.split())
    assert own_bytes <= MAX_OWN_BYTES["pure"]
    assert "984 requests" in run(programs / "warmroute", "replay", "--recorded").stdout


def test_the_quickstart_works_without_a_checkout(install: Install, run: Run, compiled: Path, tmp_path: Path) -> None:
    programs = install(f"warmroute[proxy,replay] @ {compiled.as_uri()}")
    page = (ROOT / "docs/tutorial/first-hour.md").read_text()
    curl = page.partition("\n## With curl\n")[2].partition("```sh\n")[2].partition("```")[0]
    script = FIRST_HOUR.format(programs=programs, curl=curl, limit_s=seconds(100))
    said = run("bash", "-euo", "pipefail", "-c", script, cwd=tmp_path).stdout
    assert re.search(r'"warmroute": \{\s+"v": 1,', said)
    assert "stopped" in said


def test_uv_installs_the_command_as_a_tool(run: Run, compiled: Path, tmp_path: Path) -> None:
    folders = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(UV, "tool", "install", "--python", sys.executable, f"warmroute[proxy] @ {compiled.as_uri()}", **folders)
    _is_a_proxy(run, tmp_path / "bin" / "warmroute")


def test_pipx_installs_the_command(install: Install, run: Run, compiled: Path, tmp_path: Path) -> None:
    programs = install()
    asked: list[str | Path] = [UV, "pip", "install", "--python", programs / "python", "pipx>=1.7,<2"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("no index that is reachable has pipx")
    folders = {"PIPX_HOME": str(tmp_path / "home"), "PIPX_BIN_DIR": str(tmp_path / "bin"), "PIP_NO_COMPILE": "1"}
    run(programs / "pipx", "install", f"{compiled}[proxy]", **folders)
    _is_a_proxy(run, tmp_path / "bin" / "warmroute")


def _is_a_proxy(run: Run, warmroute: Path) -> None:
    """The installed command has all that `warmroute proxy` needs: it gets as far as the file that is not there."""
    assert run(warmroute, "--version").stdout == f"warmroute {VERSION} (compiled)\n"
    assert "none.toml" in run(warmroute, "proxy", "--check", "--config", "none.toml", status=2).stderr
