#!/usr/bin/env python3
"""Writes the public interface to docs/reference/public-interface.txt, a line for each name.

docs/reference/stability.md says what is stable, and for how long.

    scripts/public_interface.py             writes the file
    scripts/public_interface.py --check     prints the differences from the file; fails if there are any

Configuration keys, error codes, metrics and fields of receipts are read from their pages, whose tables are compared
with the code by tests. All other names are read from the code.
"""

import argparse
import difflib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import warmroute
from warmroute.contract import headers, money, receipt, version
from warmroute_cli.main import parser
from warmroute_proxy.core.load.load import WorkerLoad
from warmroute_proxy.core.placement.decision import Decision
from warmroute_proxy.server.control.control_plane import described_routes

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
SNAPSHOT: Final = DOCS / "reference" / "public-interface.txt"


def interface() -> str:
    """The whole text, sorted by kind and name."""
    kinds = (sdk, of_contract, receipts, header_names, config_keys, errors, metrics, commands, http, extras)
    return "".join(f"{line}\n" for kind in kinds for line in sorted(set(kind())))


def sdk() -> Iterator[str]:
    """The names of `warmroute`, with the members that its classes add to openai's classes."""
    for name in warmroute.__all__:
        value = getattr(warmroute, name)
        if inspect.isclass(value):
            yield f"sdk class {name}"
            yield from (f"sdk {name}.{line}" for owner in value.__mro__ for line in _members(owner))
        else:
            yield f"sdk {_called(name, value)}"


def _members(owner: type) -> Iterator[str]:
    """The public members of a class; constructors only of clients."""
    if not owner.__module__.startswith("warmroute"):
        return
    for name, member in vars(owner).items():
        if (owner.__module__, name) == ("warmroute._calls", "request"):
            continue  # it is openai's, and observed
        plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        constructs = name == "__init__" and owner.__module__ == "warmroute._client"
        if constructs or not name.startswith("_"):
            yield _called(name, plain) if isinstance(plain, FunctionType) else name
    if is_dataclass(owner):
        yield from (each.name for each in fields(owner) if not each.name.startswith("_"))


def _called(name: str, value: object) -> str:
    """A function with its parameters; `=` follows a parameter that may be left out."""
    if not callable(value):
        return name
    shown: list[str] = []
    keyword_only = False
    for each in inspect.signature(value).parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and not keyword_only:
            shown.append("*")
            keyword_only = True
        stars = "**" if each.kind is each.VAR_KEYWORD else "*" if each.kind is each.VAR_POSITIONAL else ""
        shown.append(f"{stars}{each.name}" + ("" if each.default is each.empty else "="))
        keyword_only = keyword_only or each.kind is each.VAR_POSITIONAL
    return f"{name}({', '.join(shown)})"


def of_contract() -> Iterator[str]:
    """Public names of the modules of `warmroute.contract` that readers of receipts need."""
    for module in (headers, money, receipt, version):
        yield from (f"sdk {module.__name__.removeprefix('warmroute.')}.{name}" for name in _own_names(module))


def _own_names(module: ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        elsewhere = getattr(value, "__module__", module.__name__) != module.__name__
        if not (name.startswith("_") or elsewhere or inspect.ismodule(value)):
            yield name


def receipts() -> Iterator[str]:
    """The fields of a receipt, and the words that may be their values."""
    page = (DOCS / "reference" / "receipt.md").read_text().partition("\n## ")[0]
    kind = f"receipt v{receipt.VERSION}"
    yield from (f"{kind} {name}" for cell in _first_cells(page) for name in re.findall(r"`(\w+)`", cell))
    yield from (f"{kind} loss.{name}" for name in receipt.LOSS_CLASSES)
    yield from (f"{kind} cached.{name}" for name in receipt.TIERS)
    yield from (f"{kind} rates_usd_per_mtok.{name}" for name in receipt.RATES)


def header_names() -> Iterator[str]:
    yield from (f"header {value}" for name, value in vars(headers).items() if name.isupper() and isinstance(value, str))


def config_keys() -> Iterator[str]:
    parts = re.split(r"^## `(\[+\w+\]+)`$", (DOCS / "reference" / "configuration.md").read_text(), flags=re.MULTILINE)[
        1:
    ]
    for table, text in zip(parts[::2], parts[1::2], strict=True):
        yield from (f"config {table} {key}" for cell in _first_cells(text) for key in re.findall(r"`(\w+)`", cell))


def errors() -> Iterator[str]:
    page = (DOCS / "reference" / "errors.md").read_text()
    for status, cell in re.findall(r"^\| (\d{3}) \| (.*?) \|", page, flags=re.MULTILINE):
        yield from (f"error {code} {status}" for code in re.findall(r"`(\w+)`", cell))


def metrics() -> Iterator[str]:
    for row in (DOCS / "reference" / "metrics.md").read_text().splitlines():
        if row.startswith("| `warmroute_"):
            name, labels, *_ = row.strip("| ").split("|")
            yield " ".join(["metric", name.strip().strip("`"), *sorted(re.findall(r"`(\w+)`", labels))])


def commands() -> Iterator[str]:
    yield from _command("warmroute", parser())


def _command(path: str, found: argparse.ArgumentParser) -> Iterator[str]:
    yield f"cli {path}"
    for action in found._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                yield from _command(f"{path} {name}", one)
        elif action.help != argparse.SUPPRESS and action.dest != "help":
            choices = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
            yield from (f"cli {path} {name}{choices}" for name in action.option_strings or [str(action.dest).upper()])


def http() -> Iterator[str]:
    """Routes, and the members of the JSON that they answer."""
    for path, methods in described_routes()["paths"].items():
        for method, operation in methods.items():
            if method not in {"get", "post", "patch", "put", "delete"}:
                continue
            yield f"http {method.upper()} {path}"
            for status, answer in operation.get("responses", {}).items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
                if status.startswith("2"):
                    yield from (f"http {method.upper()} {path} {member}" for member in _schema_members(schema))
    yield from (f"http GET /admin/workers workers.*.{name}" for name in WorkerLoad().as_dict(0.0))
    yield from (f"http GET /admin/decisions decisions[].{name}" for name in Decision.__struct_encode_fields__)


def _schema_members(schema: dict[str, Any], before: str = "") -> Iterator[str]:
    name = schema.get("$ref", "").rpartition("/")[2]
    if name not in {"", "Usage"}:  # fields of receipts stand above
        schema = described_routes()["components"]["schemas"][name]
    for name, inner in schema.get("properties", {}).items():
        yield before + name
        yield from _schema_members(inner, f"{before}{name}.")
        yield from _schema_members(inner.get("items", {}), f"{before}{name}[].")


def extras() -> Iterator[str]:
    """The extras of `pip install 'warmroute[...]'`, without `dev`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from (f"extra {name}" for name in project["optional-dependencies"] if name != "dev")


def _first_cells(text: str) -> list[str]:
    return [row.strip("| ").split(" | ")[0] for row in text.splitlines() if row.startswith("| `")]


def differences() -> list[str]:
    """The lines to remove from the file (`-`) and to add to it (`+`)."""
    found = difflib.unified_diff(SNAPSHOT.read_text().splitlines(), interface().splitlines(), lineterm="", n=0)
    return [line for line in found if re.match(r"[+-][a-z]", line)]


def main() -> int:
    if "--check" not in sys.argv[1:]:
        SNAPSHOT.write_text(interface())
        return 0
    print("\n".join(found := differences()))
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
