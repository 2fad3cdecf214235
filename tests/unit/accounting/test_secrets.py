"""What is derived from the fleet secret is stable, apart, and never the secret itself."""

import contextlib
import hashlib
import hmac
import itertools
from pathlib import Path

import pytest

from warmroute_proxy.server.base import secrets
from warmroute_proxy.server.base.secrets import (
    ApiKeys,
    SecretError,
    Secrets,
    admin_key_matches,
    load_secret,
    mac,
    new_api_key,
)

SECRET = b"0123456789abcdef0123456789abcdef"


def test_derivations_are_those_of_the_contract() -> None:
    def part(text: str) -> bytes:
        return len(text).to_bytes(4, "big") + text.encode()

    tenant_key = hmac.digest(SECRET, part("acme"), "sha256")
    made = Secrets(SECRET)
    session = hmac.digest(tenant_key, part("session") + part("my-session"), "sha256").hex()
    assert made.session_of("acme", "my-session") == (session[:16], int(session[:16], 16))
    assert made.cache_salt("acme", 3) == hmac.digest(tenant_key, part("salt") + part("3"), "sha256").hex()


OLD, NEW, OTHER = b"o" * 32, b"n" * 32, b"x" * 32


def lines(*secrets: bytes) -> bytes:
    return b"\n".join(secrets) + b"\n"


KEPT = b"caches: " + OLD
STEPS = [lines(OLD), lines(OLD, NEW, KEPT), lines(NEW, OLD, KEPT), lines(NEW, KEPT)]
"""A rotation of the fleet secret."""


def lasting(made: Secrets) -> tuple[object, ...]:
    return (
        made.session_of("acme", "s"),
        made.salt_and_seed("acme", 1, "m"),
        made.reasoning_key("acme", "seal"),
        made.lasting_mac("tracing"),
    )


def test_two_steps_of_a_rotation_accept_each_other_and_derive_the_same() -> None:
    for before, after in itertools.pairwise(STEPS):
        for one, other in itertools.product((before, after), repeat=2):
            signs, checks = Secrets(one), Secrets(other)
            assert checks.is_fleet_mac(signs.fleet_mac("forward", b"x").hex().encode(), "forward", b"x")
            assert checks.is_admin_key(signs.admin_key().encode())
            assert lasting(signs) == lasting(checks) == lasting(Secrets(OLD))


def test_a_secret_that_is_no_longer_accepted_opens_nothing() -> None:
    old, new = Secrets(OLD), Secrets(STEPS[-1])
    assert new.admin_key() == Secrets(NEW).admin_key()
    assert not new.is_admin_key(old.admin_key().encode())
    assert not new.is_fleet_mac(old.fleet_mac("forward", b"x").hex().encode(), "forward", b"x")
    for wrong in (b"", b"\xff", new.fleet_mac("forward", b"y").hex().encode()):
        assert not new.is_fleet_mac(wrong, "forward", b"x")
        assert not new.is_admin_key(wrong)


