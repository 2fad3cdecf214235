"""`warmroute launch` with embedded engines: a pair and a proxy come up, stay up, and leave nothing behind."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.machine import seconds
from tests.subjects.launched import Launched, pair_plan
from tests.subjects.ports import free_ports
from tests.subjects.processes import until
from warmroute_backend.ports import Ports
from warmroute_cli import state

pytestmark = [pytest.mark.full, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    with Launched(tmp_path_factory.mktemp("launch"), None, "--speed", "20") as found:
        yield found.start().wait_up()


def serves(launched: Launched, text: str = "hello") -> bool:
    return bool(launched.usage(text, max_tokens=4)["completion_tokens"] == 4)


def test_a_turn_goes_through_both_engines(launched: Launched) -> None:
    assert serves(launched)
    assert list(launched.status()) == ["prefill-0", "decode-0", "proxy"]
    output = launched.output.read_text()
    assert output.index("prefill-0: started") < output.index("decode-0: started") < output.index("proxy: started")
    assert output.index("decode-0: ready") < output.index("proxy: started")


def test_status_says_that_all_serve(launched: Launched) -> None:
    done = launched.act("status")
    assert done.returncode == 0
    assert done.stdout.count(" ready ") == 3
    assert all(row["findings"] == [] for row in launched.status().values())


def test_starts_are_kept_with_their_seconds(launched: Launched) -> None:
    done = launched.act("starts")
    assert done.returncode == 0
    (header,) = [line for line in done.stdout.splitlines() if "weights from" in line]
    assert "imports, warm-up" in header
    assert {line.split()[0] for line in done.stdout.splitlines()[2:]} == {"prefill-0", "decode-0"}
    found = json.loads(launched.act("starts", "--json").stdout)["starts"]
    assert all(each["total_s"] > 0 for each in found)


def test_a_start_is_ordered_only_where_something_waits(launched: Launched) -> None:
    done = launched.act("start")
    assert done.returncode != 0
    assert "no launcher waits here" in done.stderr


def test_logs_are_of_one_process(launched: Launched) -> None:
    assert "max_total_num_tokens=" in launched.act("logs", "prefill-0").stdout
    assert launched.act("logs", "nothing").stderr.count("prefill-0, decode-0, proxy") == 1
    assert "logs of what? give one of" in launched.act("logs").stderr


def test_an_engine_that_is_killed_is_started_again(launched: Launched) -> None:
    before = launched.pids()
    os.kill(before["decode-0"], signal.SIGKILL)
    until(lambda: launched.pids()["decode-0"] not in {before["decode-0"], None}, "another decode engine", 60)
    launched.wait_up()
    assert {name: pid for name, pid in launched.pids().items() if name != "decode-0"} == {
        name: pid for name, pid in before.items() if name != "decode-0"
    }
    until(lambda: engine_state(launched, "decode-0") == "up", "the proxy has seen it again", 60)
    assert serves(launched)
    # A launcher that has taken the engine over from another one is not told which signal ended it.
    assert re.search(r"decode-0: .*; it is started again in \d+ s", launched.output.read_text())


def test_a_restart_drains_the_engine_first_and_gives_it_work_again(launched: Launched) -> None:
    before = launched.pids()
    done = launched.act("restart", "prefill-0")
    assert (done.returncode, done.stdout) == (0, "prefill-0: ready\n"), done
    assert launched.pids()["prefill-0"] != before["prefill-0"]
    output = launched.output.read_text()
    assert output.index("prefill-0: drained") < output.index("prefill-0: stopped")
    until(lambda: engine_state(launched, "prefill-0") == "up", "it takes work again", 60)
    assert serves(launched, "after the restart")


def test_a_launcher_killed_by_9_is_followed_by_one_that_restarts_nothing(launched: Launched) -> None:
    before = launched.pids()
    launched.kill()
    done = launched.act("status")
    assert done.returncode == 1
    assert "no launcher runs" in done.stdout
    assert serves(launched, "nobody looks")
    refused = launched.act("restart", "decode-0")
    assert refused.returncode == 2
    assert "no launcher runs here" in refused.stderr
    launched.start()
    until(lambda: launched.act("status").returncode == 0, "the new launcher looks after them", 60)
    assert launched.pids() == before
    assert f"decode-0: runs already, pid {before['decode-0']}" in launched.output.read_text()


def test_a_second_launcher_on_the_same_plan_is_refused(launched: Launched) -> None:
    assert "another launcher runs in" in launched.refused()
    beside = launched.state_dir
    launched.state_dir = launched.folder / "other"
    try:
        refusal = launched.refused()
    finally:
        launched.state_dir = beside
    assert "prefill-0: port" in refusal
    assert "is in use by python" in refusal
    assert launched.act("status").returncode == 0


def test_sigterm_stops_everything_the_proxy_first(tmp_path: Path) -> None:
    with Launched(tmp_path) as launched:
        launched.start().wait_up()
        assert launched.launcher is not None
        launched.launcher.terminate()
        assert launched.launcher.wait(seconds(60)) == 0
        assert set(launched.states().values()) == {"stopped"}
        assert not launched.left()
        output = launched.output.read_text()
        assert output.index("proxy: stopped") < output.index("decode-0: stopped")


def engine_state(launched: Launched, engine: str) -> str:
    url = f"http://127.0.0.1:{launched.admin_port}/admin/engines/{engine}"
    headers = {"authorization": f"Bearer {state.admin_key(launched.state_dir)}"}
    try:
        return str(httpx.get(url, headers=headers, timeout=seconds(10)).json()["state"])
    except httpx.HTTPError:
        return ""


def test_a_launcher_killed_while_engines_start_leaves_no_orphan(tmp_path: Path) -> None:
    with Launched(tmp_path) as launched:
        launched.start()
        until(lambda: "starting" in launched.states().values(), "an engine was started", 60)
        launched.kill()
        launched.start().wait_up()
        pids = [pid for pid in launched.pids().values() if pid]
        assert len(pids) == 3
        assert set(pids) <= set(launched.left())
        assert serves(launched)


def test_a_process_that_dies_again_and_again_stays_down_until_it_is_ordered(tmp_path: Path) -> None:
    with Launched(tmp_path, None, "--restarts", "1") as launched:
        launched.start().wait_up()
        os.kill(launched.pids()["proxy"], signal.SIGKILL)
        until(lambda: launched.output.read_text().count("proxy: ready") == 2, "the proxy serves again", 60)
        os.kill(launched.pids()["proxy"], signal.SIGKILL)
        until(lambda: launched.states()["proxy"] == "failed", "it is given up", 60)
        assert "it has failed 1 times and stays down" in launched.output.read_text()
        assert launched.act("status").returncode == 1
        assert launched.act("restart", "proxy").returncode == 0
        assert serves(launched)


def test_what_an_edited_plan_has_no_more_is_stopped(tmp_path: Path) -> None:
    plan = pair_plan(split=(2, 2))
    with Launched(tmp_path, plan) as launched:
        launched.start().wait_up()
        before = launched.pids()
        launched.kill()
        renamed = replace(plan.engines[1], name="decode-9", ports=Ports(*free_ports(5)))
        launched.write(replace(plan, engines=(plan.engines[0], renamed)))
        launched.start()
        until(lambda: launched.states().get("decode-9") == "ready", "the new engine serves", 60)
        output = launched.output.read_text()
        assert "decode-0: is not in the plan any more, and is stopped" in output
        assert launched.pids()["prefill-0"] == before["prefill-0"]
        assert before["decode-0"] not in launched.left()


def test_a_reader_of_the_output_that_leaves_ends_nothing(tmp_path: Path) -> None:
    with Launched(tmp_path) as launched:
        launched.launcher = launched.started(subprocess.PIPE)
        assert launched.launcher.stdout is not None
        launched.launcher.stdout.readline()
        launched.launcher.stdout.close()
        launched.wait_up()
        assert serves(launched)
