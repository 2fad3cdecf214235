"""Keys and tenants of a database in one process: what is looked for further, and who is let in."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.subjects.documents import config_of

from warmroute_proxy.server.base.config import Config, EngineConfig
from warmroute_proxy.server.base.config_source import LiveConfig, ReadConfig
from warmroute_proxy.server.base.files import write_kept
from warmroute_proxy.server.base.metrics import Metrics
from warmroute_proxy.server.build import build
from warmroute_proxy.server.discovery.discovery import KEPT_FILE
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.intake.parsed_request import CHAT
from warmroute_proxy.server.reload.membership import Membership
from warmroute_proxy.server.reload.reloads import Reloads
from warmroute_proxy.server.stores.directory import polling
from warmroute_proxy.server.stores.directory.access import Access, key_records, tenant_records
from warmroute_proxy.server.stores.directory.polling import RECORDS_FILE, TIME_FILE, Directory
from warmroute_proxy.server.stores.prices import Prices
from warmroute_proxy.server.stores.store_state import StoreAway
from warmroute_proxy.server.stores.store_thread import StoreThread


async def test_no_error_ends_the_looking_for_changes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(polling, "POLL_S", 0.0)
    answers = iter([StoreAway("away"), LookupError("secret"), LookupError("secret"), None])
    all_asked = asyncio.Event()

    async def look() -> None:
        answer = next(answers, None)
        if answer is not None:
            raise answer
        all_asked.set()

    watching = asyncio.create_task(polling.keep_looking(look, "the keys"))
    with caplog.at_level(logging.ERROR):
        await asyncio.wait_for(all_asked.wait(), 10.0)
    watching.cancel()
    assert [record.getMessage() for record in caplog.records] == [
        "the keys of the database cannot be read, and are looked for further: LookupError"
    ]


@pytest.fixture
def thread() -> Iterator[StoreThread]:
    made = StoreThread(None, None)
    yield made
    made.close()


def config(**tables: Any) -> Config:
    return config_of(**{"ledger": {"dsn_file": "ledger.dsn"}, "tenant": None, **tables})


def key(tenant: str, expires_at: float | None = None) -> str:
    return json.dumps({"id": "k-0123456789", "tenant": tenant, "expires_at": expires_at})


def known(
    thread: StoreThread, folder: Path, of_file: Config, tenants: Iterable[str] = (), keys: dict[str, str] | None = None
) -> Access:
    """Access by what a proxy has kept, a moment ago."""
    of_kinds = {"tenant": dict.fromkeys(tenants, '{"models": ["m"]}'), "key": keys or {}}
    (folder / RECORDS_FILE).write_text(json.dumps(of_kinds))
    (folder / TIME_FILE).write_text("1000.0")
    of_keys, of_tenants = key_records(), tenant_records()
    directory = Directory(thread, (of_keys, of_tenants), folder, lambda: 5.0, lambda: 1000.0)
    return Access(of_file, directory, of_keys, of_tenants, 3600.0, lambda: 1000.0)


def test_a_key_that_has_ended_in_the_database_is_refused_though_a_config_has_it(
    thread: StoreThread, tmp_path: Path
) -> None:
    revoked, other = (hashlib.sha256(each).hexdigest() for each in (b"wr-revoked", b"wr-other"))
    of_file = config(tenant=[{"name": "one", "key_sha256": [revoked, other]}])
    before = known(thread, tmp_path, of_file, keys={revoked: key("one")})
    assert [before.api_keys.owner_of(each) is not None for each in (b"wr-revoked", b"wr-other")] == [True, True]
    after = known(thread, tmp_path, of_file, keys={revoked: key("one", 0)})
    assert [after.api_keys.owner_of(each) is not None for each in (b"wr-revoked", b"wr-other")] == [False, True]


async def test_a_request_is_read_by_the_tenants_of_the_database(
    thread: StoreThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARMROUTE_SECRET", "s" * 32)
    of_file = config_of(tmp_path, proxy={"region": "east", "state_dir": str(tmp_path / "state")})
    proxy = await build(of_file, None)
    request = Request(0.0, "POST", CHAT)
    request.body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'

    def tenant_and_priority(name: str) -> tuple[str, int]:
        tenant = proxy.config.tenant_by_name[name]
        caller = proxy.parser.callers.of(CHAT, tenant, {"x-warmroute-priority": "interactive"})
        parsed = proxy.parser.read(request, caller).parsed
        return parsed.routing.tenant, parsed.engine_priority

    assert tenant_and_priority("t") == ("", 1)
    proxy.stores.access = known(thread, tmp_path, of_file, ["one"])
    proxy.follow_directory()
    assert [tenant_and_priority(name) for name in ("t", "one")] == [("t", 0), ("one", 0)]
    proxy.close()


def test_another_config_must_not_throw_out_a_tenant_of_the_database(thread: StoreThread, tmp_path: Path) -> None:
    access = known(thread, tmp_path, config(), ["one", "two"])
    unsalted = {"id": "b", "url": "http://b", "region": "east", "models": ["m"], "kind": "openai"}
    (problem,) = access.newly_left_out(config(engine=[unsalted]))
    assert problem.startswith("tenant two of the database would be left out: engine b takes no cache salt")
    assert access.newly_left_out(config()) == []
    access.replace(config(engine=[unsalted]))
    assert access.newly_left_out(config(engine=[unsalted])) == [], "it is left out already"


def test_a_budget_of_a_tenant_that_is_not_there_is_said_once(
    thread: StoreThread, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    budget = {"name": "trial", "tenants": ["one", "oen"], "usd_per_day": "1"}
    with caplog.at_level(logging.WARNING):
        access = known(thread, tmp_path, config(budget=[budget]), ["one"])
        access.replace(config(budget=[budget]))
    assert access.nowhere == {"oen"}
    assert [record.getMessage() for record in caplog.records] == [
        "a [[budget]] names tenant oen, which is neither in the config nor in the database"
    ]


class Named:
    """The engines that a membership was told to have."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def make(self, configs: Iterable[EngineConfig]) -> dict[str, Any]:
        return {config.id: None for config in configs}

    def replace(self, configs: Iterable[EngineConfig], _made: dict[str, Any]) -> None:
        self.ids = [config.id for config in configs]


async def test_a_second_share_group_ends_the_use_of_a_found_engine_without_salts(
    thread: StoreThread, tmp_path: Path
) -> None:
    folder = {"id": "files", "kind": "folder", "path": str(tmp_path / "engines")}
    of_file = config(discovery=[folder])
    unsalted = {"id": "b", "url": "http://b", "region": "east", "models": ["m"], "kind": "openai"}
    write_kept(tmp_path / KEPT_FILE, {"files": [unsalted]})
    access = known(thread, tmp_path, of_file, ["one"])
    live, named = LiveConfig(access.config), Named()
    running, prices = ReadConfig(of_file, "digest", b""), Prices(of_file.models, lambda: 0.0)
    access.on_tenants.append(live.replace)
    reloads = Reloads(running, live, tmp_path, cast("Membership", named), [], prices, Metrics(), access)
    reloads.begin()
    assert named.ids == ["a", "b"]
    access.tenants.apply(1, [("two", '{"models": ["m"]}')], whole=False)
    reloads.discovery.close()
    assert named.ids == ["a"]
