"""The page of conditions has each, and the alerts are rules of Prometheus that fire on what the proxy writes."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.machine import seconds

from warmroute_proxy.core.load.conditions import Condition
from warmroute_proxy.server.base.declared_metrics import HELP

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/conditions.md").read_text()
RULES = ROOT / "docs/reference/prometheus-rules.yml"

SERIES = """\
rule_files: [{rules}]
evaluation_interval: 15s
tests:
  - interval: 15s
    input_series:
      - series: 'warmroute_condition{{condition="{condition}",subject="p0",job="proxy",namespace="prod",region="east"}}'
        values: '0x4 1x40 0x8'
    alert_rule_test:
      - eval_time: 1m
        alertname: {alert}
      - eval_time: 10m
        alertname: {alert}
        exp_alerts:
          - exp_labels: {{severity: {severity}, subject: p0, job: proxy, namespace: prod, region: east}}
            exp_annotations:
              summary: {summary!r}
              runbook_url: https://github.com/warmroute/warmroute/blob/main/docs/runbooks/{condition}.md
      - eval_time: 13m
        alertname: {alert}
"""


def promtool(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/promtool", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds(50),
    )


def test_each_condition_has_its_section_and_no_other() -> None:
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == list(Condition)


@pytest.mark.full  # promtool comes by apt
def test_promtool_takes_the_rules(tmp_path: Path) -> None:
    done = promtool("check", "rules", str(RULES), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS: 44 rules found" in done.stdout


def test_rules_name_metrics_that_there_are() -> None:
    named = set(re.findall(r"\b(warmroute_\w+)", RULES.read_text()))
    assert named <= {*HELP, "warmroute_ttft_seconds_bucket", "warmroute_ttft_seconds_count"}


@pytest.mark.full
@pytest.mark.parametrize("condition", Condition)
def test_an_alert_fires_while_its_condition_is_raised(condition: Condition, tmp_path: Path) -> None:
    rule = next(each for each in RULES.read_text().split("- alert: ") if f'condition="{condition}"' in each)
    found = re.search(r"summary: (.*)", rule)
    severity = re.search(r"severity: (\w+)", rule)
    assert found is not None
    assert severity is not None
    summary = found[1].strip('"').replace("{{ $labels.subject }}", "p0")
    values = {"alert": rule.split("\n")[0], "condition": condition, "severity": severity[1], "summary": summary}
    (tmp_path / "test.yml").write_text(SERIES.format(rules=RULES, **values))
    done = promtool("test", "rules", "test.yml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
