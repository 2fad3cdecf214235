"""The reference is complete: every config key in its table, every default, metric and error code."""

import ast
import re
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.dialects.openai_fields import CHAT_FIELDS, COMPLETION_FIELDS
from warmroute_proxy.server.base import config_file
from warmroute_proxy.server.base.config import (
    DatabaseConfig,
    Limits,
    ProxyConfig,
    RedisConfig,
    RegionConfig,
    TenantConfig,
    TracingConfig,
)
from warmroute_proxy.server.base.config_bounds import bounds
from warmroute_proxy.server.base.config_stores import BudgetKeys
from warmroute_proxy.server.base.config_table import Table
from warmroute_proxy.server.base.declared_metrics import BY_NAME, OF_WORKERS
from warmroute_proxy.server.base.secrets import config_key_id
from warmroute_proxy.server.processes.peer_processes import Gauges
from warmroute_proxy.server.stores import migrations
from warmroute_proxy.server.stores.database import REVISIONS
from warmroute_proxy.server.tracing import names as traced

REFERENCE = Path(__file__).parents[2] / "docs"
PROXY = Path(config_file.__file__).parents[2]
SERVER = sorted([*(PROXY / "server").rglob("*.py"), *(PROXY / "dialects").rglob("*.py")])
NOT_NUMBERS = {"health"}


def rows(text: str) -> list[list[str]]:
    """The cells of the rows of all tables."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([a-z0-9_]+)`", cell)


@pytest.fixture
def keys_read(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The keys that are asked for, by table, when a config is read."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    take = Table._take

    def note(table: Table, key: str, *, required: bool = False) -> Any:
        found[table._path.partition("[")[0]].add(key)
        return take(table, key, required=required)

    monkeypatch.setattr(Table, "_take", note)
    page = (REFERENCE / "tutorial/first-hour.md").read_text()  # its config has one of each table
    budgets = (REFERENCE / "reference/budgets.md").read_text()  # but for this one, which few need
    document = tomllib.loads(page.partition("```toml")[2].partition("```")[0])
    document |= tomllib.loads(budgets.partition("```toml")[2].partition("```")[0])
    changing = (REFERENCE / "how-to/change.md").read_text()
    document |= tomllib.loads(changing.partition("```toml")[2].partition("```")[0])
    document["redis"] = {"url_file": "redis.url"}
    document["tracing"] = {"endpoint": "http://127.0.0.1:4318"}
    document["budget"][0]["tenants"] = [document["tenant"][0]["name"]]
    document["budget"][1]["keys"] = [config_key_id(document["tenant"][0]["key_sha256"][0])]
    config_file.parse_config(document, Path(), "")
    return found


def test_every_key_that_is_read_is_in_the_table_of_its_section(keys_read: dict[str, set[str]]) -> None:
    page = (REFERENCE / "reference/configuration.md").read_text()
    sections = re.split(r"^## `\[+(\w+)\]+`$", page, flags=re.MULTILINE)[1:]
    documented = {
        name: {key for row in rows(text) for key in names(row[0])}
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
    assert documented == keys_read


RECORDS = {
    "proxy": ProxyConfig,
    "ledger": DatabaseConfig,
    "budget": BudgetKeys,
    "redis": RedisConfig,
    "tracing": TracingConfig,
    "limits": Limits,
    "region": RegionConfig,
    "tenant": TenantConfig,
}
"""Of tables whose numbers have defaults."""


@pytest.mark.parametrize("table", RECORDS)
def test_the_defaults_of_numbers_are_those_of_the_page(table: str) -> None:
    page = (REFERENCE / "reference/configuration.md").read_text()
    section = re.split(rf"^## `\[+{table}\]+`$", page, flags=re.MULTILINE)[1].partition("\n## ")[0]
    documented: dict[str, str] = {}
    for row in rows(section):
        documented |= zip(names(row[0]), "".join(row[1:2]).split(", "), strict=False)
    for name, one in bounds(RECORDS[table]).items():
        if one.default is not None:
            assert float(documented[name]) == one.default, name


def test_every_metric_is_in_the_table_with_what_it_says_of_itself() -> None:
    assert {row[0].strip("`"): row[-1] for row in metric_rows()} == {name: each.help for name, each in BY_NAME.items()}


def test_no_label_of_a_metric_is_one_that_prometheus_gives_its_targets() -> None:
    """It would rename the metric's own."""
    of_targets = {"namespace", "region", "job", "instance", "pod", "service", "container", "endpoint"}
    assert not {row[0] for row in metric_rows() if of_targets.intersection(names(row[1]))}


