"""Alerts by what users feel: each fires while users are hurt, keeps its environment's labels, and else stays silent."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
import yaml
from scripts.grafana.panels import OPERATORS

from warmroute_proxy.core.accounting.entry import Outcome

from .test_conditions import RULES, promtool

pytestmark = pytest.mark.full  # promtool comes by apt

ENVIRONMENT = 'namespace="prod",region="east",job="east-warmroute-proxies"'
DAY_M = 24 * 60
FALLEN = "0+1000x1500 1500000+100x120"
"""A tenth of the rate of the day before."""


class Case(NamedTuple):
    """Series that an alert fires on at a minute, with the further labels that it has, and series that it does not."""

    alert: str
    fires: dict[str, str]
    silent: dict[str, str]
    labels: dict[str, str]
    minute: int = 60


def test_outcomes_of_turns_that_rules_name_exist() -> None:
    named = re.findall(r'warmroute_turns_total\{[^}]*outcome=~?"([^"]*)"', RULES.read_text())
    assert named
    assert {outcome for each in named for outcome in each.split("|")} <= {*get_args(Outcome)}


def of(name: str, **labels: str) -> str:
    more = "".join(f',{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{ENVIRONMENT}{more}}}"


def turns(outcome: str, a_minute: int) -> dict[str, str]:
    return {of("warmroute_turns_total", outcome=outcome): f"0+{a_minute}x1700"}


def answers(status: int, a_minute: int, route: str = "/v1/chat/completions") -> dict[str, str]:
    return {of("warmroute_requests_total", status=str(status), route=route): f"0+{a_minute}x1700"}


def gauge(name: str, value: float, **labels: str) -> dict[str, str]:
    return {of(name, **labels): f"{value}x1700"}


def streams(within_10_s: int) -> dict[str, str]:
    """A hundred streams a minute, so many with their first token within 10 s, the others within 60."""
    values = {"10": within_10_s, "60": 100, "+Inf": 100}
    found = {of("warmroute_ttft_seconds_bucket", le=le): f"0+{count}x1700" for le, count in values.items()}
    return found | {of("warmroute_ttft_seconds_count"): "0+100x1700"}


INSTANCE = {"instance": "a"}
VOLUME = gauge("warmroute_state_volume_bytes", 100, **INSTANCE)
CASES = [
    Case("ProxiesAreAbsent", gauge("up", 0, instance="a"), gauge("up", 1, instance="a"), {}),
    Case("ProxiesAreAbsent", {of("up", instance="a"): "1x55"}, gauge("up", 1, instance="a"), {}, 65),
    Case("TurnsFail", turns("engine_error", 100), turns("engine_error", 1) | turns("completed", 100), {}),
    Case("RequestsGetErrors", answers(503, 10) | answers(200, 100), answers(429, 50) | answers(200, 100), {}),
    Case("RequestsGetErrors", answers(503, 10) | answers(200, 500, "other"), answers(503, 30, "/ready"), {}),
    Case(
        "RequestsAreRefused",
        {of("warmroute_refused_total", reason="queue_full"): "0+1000x1700"},
        {of("warmroute_refused_total", reason="queue_full"): "0+1x1700"},
        {"reason": "queue_full"},
    ),
    Case(
        "SessionsWaitToBegin",
        {of("warmroute_refused_total", reason="session_wait"): "0+1x1700"},
        {of("warmroute_refused_total", reason="queue_full"): "0+1x1700"},
        {},
    ),
    Case("FirstTokensAreLate", streams(50), streams(99), {}),
    Case(
        "HitShareFalls",
        {of("warmroute_cached_tokens_total"): FALLEN, of("warmroute_prompt_tokens_total"): "0+10000x1700"},
        {of("warmroute_cached_tokens_total"): "0+9000x1700", of("warmroute_prompt_tokens_total"): "0+10000x1700"},
        {},
        1560,
    ),
    Case(
        "RegionIsDown",
        gauge("warmroute_region_up", 0, peer="west") | gauge("warmroute_region_up", 1, peer="south"),
        gauge("warmroute_region_up", 0, peer="west", instance="a")
        | gauge("warmroute_region_up", 1, peer="west", instance="b"),
        {"peer": "west"},
    ),
    Case("ProxyIsDown", gauge("up", 0, **INSTANCE), gauge("up", 1, **INSTANCE), INSTANCE),
    Case(
        "ProxiesRestart",
        {of("warmroute_start_time_seconds", **INSTANCE): "0x15 600x15 1500x15 2400x40"},
        {of("warmroute_start_time_seconds", **INSTANCE): "0x30 600x100"},
        INSTANCE,
        58,
    ),
    Case(
        "CertificateExpires",
        gauge("warmroute_certificate_expiry_seconds", 6 * 86_400),
        gauge("warmroute_certificate_expiry_seconds", 60 * 86_400),
        {},
        90,
    ),
    Case(
        "VolumeFills",
        gauge("warmroute_state_volume_free_bytes", 10, **INSTANCE) | VOLUME,
        gauge("warmroute_state_volume_free_bytes", 30, **INSTANCE) | VOLUME,
        INSTANCE,
    ),
    Case(
        "RowsAreNotSent",
        {of("warmroute_ledger_unsent_rows", **INSTANCE): "0+10000x1700"},
        {of("warmroute_ledger_unsent_rows", **INSTANCE): "9000x1 0x9 9000x1 0x1700"},
        INSTANCE,
    ),
    Case(
        "TracesAreNotExported",
        {of("warmroute_traces_total", outcome="dropped", **INSTANCE): "0+1x1700"},
        {of("warmroute_traces_total", outcome="dropped", **INSTANCE): "0+1x20 20x1700"},
        INSTANCE,
    ),
    Case(
        "EngineDown",
        gauge("warmroute_engine_up", 0, engine="a0")
        | {'warmroute_engine_up{namespace="staging",engine="a0"}': "1x1700"},
        gauge("warmroute_engine_up", 0, engine="a0") | gauge("warmroute_engine_draining", 1, engine="a0"),
        {"engine": "a0"},
    ),
    Case(
        "KvPoolIsFull",
        gauge("warmroute_worker_kv_usage_ratio", 0.99, tier="device", worker="a0"),
        gauge("warmroute_worker_kv_usage_ratio", 0.9, tier="device", worker="a0"),
        {"worker": "a0"},
    ),
]


def fired(asked: Sequence[tuple[dict[str, str], int]], folder: Path, every_m: int = 1) -> list[str]:
    """The labels of the alerts that fire on each series at its minute, as promtool says them. `every_m`: the minutes
    between two evaluations of the rules.
    """
    tests = []
    for series, minute in asked:
        listed = [{"series": name, "values": values} for name, values in series.items()]
        wrong = [{"labels": "x", "value": 0}]
        firing = {"expr": "ALERTS{alertstate='firing'}", "eval_time": f"{minute}m", "exp_samples": wrong}
        tests.append({"interval": "1m", "input_series": listed, "promql_expr_test": [firing]})
    document = {"rule_files": [str(RULES)], "evaluation_interval": f"{every_m}m", "tests": tests}
    (folder / "test.yml").write_text(yaml.safe_dump(document))
    done = promtool("test", "rules", "test.yml", folder=folder)
    _, *found = (done.stdout + done.stderr).split("got:")
    assert len(found) == len(asked), done.stdout + done.stderr
    return found


@pytest.fixture(scope="module")
def alerts(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """For each case what fires on its series, and what fires on those that it must not fire on."""
    folder = tmp_path_factory.mktemp("alerts")
    found: list[tuple[str, str]] = []
    for over_a_day, cases in itertools.groupby(CASES, lambda case: case.minute > DAY_M):
        asked = [(series, case.minute) for case in cases for series in (case.fires, case.silent)]
        said = fired(asked, folder, 10 if over_a_day else 1)
        found += zip(said[::2], said[1::2], strict=True)
    return found


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{case.alert}-{at}" for at, case in enumerate(CASES)])
def test_an_alert_fires_while_users_are_hurt_and_else_stays_silent(number: int, alerts: list[tuple[str, str]]) -> None:
    case, (fires, silent) = CASES[number], alerts[number]
    found = re.findall(rf'{{[^}}]*alertname="{case.alert}"[^}}]*}}', fires)
    assert len(found) == 1, found
    for label in ('namespace="prod"', 'region="east"', *(f'{key}="{value}"' for key, value in case.labels.items())):
        assert label in found[0]
    assert f'alertname="{case.alert}"' not in silent


def test_each_rule_has_a_test() -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    by_their_own = {rule["alert"] for rule in rules if "condition=" in rule["expr"] or "trouble=" in rule["expr"]}
    assert {rule["alert"] for rule in rules} == {case.alert for case in CASES} | by_their_own


def test_the_dashboard_counts_an_engine_of_two_proxies_once(tmp_path: Path) -> None:
    (expr,) = (query.expr for _, row in OPERATORS.rows for panel in row for query in panel.queries
               if panel.title == "Engines up")  # fmt: skip
    seen = {("a", "e0"): 1, ("b", "e0"): 1, ("a", "e1"): 0, ("b", "e1"): 0}
    series = [
        {"series": of("warmroute_engine_up", instance=instance, engine=engine), "values": f"{up}"}
        for (instance, engine), up in seen.items()
    ]
    asked = {"expr": expr.replace("$job", ".*"), "eval_time": "0m", "exp_samples": [{"labels": "{}", "value": 1}]}
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [asked]}]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    done = promtool("test", "rules", "test.yml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_planned_restart_of_an_engine_alerts_nobody(tmp_path: Path) -> None:
    """It drains by order, then is down for three minutes while it loads weights."""
    series = gauge("up", 1, instance="a") | {
        of("warmroute_engine_up", engine="a0"): "1x2 0x3 1x20",
        of("warmroute_engine_draining", engine="a0"): "0x1 1x5 0x16",
    }
    assert "firing" not in fired([(series, 5)], tmp_path)[0]
