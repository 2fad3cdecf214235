"""What the package gives and what it costs to import."""

import json
import subprocess
import sys
from importlib import metadata

import pytest

import warmroute

PUBLIC = [
    "AsyncCache", "AsyncOpenAI", "Cache", "CacheReport", "GuardEvent", "OpenAI", "PrefixBroken", "PrefixWarning",
    "Receipt", "Totals", "__version__", "cache_of", "receipt_of", "session", "transport", "wrap",
]  # fmt: skip


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter has after `statement`."""
    code = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_the_public_names_are_these() -> None:
    assert sorted(warmroute.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_can_be_reached_and_is_listed(name: str) -> None:
    assert getattr(warmroute, name) is not None
    assert name in dir(warmroute)


def test_the_version_is_that_of_the_distribution() -> None:
    assert warmroute.__version__ == metadata.version("warmroute")


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Openai'"):
        warmroute.Openai  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "import warmroute",
        "import warmroute.contract.receipt, warmroute.contract.identity, warmroute.contract.steering",
        "from warmroute import session, receipt_of, CacheReport",
    ],
)
def test_what_needs_no_client_loads_no_client(statement: str) -> None:
    heavy = {"openai", "httpx", "httpx2", "pydantic", "anyio"}
    assert not heavy & loaded_by(statement)


def test_the_contract_loads_nothing_else_of_the_sdk() -> None:
    ours = {name for name in loaded_by("import warmroute.contract.receipt") if name.startswith("warmroute")}
    contract = {f"warmroute.contract.{name}" for name in ("money", "receipt", "usage", "version")}
    assert ours == {"warmroute", "warmroute.contract"} | contract


def test_the_clients_load_nothing_of_the_proxy() -> None:
    loaded = loaded_by("from warmroute import OpenAI, AsyncOpenAI")
    assert "openai" in loaded
    assert not {"warmroute_proxy", "warmroute_cli", "warmroute_backend", "xxhash", "msgspec"} & loaded
