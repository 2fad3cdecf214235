"""The units: verified by systemd, their exposure rated by it, and their commands taken by warmroute."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import zmq

from tests.integration.proxy.test_large_bodies import answer, ask, large, reader_of
from tests.machine import seconds
from tests.subjects.processes import ProxyProcess
from tests.subjects.scripted import ScriptedEngine
from warmroute_backend.plan.deployment import Site
from warmroute_cli.main import parser

from .container import ROOT

UNITS = ROOT / "deploy/systemd"
EXPOSURE = {"warmroute-proxy": 1.5, "warmroute-launch": 3.6}
"""At most, by `systemd-analyze security`: 0 may nothing, 10 everything."""


def lines(name: str, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", (UNITS / f"{name}.service").read_text(), re.MULTILINE)


def test_each_unit_has_its_rating() -> None:
    assert sorted(path.stem for path in UNITS.glob("*.service")) == sorted(EXPOSURE)


@pytest.mark.parametrize("name", EXPOSURE)
def test_systemd_takes_it(name: str, tmp_path: Path) -> None:
    unit = tmp_path / f"{name}.service"
    text = (UNITS / unit.name).read_text()
    unit.write_text(text.replace("ExecStart=/opt/warmroute/bin/warmroute", f"ExecStart={sys.executable}"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False)
    assert not [line for line in done.stderr.splitlines() if name in line]


@pytest.mark.parametrize("name", EXPOSURE)
def test_it_is_exposed_no_more_than_it_has_to_be(name: str) -> None:
    unit = UNITS / f"{name}.service"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", unit], capture_output=True, text=True, check=True
    )
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert found
    assert float(found[1]) <= EXPOSURE[name], done.stdout


@pytest.mark.parametrize("name", EXPOSURE)
def test_warmroute_takes_its_command(name: str) -> None:
    variables = dict(pair.split("=") for line in lines(name, "Environment") for pair in line.split())
    words = [
        re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], word) for word in lines(name, "ExecStart")[0].split()
    ]
    assert words[0] == "/opt/warmroute/bin/warmroute"
    parser().parse_args(words[1:])


@pytest.mark.parametrize("name", EXPOSURE)
def test_it_has_longer_to_end_than_the_chart_gives_streams(name: str) -> None:
    assert int(lines(name, "TimeoutStopSec")[0]) >= 930


def test_it_may_write_where_what_it_starts_writes() -> None:
    """`ProtectSystem=strict` makes all other folders read-only."""
    assert lines("warmroute-proxy", "StateDirectory") == ["warmroute"]
    (launch,) = lines("warmroute-launch", "StateDirectory")
    words = lines("warmroute-launch", "ExecStart")[0].split()
    written = [words[words.index("--state-dir") + 1], Site().storage_dir, "/var/lib/warmroute"]
    for path in written:
        assert any(Path(path).is_relative_to(f"/var/lib/{folder}") for folder in launch.split()), path


def test_it_names_no_group_that_a_machine_may_lack_and_the_docs_make_its_users() -> None:
    page = (ROOT / "docs/how-to/production.md").read_text()
    for name in EXPOSURE:
        assert not lines(name, "SupplementaryGroups")
        (user,) = lines(name, "User")
        assert re.search(rf"^useradd --system .* {user}$", page, re.MULTILINE)
    steps = ["chgrp warmroute ", "chmod 640 ", "runuser -u warmroute -- ", "systemctl enable --now warmroute-proxy"]
    assert sorted(steps, key=page.index) == steps  # secrets are of root with mode 600


@pytest.mark.parametrize(("more", "nicer"), [([], True), (["~setpriority"], False)], ids=["the unit's", "stricter"])
def test_it_reads_large_bodies_and_kv_events_under_its_filter(more: list[str], nicer: bool, tmp_path: Path) -> None:
    with ScriptedEngine("e0", answer) as engine, zmq.Context() as context, context.socket(zmq.XPUB) as events:
        port = events.bind_to_random_port("tcp://127.0.0.1")
        source = {"endpoint_host": "*", "endpoint_port_base": port, "block_size": 64}
        engine.info = json.dumps({**json.loads(engine.info), "kv_events": source}).encode()
        proxy = ProxyProcess(tmp_path, [engine.toml()], fresh=True)
        script = Path(__file__).with_name("confined.py")
        proxy.program = (str(script), ";".join([*lines("warmroute-proxy", "SystemCallFilter"), *more]))
        with proxy:
            assert events.poll(int(seconds(20) * 1000)), "the proxy follows the events"
            answered = ask(proxy, large())
            assert answered.status_code == 200, answered.text
            (reader,) = reader_of(proxy)
            assert (os.getpriority(os.PRIO_PROCESS, reader) > os.getpriority(os.PRIO_PROCESS, 0)) is nicer
