"""`warmroute keys`: made, rotated, expired and revoked in the database, for two proxies, while it is there and away."""

import re
from collections.abc import Iterator

import pytest

from tests.subjects import patience
from tests.subjects.processes import until
from tests.subjects.stores import Postgres
from warmroute_proxy.server.stores.directory.polling import POLL_S

from .operating import Operator


@pytest.fixture(scope="module")
def own_operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """With a server that tests may kill and freeze, and leave as it was."""
    with pytest.MonkeyPatch.context() as patched:  # a marker comes too late for what is of the module
        patched.setenv(patience.SETTING, patience.real(["store_thread"]))
        with Postgres() as server:
            try:
                with Operator(tmp_path_factory.mktemp("away"), server) as made:
                    yield made
            finally:
                server.thaw_if_there()


def test_a_key_is_good_everywhere_until_it_is_revoked(operator: Operator) -> None:
    id_, key = operator.make("keys", "make", "first", "--note", "ci")
    operator.until_all(key, 200)
    operator.does("keys", "revoke", id_)
    for _ in range(2):  # what the first look has found is in use before the next one begins
        operator.until_all_look()
    assert operator.statuses(key) == {401}
    again = operator.run("key", "revoke", id_)
    assert (again.code, "no good key" in again.errors) == (2, True)
    listed = operator.does("keys", "list")
    assert re.search(rf"{id_} +first +revoked .* ci", listed)
    audit = operator.does("keys", "audit", "--since", "1h")
    assert audit.index("revoke") < audit.index("make")
    assert key not in listed + audit
    assert POLL_S < 1  # and a question takes less than another second


def test_after_a_rotation_both_keys_are_good_for_a_time(operator: Operator) -> None:
    id_, key = operator.make("keys", "make", "first")
    operator.until_all(key, 200)
    _, second = operator.make("keys", "rotate", id_, "--overlap", "3s")
    operator.until_all(second, 200)
    operator.until_all(key, 401)
    assert operator.statuses(second) == {200}
    assert re.search(rf"{id_} +first +expired", operator.does("keys", "list"))
    first = operator.run("keys", "list", "--limit", "1")
    assert len(re.findall(r"^ *k-", first.output, re.MULTILINE)) == 1
    assert first.errors == "only the first 1 are listed: --limit N lists more\n"


def test_while_the_database_is_away_the_keys_that_were_read_are_good_also_over_a_restart(
    own_operator: Operator,
) -> None:
    operator = own_operator
    operator.does("tenants", "add", "acme")
    _, key = operator.make("keys", "make", "second", "--lifetime", "90d")
    _, of_stored = operator.make("keys", "make", "acme")
    for each in (key, of_stored):
        operator.until_all(each, 200)
    operator.postgres.kill()
    assert operator.statuses(key) == operator.statuses(of_stored) == {200}
    for proxy in operator.proxies:
        proxy.kill()
        proxy.start()
    assert operator.statuses(key) == operator.statuses(of_stored) == {200}
    assert operator.statuses("wr-" + "0" * 32) == {401}
    assert operator.run("keys", "make", "second").code == 2
    operator.postgres.start()
    id_, other = operator.make("keys", "make", "second")
    operator.until_all(other, 200)
    operator.does("keys", "revoke", id_)
    operator.does("tenants", "remove", "acme")
    for each in (other, of_stored):
        operator.until_all(each, 401)


def test_a_database_that_does_not_answer_holds_nobody_up(own_operator: Operator) -> None:
    operator = own_operator
    id_, key = operator.make("keys", "make", "first")
    operator.until_all(key, 200)
    operator.postgres.freeze()
    status, answer = operator.ask("DELETE", f"/admin/keys/{id_}")
    assert (status, answer["error"]["code"]) == (503, "database_unavailable")
    assert operator.statuses(key) == {200}
    operator.postgres.thaw()
    until(lambda: operator.ask("DELETE", f"/admin/keys/{id_}")[0] in {200, 404}, "the key is revoked")
    operator.until_all(key, 401)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("make", "nobody"), "there is no tenant 'nobody'"),
        (("make", "x'; DROP TABLE api_key; --"), "there is no tenant"),
        (("make", "first", "--note", "a\nb"), "one line of at most 200 printable characters"),
        (("make", "first", "--note", "a" * 201), "one line of at most 200 printable characters"),
        (("rotate", "k-0"), "there is no good key 'k-0'"),
        (("revoke", "\x00"), "there is no good key"),
        (("make", "first", "--lifetime", "soon"), "'soon' is not a time like 30m"),
        (("list", "--limit", "10001"), "'10001' is not a number from 1 to 10000"),
        (("list", "--tenant", "a b"), "'a b' is not the name of a tenant"),
        (("audit", "--since", "then"), "a time ago like 1h or 7d"),
    ],
)
def test_what_cannot_be_done_is_said(operator: Operator, words: tuple[str, ...], said: str) -> None:
    done = operator.run("keys", *words)
    assert done.code == 2
    assert said in done.errors
