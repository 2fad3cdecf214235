"""`warmroute doctor`: what a person or a script gets."""

import json
from pathlib import Path

import pytest
from tests.subjects.launched import MODEL, pair_plan

from warmroute_backend.plan.plan_file import written
from warmroute_cli.doctor.doctor import held
from warmroute_cli.launch.start import write_config
from warmroute_cli.main import main


def test_a_machine_without_gpus_is_told_what_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "there is no NVIDIA GPU with a driver" in out
    assert "embedded engine  starts and is ready: `warmroute up`" in out
    assert "SGLang on a CPU" in out
    assert out.endswith("0 problems\n")


def test_a_plan_says_what_is_missing_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(written(pair_plan(storage="none"), MODEL))
    assert main(["doctor", "--plan", str(plan), "--json"]) == 1
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert {"topic": "ports", "level": "ok", "text": "all 7 of the plan are free", "todo": ""} in findings
    assert any("the plan is for 8xH100, and there is no NVIDIA GPU" in each["text"] for each in findings)
    assert main(["doctor", "--plan", str(plan), "--node", "2"]) == 2
    assert "--node 2: 8xH100 has the nodes 0 to 0" in capsys.readouterr().err


def test_a_configuration_of_a_proxy_is_judged_by_the_proxys_own_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(pair_plan(), tmp_path, 8000, 8001)
    assert main(["doctor", "--proxy", str(config)]) == 1
    out = capsys.readouterr().out
    assert f"config      {config}: ok" in out
    assert out.count("PROBLEM  servers     engine ") == 2
    assert "connections" in out
    main(["proxy", "--config", str(config), "--check", "--probe"])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("engine ")]
    assert lines
    assert all(line in out for line in lines)


def test_a_broken_configuration_is_a_problem_and_a_broken_plan_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[proxy]\nregoin = 1\n")
    assert main(["doctor", "--proxy", str(broken)]) == 1
    assert "regoin" in capsys.readouterr().out
    assert main(["doctor", "--plan", str(broken)]) == 2
    assert capsys.readouterr().err.startswith("warmroute doctor: ")


def test_a_running_proxy_shows_who_holds_kv_memory_and_what_is_missing() -> None:
    books: dict[str, float] = {"resident": 12, "in_use": 3, "tokens": 180_000, "protected_tokens": 150_000}
    books |= {"pool_tokens": 200_000, "window_s": 30.0}
    queue = {"for_memory": 4, "memory_missing_tokens": 120_000}
    held_by, waiting = held({"working_set": {"a0": books}, "queue": queue})
    assert held_by.text == "a0: 12 sessions hold 180,000 of 200,000 tokens, 3 of them run; KV is kept for 30 s"
    assert waiting.level == "warning"
    assert "4 turns wait for KV memory; about 120,000 tokens more" in waiting.text
    assert [each.level for each in held({"working_set": {"a0": books}, "queue": {"for_memory": 0}})] == ["ok"]