def metric_rows() -> list[list[str]]:
    return [row for row in rows((REFERENCE / "reference/metrics.md").read_text()) if row[0].startswith("`warmroute_")]


def test_every_number_of_a_worker_and_of_a_process_is_a_declared_metric() -> None:
    of_workers = {"dp_rank", "running_limit", "token_limit", "prefill_limit", *WorkerLoad().as_dict(0.0)} - NOT_NUMBERS
    made = {f"warmroute_worker_{name}" for name in of_workers} | {f"warmroute_{name}" for name in Gauges._fields}
    assert made <= set(BY_NAME)


def test_every_declared_metric_is_counted_somewhere() -> None:
    used = {name for path in SERVER for name in re.findall(r"declared\.([A-Z_]+)", path.read_text())}
    made = {name for name in BY_NAME if name.removeprefix("warmroute_").upper() not in used}
    assert {name.removeprefix("warmroute_") for name in made} <= {f"worker_{name}" for name in OF_WORKERS} | {
        *Gauges._fields
    }


def test_the_tables_of_traces_have_each_span_and_attribute() -> None:
    page = (REFERENCE / "reference/tracing.md").read_text().partition("## Which requests")[0]
    code = "".join(path.read_text() for path in SERVER if path.parent.name == "tracing")
    spans = re.findall(r'^[A-Z]+: Final = "(\w+)"$', Path(traced.__file__).read_text(), re.MULTILINE)
    attributes = re.findall(r'"((?:gen_ai|http|error|warmroute|service)\.[a-z_.]+[a-z])', code)
    assert {row[0].strip("`") for row in rows(page)} == {*spans, *attributes} - {"warmroute.proxy"}  # a scope


def test_every_error_code_is_in_the_table() -> None:
    documented = {code for row in rows(errors_by_code()) for code in names(row[0])}
    assert documented == {code for path in SERVER for code in codes(ast.parse(path.read_text()))}


def errors_by_code() -> str:
    """The table with the code in front."""
    text = (REFERENCE / "reference/errors.md").read_text()
    return re.sub(r"^\| \d{3} \| ", "| ", text, flags=re.MULTILINE)


def codes(tree: ast.AST) -> set[str]:
    """Words given as `code=`, or third to a function that makes an error's body."""
    found = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
        if isinstance(call.func, ast.Name) and "error" in call.func.id.lower():
            given += call.args[2:3]
        texts = (node.value for value in given for node in ast.walk(value) if isinstance(node, ast.Constant))
        found |= {text for text in texts if isinstance(text, str)}
    return found


def test_every_field_of_a_request_is_on_the_page_of_hostile_clients() -> None:
    page = (REFERENCE / "reference/hostile.md").read_text().partition("\n## Fields\n")[2].partition("\nOther fields")[0]
    documented = {
        name
        for row in page.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split(" | ")[0])
    }
    assert documented == set(CHAT_FIELDS) | set(COMPLETION_FIELDS)


def test_each_schema_says_which_proxies_read_it() -> None:
    page = (REFERENCE / "how-to/upgrade.md").read_text()
    shown = re.findall(r"^\| (\d{4}) \| [^|]+ \| (\d{4})", page, re.MULTILINE)
    files = sorted((Path(migrations.__file__).parent / "versions").glob("r0*.py"))
    readers = [re.findall(r'^oldest_reader = "(\d+)"$', path.read_text(), re.MULTILINE)[0] for path in files]
    assert shown == list(zip(REVISIONS, readers, strict=True))