def test_what_lasts_waits_for_a_restart_and_lines_that_are_refused_change_nothing() -> None:
    made = Secrets(OLD)
    assert [made.replace(each) for each in STEPS[1:]] == [(True, False)] * 3
    assert made.replace(STEPS[-1]) == (False, False)
    with pytest.raises(SecretError):
        made.replace(lines(OLD, NEW))
    assert made.is_admin_key(Secrets(NEW).admin_key().encode())
    assert made.replace(lines(NEW)) == (False, True)
    assert lasting(made) == lasting(Secrets(OLD)) != lasting(Secrets(NEW))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b" \n\n", "has 0 bytes"),
        (lines(OLD, b"canary", KEPT), "has 6 bytes, at least 32"),
        (lines(NEW, b"caches: canary"), "has 6 bytes, at least 32"),
        (lines(OLD, NEW), "none of them is `caches: `"),
        (lines(OLD, NEW, KEPT, KEPT), "2 secrets and 2 lines"),
        (lines(OLD, NEW, OTHER, SECRET, KEPT), "4 secrets and 1 lines"),
        (KEPT, "0 secrets and 1 lines"),
        (lines(NEW, b"# canary, until the first of March", KEPT), "has a comment"),
    ],
)
def test_lines_that_are_no_fleet_secret_are_refused_and_not_shown(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(SecretError, match=problem) as caught:
        load_secret(tmp_path / "secret", {})
    assert not any(secret.decode() in str(caught.value) for secret in (b"canary", OLD, NEW, SECRET))


def test_random_bytes_are_one_secret_whatever_is_in_them() -> None:
    assert Secrets(lines("é".encode() * 32, NEW, KEPT)).accepted == 2
    made = Secrets(b"\xff\n" + OLD)
    assert made.accepted == 1
    assert lasting(made) != lasting(Secrets(OLD))


def test_a_secret_that_others_can_read_is_not_taken_while_a_proxy_runs(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(OLD)
    for mode, others_read in ((0o644, True), (0o440, False)):
        file.chmod(mode)
        assert load_secret(file, {}) == OLD
        with pytest.raises(SecretError, match="chmod 600") if others_read else contextlib.nullcontext():
            load_secret(file, {}, private=True)


def test_share_groups_keys_and_epochs_are_apart() -> None:
    made = Secrets(SECRET)
    salts = {made.cache_salt(group, epoch) for group in ("acme", "other") for epoch in (0, 1)}
    assert len(salts) == 4
    assert made.session_of("acme", "s") != made.session_of("other", "s")
    assert made.session_of("acme", "s") == Secrets(SECRET + b"\n").session_of("acme", "s")


def test_reasoning_keys_are_apart_and_their_own() -> None:
    made = Secrets(SECRET)
    keys = {made.reasoning_key(group, use) for group in ("acme", "other") for use in ("signature", "seal")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}
    assert made.reasoning_key("acme", "seal") == Secrets(SECRET).reasoning_key("acme", "seal")
    assert made.cache_salt("acme", 0) not in {key.hex() for key in keys}


def test_no_two_lists_of_parts_give_one_message() -> None:
    messages = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("a\0b", "c"), ("a", "b\0c")]
    assert len({mac(SECRET, *parts) for parts in messages}) == len(messages)


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "MAX_CACHED", 10)
    made = Secrets(SECRET)
    first = made.session_of("acme", "0")
    for number in range(100):
        made.session_of("acme", str(number))
        assert len(made._sessions) <= 10
    assert made.session_of("acme", "0") == first


def test_an_api_key_is_known_by_its_digest_only() -> None:
    key, digest = new_api_key()
    assert key.startswith("wr-")
    assert len(key) == 35
    keys = ApiKeys({digest: "acme"})
    for _ in range(2):
        assert keys.owner_of(key.encode()) == ("acme", f"c-{digest[:10]}")
        assert keys.owner_of(key.encode() + b"x") is None
        assert keys.owner_of(digest.encode()) is None
        assert keys.owner_of(b"") is None


def test_the_admin_key() -> None:
    digest = hashlib.sha256(b"admin").hexdigest().upper()
    assert admin_key_matches(b"admin", digest)
    assert not admin_key_matches(b"Admin", digest)


def test_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"f" * 40)
    assert load_secret(file, {"WARMROUTE_SECRET": "e" * 32}) == b"e" * 32
    assert load_secret(file, {"WARMROUTE_SECRET": ""}) == b"f" * 40


def test_an_unfit_secret_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="has 6 bytes, at least 32") as caught:
        load_secret(None, {"WARMROUTE_SECRET": "canary"})
    assert "canary" not in str(caught.value)
    with pytest.raises(SecretError, match="does not exist"):
        load_secret(tmp_path / "none", {})
    with pytest.raises(SecretError, match="set WARMROUTE_SECRET"):
        load_secret(None, {})
    with pytest.raises(SecretError, match=r"cannot read .*: it is not a regular file"):
        load_secret(tmp_path, {})


def test_an_engines_key_is_the_line_in_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-engine.1+/=\n")
    assert secrets.bearer(tmp_path / "key") == "authorization: Bearer sk-engine.1+/=\r\n"
    assert secrets.bearer(None) == ""


@pytest.mark.parametrize("text", ["", "\n", "two words", "two\nlines", "a\tb", "a\x00b", "k" * 1025, "clé"])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(SecretError) as caught:
        secrets.bearer(tmp_path / "key")
    assert not text.strip() or text.strip() not in str(caught.value)


def test_a_key_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretError, match="nowhere"):
        secrets.bearer(tmp_path / "nowhere")
