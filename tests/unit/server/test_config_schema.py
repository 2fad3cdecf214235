"""The JSON Schema for editors: it knows every key that the reader knows, and its bounds."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from warmroute_cli.main import main
from warmroute_proxy.server.base.config import Limits, ProxyConfig
from warmroute_proxy.server.base.config_bounds import bounds, live_fields
from warmroute_proxy.server.base.config_file import ConfigError, parse_config
from warmroute_proxy.server.base.config_schema import document_schema, settings_schema

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
_TOML = (DOCS / "tutorial" / "first-hour.md").read_text().partition("```toml")[2].partition("```")[0]
EXAMPLE: dict[str, Any] = tomllib.loads(_TOML)


def problems(document: dict[str, Any]) -> list[str]:
    return [error.message for error in Draft202012Validator(document_schema()).iter_errors(document)]


def test_the_schema_is_one_and_takes_the_config_of_the_quickstart() -> None:
    Draft202012Validator.check_schema(document_schema())
    assert problems(EXAMPLE) == []


def test_the_schema_has_the_keys_of_the_reference() -> None:
    page = (DOCS / "reference" / "configuration.md").read_text()
    sections = re.split(r"^## `\[+(\w+)\]+`$", page, flags=re.MULTILINE)[1:]
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        cells = [line.strip("| ").split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
        schema = document_schema()["properties"][name]
        assert set(schema.get("items", schema)["properties"]) == {
            key for cell in cells for key in re.findall(r"`(\w+)`", cell)
        }, name


@pytest.mark.parametrize(("key", "one"), bounds(Limits).items())
def test_a_limit_is_refused_beyond_its_bounds_by_schema_and_reader(key: str, one: Any) -> None:
    for value in (one.low - 1, one.high + 1):
        document = {**EXAMPLE, "limits": {key: value}}
        assert problems(document)
        with pytest.raises(ConfigError, match=f"limits.{key}: .* is not between {re.escape(str(one.low))} and"):
            parse_config(document, Path(), "")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0 is not between 1 and 64"),
        (65, "65 is not between 1 and 64"),
        (1.5, 'must be an integer or "auto", not 1.5'),
        (True, 'must be an integer or "auto", not true'),
        ("many", 'must be an integer or "auto", not "many"'),
    ],
)
def test_a_number_of_processes_is_refused_by_schema_and_reader(number: Any, said: str) -> None:
    document = {**EXAMPLE, "proxy": {**EXAMPLE["proxy"], "processes": number}}
    assert problems(document)
    for _ in range(2):  # the reader leaves the document as it is
        with pytest.raises(ConfigError, match=re.escape(f"proxy.processes: {said}")):
            parse_config(document, Path(), "")


def test_what_changes_while_the_proxy_runs_is_said_by_the_fields() -> None:
    assert "body_bytes" in live_fields(Limits)
    assert "body_memory_bytes" not in live_fields(Limits)
    assert live_fields(ProxyConfig) == {"watch_config", "media", "websockets", "cors_origins"}


def test_settings_of_tenants_are_those_of_the_config_but_name_and_keys() -> None:
    of_config = document_schema()["properties"]["tenant"]["items"]["properties"]
    assert set(of_config) - set(settings_schema()["properties"]) == {"name", "key_sha256"}
    assert {"granted_fields", "unlisted_fields"} <= set(settings_schema()["properties"])


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "--schema"]) == 0
    assert '"The configuration of a warmroute proxy"' in capsys.readouterr().out


def test_every_key_that_the_program_names_with_its_table_exists() -> None:
    found = [
        (path.name, *named)
        for part in ("sdk", "proxy", "backend", "lab")
        for path in sorted((ROOT / part).rglob("*.py"))
        for named in re.findall(r"`\[\[?(\w+)\]\]? (\w+)", path.read_text())
    ]
    assert len(found) > 4
    tables = document_schema()["properties"]
    for file, table, key in found:
        known = tables[table].get("items", tables[table])["properties"]
        assert key in known, f"{file} names [{table}] {key}, which is no key"
