"""Each thing that `/ready` can say has an alert that fires on it, and each alert has a runbook page."""

import ast
import re
import shlex
from pathlib import Path

import pytest
from starlette.routing import Route

from warmroute_cli.main import parser
from warmroute_proxy.core.base.trouble import Trouble
from warmroute_proxy.server.control.control_plane import AdminParts, admin_app

from .test_conditions import ROOT, RULES, expected, judged

RUNBOOKS = ROOT / "docs/runbooks"
ALERT = re.compile(
    r"- alert: (\w+)\n.*?severity: (\w+)\n.*?runbook_url: https://\S+/docs/runbooks/(\w+)\.md", re.DOTALL
)
ALERTS = ALERT.findall(RULES.read_text())


def test_each_alert_has_its_page_and_no_other_page_is_there() -> None:
    assert len(ALERTS) == RULES.read_text().count("- alert: ")
    assert {page for *_, page in ALERTS} | {"README"} == {path.stem for path in RUNBOOKS.glob("*.md")}
    for alert, severity, page in ALERTS:
        text = (RUNBOOKS / f"{page}.md").read_text()
        assert text.startswith(f"# {alert}\n\n*{severity.capitalize()}.* ")
        headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert headings == ["Effect on users", "In five minutes", "It is over when"]
        assert "\n## In five minutes\n\n1. " in text


COMMAND = re.compile(r"kubectl exec --namespace sglang east-warmroute-0 -- (\S+) ([^`|]+)")
PAGES = {path.stem: path.read_text() for path in sorted(RUNBOOKS.glob("*.md"))}


def test_runbooks_run_what_the_image_has() -> None:
    """Commands in a pod are subcommands with their options, or one line of Python."""
    shown = [found for text in PAGES.values() for found in COMMAND.findall(text)]
    assert len(shown) > 40
    for program, words in shown:
        if program == "warmroute":
            name, *rest = shlex.split(words)
            assert parser(name).parse_args([name, *rest]).command.name == name
        else:
            assert program == "python3"
            ast.parse(shlex.split(words)[1])
    for name, text in PAGES.items():
        assert not re.search(r"`(curl|psql|dig|redis-cli|df)\b", text), name


def test_pages_ask_the_admin_port_for_routes_that_it_has() -> None:
    app = admin_app(AdminParts(*[object()] * len(AdminParts._fields)), {})  # type: ignore[arg-type]
    routes = [route for route in app.routes if isinstance(route, Route)]
    asked = 0
    for page in (ROOT / "docs").rglob("*.md"):
        for verb, path in re.findall(r'(warmroute ask|GET|POST|DELETE) "?(/[\w/<>]+)', page.read_text()):
            if verb == "warmroute ask" or path.startswith("/admin"):
                method, asked = "GET" if verb == "warmroute ask" else verb, asked + 1
                there = [route for route in routes if method in (route.methods or ()) and route.path_regex.match(path)]
                assert there, f"{page}: {path}"
    assert asked > 40


def test_the_log_of_several_pods_is_printed_beyond_ten_lines() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        for command in re.findall(r"kubectl logs [^`\n]*--selector [^`\n]*", page.read_text()):
            assert "--tail=" in command, f"{page}: {command}"


def test_an_engine_is_drained_at_each_proxy() -> None:
    """An order in one pod leaves the turns of the other proxies at the engine."""
    for name, text in PAGES.items():
        assert "warmroute engines flip" not in text or "../how-to/rolling.md#an-engine" in text, name
        assert "warmroute engines drain" not in text, name
        assert "warmroute engines undrain" not in text, name
    loop = (
        (ROOT / "docs/how-to/rolling.md")
        .read_text()
        .partition("for pod in $(kubectl get pods ")[2]
        .partition("done\n")[0]
    )
    assert "kubectl exec --namespace sglang $pod -- warmroute engines drain ID " in loop
    assert "../how-to/rolling.md#an-engine" in PAGES["turns_fail"]


def test_no_runbook_only_points_elsewhere() -> None:
    for name, text in PAGES.items():
        steps = re.findall(r"^\d\. (.*)$", text.partition("## In five minutes")[2], re.MULTILINE)
        assert name == "README" or any("`" in step for step in steps), name


def test_the_index_has_each_alert() -> None:
    page = (RUNBOOKS / "README.md").read_text()
    assert re.findall(r"^\| (\w+) \| (\w+) \| \[(\w+)\]\(\3\.md\) \|$", page, re.MULTILINE) == ALERTS


def test_each_trouble_has_an_alert() -> None:
    assert set(Trouble) == set(re.findall(r'warmroute_trouble\{trouble="(\w+)"\}', RULES.read_text()))
    severities = {page: severity for _, severity, page in ALERTS}
    not_ready = {Trouble.SHUTTING_DOWN, Trouble.LEDGER_UNWRITABLE, Trouble.NO_ENGINE, Trouble.ALL_ENGINES_DRAIN}
    hurt = {trouble for trouble in not_ready if severities[trouble] == "critical"}
    assert hurt == {Trouble.NO_ENGINE, Trouble.LEDGER_UNWRITABLE}, "an order of the operator pages nobody"


@pytest.mark.full  # promtool comes by apt
def test_an_alert_fires_while_a_proxy_has_its_trouble(tmp_path: Path) -> None:
    tests, series = [], []
    place = {"job": "proxy", "instance": "a", "pod": "p"}
    for trouble in Trouble:
        alert, severity, _ = next(each for each in ALERTS if each[2] == trouble)
        rule = RULES.read_text().partition(f"- alert: {alert}\n")[2]
        summary = re.findall(r'summary: "(.*)"', rule)[0].replace("{{ $labels.instance }}", "a")
        labels = ",".join(f'{name}="{value}"' for name, value in {"trouble": trouble, **place}.items())
        series.append(f"warmroute_trouble{{{labels}}}")
        tests += expected(alert, 25, {"severity": severity, **place}, summary, trouble)
    judged(series, 25, tests, tmp_path)
