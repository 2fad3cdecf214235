"""The page of conditions has each, and the alerts are rules of Prometheus that fire on what the proxy writes."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.machine import seconds

from warmroute_proxy.core.load.conditions import Condition
from warmroute_proxy.server.base.declared_metrics import BY_NAME

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/conditions.md").read_text()
RULES = ROOT / "docs/reference/prometheus-rules.yml"

RUNBOOK = "https://github.com/warmroute/warmroute/blob/main/docs/runbooks/{}.md"


def promtool(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/promtool", *words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=seconds(50),
    )  # fmt: skip


def expected(alert: str, minutes: int, labels: dict[str, str], summary: str, page: str) -> list[dict[str, Any]]:
    """An alert fires at the end of these minutes, and neither before nor after them."""
    annotations = {"summary": summary, "runbook_url": RUNBOOK.format(page)}
    firing = [{"exp_labels": labels, "exp_annotations": annotations}]
    each: dict[int, list[Any]] = {1: [], minutes: firing, minutes + 3: []}
    return [{"eval_time": f"{at}m", "alertname": alert, "exp_alerts": alerts} for at, alerts in each.items()]


def judged(series: list[str], minutes: int, tests: list[dict[str, Any]], folder: Path) -> None:
    """The rules do as expected if each of the series is 1 for these minutes, from the second one on."""
    inputs = [{"series": name, "values": f"0x4 1x{4 * minutes} 0x8"} for name in series]
    whole = {"interval": "15s", "input_series": inputs, "alert_rule_test": tests}
    document = {"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [whole]}
    (folder / "test.yml").write_text(json.dumps(document))
    done = promtool("test", "rules", "test.yml", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_condition_has_its_section_and_no_other() -> None:
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == list(Condition)


@pytest.mark.full  # promtool comes by apt
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    done = promtool("check", "rules", str(RULES), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 44 rules found" in done.stdout


def test_rules_name_metrics_that_there_are() -> None:
    named = set(re.findall(r"\b(warmroute_\w+)", RULES.read_text()))
    assert named <= {*BY_NAME, "warmroute_ttft_seconds_bucket", "warmroute_ttft_seconds_count"}


@pytest.mark.full
@pytest.mark.parametrize("condition", Condition)
def test_an_alert_fires_while_its_condition_is_raised(condition: Condition, tmp_path: Path) -> None:
    rule = next(each for each in RULES.read_text().split("- alert: ") if f'condition="{condition}"' in each)
    found = re.search(r"summary: (.*)", rule)
    severity = re.search(r"severity: (\w+)", rule)
    assert found is not None
    assert severity is not None
    summary = found[1].strip('"').replace("{{ $labels.subject }}", "p0")
    subject = {"subject": "p0", "job": "proxy", "namespace": "prod", "region": "east"}
    labels = ",".join(f'{name}="{value}"' for name, value in {"condition": condition, **subject}.items())
    tests = expected(rule.split("\n")[0], 10, {"severity": severity[1], **subject}, summary, condition)
    judged([f"warmroute_condition{{{labels}}}"], 10, tests, tmp_path)
