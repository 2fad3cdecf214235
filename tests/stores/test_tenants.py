"""`warmroute tenants`: added, changed, removed and imported in the database, for two proxies."""

import json
import re
from typing import Any

import pytest

from tests.subjects.processes import until
from warmroute_proxy.server.base.secrets import config_key_id, key_sha256

from .operating import Operator


def settings(operator: Operator, name: str) -> dict[str, object]:
    (text,) = operator.postgres.sql(f"SELECT settings FROM tenant WHERE name = '{name}'", operator.dsn)
    found: dict[str, object] = json.loads(text)
    return found


def test_a_tenant_is_let_in_everywhere_until_it_is_removed(operator: Operator) -> None:
    operator.does("tenants", "add", "acme", "tokens_per_minute=100000", 'models=["kimi-k2.5"]')
    _, key = operator.make("keys", "make", "acme")
    operator.until_all(key, 200)
    assert re.search(r"acme +database .*tokens_per_minute=100000", operator.does("tenants", "list"))
    operator.does("tenants", "remove", "acme")
    operator.until_all(key, 401)
    assert "acme" not in operator.does("tenants", "list")
    operator.does("tenants", "add", "acme")
    assert operator.statuses(key) == {401}, "a key of the tenant that was removed"
    audit = operator.does("tenants", "audit")
    assert audit.index("remove") < audit.rindex("add")


def test_limits_of_a_tenant_change_while_proxies_run(operator: Operator) -> None:
    operator.does("tenants", "add", "small", "requests_per_minute=7")

    def limits() -> list[Any]:
        return [operator.ask("GET", "/admin/admission", proxy=at)[1]["tenants"].get("small") for at in (0, 1)]

    until(lambda: all(each and each["requests_per_minute"] == 7 for each in limits()), "both know the limit")
    operator.does("tenants", "change", "small", "requests_per_minute=9")
    until(lambda: all(each["requests_remaining"] == 9 for each in limits()), "both know the new limit")
    operator.does("tenants", "change", "small", "requests_per_minute=")
    until(lambda: limits() == [None, None], "both know that there is no limit")
    audit = operator.does("tenants", "audit", "--limit", "1")
    assert "requests_per_minute=9 ->" in " ".join(audit.split())


def test_a_tenant_that_is_added_again_has_another_cache(operator: Operator) -> None:
    operator.does("tenants", "add", "again")
    before = settings(operator, "again")["salt_epoch"]
    operator.does("tenants", "remove", "again")
    operator.does("tenants", "add", "again")
    assert settings(operator, "again")["salt_epoch"] != before


def test_tenants_of_a_share_group_have_one_cache(operator: Operator) -> None:
    for name in ("one", "two"):
        operator.does("tenants", "add", name, "share_group=team")
    operator.does("tenants", "add", "three")
    operator.does("tenants", "change", "three", "share_group=team")
    epochs = {settings(operator, name)["salt_epoch"] for name in ("one", "two", "three")}
    assert len(epochs) == 1
    operator.does("tenants", "add", "of-first", "share_group=first")
    assert settings(operator, "of-first")["salt_epoch"] == 0  # that of the config's tenant


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("add", "first"), "tenant first is in the config"),
        (("add", "x'; DROP TABLE tenant; --"), "is not a name"),
        (("add", "x" * 129), "is not a name: up to 128"),
        (("add", "x\x00"), "is not a name"),
        (("add", "new", "token_per_minute=1"), 'did you mean "tokens_per_minute"'),
        (("add", "new", "tokens_per_minute=0"), "0 is not between 1 and"),
        (("add", "new", "cached_weight=0.1"), "cached_weight: is for tokens_per_minute, which is missing"),
        (("add", "new", 'models=["no-such"]'), '"no-such" is not a [[model]]'),
        (("add", "new", "share_group=a b"), "is not a name"),
        (("add", "new", 'key_sha256=["00"]'), "is not a setting of a tenant in the database"),
        (("add", "new", "models"), "is not a setting like"),
        (("change", "first", "cached_weight=0.5"), "is in the config, and not in the database"),
        (("change", "nobody", "cached_weight=0.5"), "tenant 'nobody' is not known"),
        (("remove", "nobody\x00"), "is not known"),
    ],
)
def test_what_cannot_be_done_is_said(operator: Operator, words: tuple[str, ...], said: str) -> None:
    done = operator.run("tenants", *words)
    assert done.code == 2
    assert said in done.errors


def test_tenants_of_a_config_are_imported_with_their_keys(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    for added, keys in (("added", 1), ("is there already", 0)):
        output = operator.does("tenants", "import")
        assert output.splitlines()[:2] == [f"{name}: {added}, keys added: {keys}" for name in ("first", "second")]
    assert settings(operator, "first")["salt_epoch"] == 0
    assert "database, not used" in operator.does("tenants", "list")
    proxy = operator.proxies[0]
    text = proxy.config.read_text()
    tables = text.index("[[tenant]]")
    ids = [config_key_id(key_sha256(key)) for key in proxy.keys]
    assert (operator.ask("DELETE", f"/admin/keys/{ids[1]}")[0], tables > 0) == (200, True)
    listed = [key for key in operator.ask("GET", "/admin/view/keys")[1]["data"] if key["id"] in ids]
    assert sorted((key["id"], key["state"]) for key in listed) == sorted(zip(ids, ("good", "revoked"), strict=True))
    proxy.stop()
    config = re.sub(r"\[\[tenant\]\].*?(?=\n\[|\Z)", "", text, flags=re.DOTALL)
    config += f'\n[[budget]]\nname = "b"\nkeys = ["{ids[0]}"]\nusd_per_day = "5"\n'
    proxy.config.write_text(config)  # which has no tenants any more
    monkeypatch.setattr(proxy, "write_config", lambda _port: proxy.config)
    proxy.start()
    assert operator.statuses(proxy.keys[0]) == {200}
    assert [each["name"] for each in operator.ask("GET", "/admin/view/budgets?tenant=first")[1]["budgets"]] == ["b"]
