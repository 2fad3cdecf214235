"""What `warmroute launch` refuses: one clear sentence each, and nothing half-started is left behind."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.subjects.launched import Launched, pair_plan
from tests.subjects.ports import free_ports
from warmroute_backend.ports import Ports

pytestmark = [pytest.mark.full, pytest.mark.timeout(120)]


def test_a_port_that_is_in_use(tmp_path: Path) -> None:
    plan = pair_plan()
    with Launched(tmp_path, plan) as launched, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", plan.engines[1].ports.http))
        listener.listen()
        refusal = launched.refused()
    assert f"decode-0: port {plan.engines[1].ports.http} (http) is in use" in refusal
    assert refusal.count("\n") == 1


def test_an_engine_that_dies_at_start_shows_its_last_lines_and_takes_the_others_along(tmp_path: Path) -> None:
    with Launched(tmp_path) as launched:
        (launched.state_dir / "hicache").mkdir(parents=True)
        (launched.state_dir / "hicache" / "prefill-0").write_text("no folder")
        refusal = launched.refused()
        assert "prefill-0 ended with status 2 while it started (log: " in refusal
        assert "python -m warmroute_backend.engine: [Errno 20] Not a directory: " in refusal
        assert not launched.left()
        assert set(launched.states().values()) == {"stopped"}


def test_a_plan_with_a_problem(tmp_path: Path) -> None:
    plan = pair_plan()
    decode = replace(plan.engines[1], context_tokens=10**9)
    with Launched(tmp_path, replace(plan, engines=(plan.engines[0], decode))) as launched:
        assert "decode-0: " in launched.refused()


def test_two_engines_on_one_port(tmp_path: Path) -> None:
    plan = pair_plan()
    ports = Ports(plan.engines[0].ports.http, *free_ports(4))
    both = (plan.engines[0], replace(plan.engines[1], ports=ports))
    with Launched(tmp_path, replace(plan, engines=both)) as launched:
        assert str(ports.http) in launched.refused()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nothing.toml",), "nothing.toml cannot be read: No such file or directory"),
        (("status",), "nothing was launched in"),
        (("plan.toml", "extra"), "'plan.toml' is not an action; actions are status, start, stop, restart, starts"),
        (("status", "extra"), "status takes no name"),
        (("plan.toml", "--engine", "embedded", "--node", "3"), "--node 3: 8xH100 has the nodes 0 to 0"),
    ],
)
def test_words_that_make_no_launch(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    with Launched(tmp_path) as launched:
        done = launched.act(*words)
        assert done.returncode == 2
        assert said in done.stderr
        assert done.stderr.startswith("warmroute launch: ")
        assert done.stderr.count("\n") == 1


def test_hardware_that_the_plan_is_not_for_a_missing_model_and_a_missing_program(tmp_path: Path) -> None:
    plan = pair_plan()
    with Launched(tmp_path, plan, "--python", "no-such-python", engine="sglang") as launched:
        refusal = launched.refused()
        assert "proxy.toml cannot be read" in refusal or "proxy.toml: 1 problem" in refusal
        from warmroute_cli.launch.start import write_config

        config = write_config(plan, launched.state_dir, launched.port, launched.admin_port)
        config.rename(tmp_path / "proxy.toml")
        launched.write(replace(plan, site=replace(plan.site, model_path=str(tmp_path / "no-model"))))
        refusal = launched.refused()
        assert "there is no program no-such-python in PATH" in refusal
        assert "the model is not there: " in refusal
        assert "the plan is for 8xH100, and there is no NVIDIA GPU with a driver here" in refusal
        assert not launched.left()
