"""Trusted authorities: the proxy reads the file in SSL_CERT_FILE again when it changes."""

import logging
from pathlib import Path

import pytest
from tests.certificates import make

from warmroute_proxy.server.http.authorities import VARIABLE, Authorities


def names(authorities: Authorities) -> list[str]:
    return [dict(pair[0] for pair in each["subject"])["commonName"] for each in authorities.context().get_ca_certs()]  # type: ignore[misc]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ca.crt"
    path.write_bytes(make(tmp_path, "first")[0].read_bytes())
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    return path


def put(file: Path, content: bytes) -> None:
    draft = file.with_suffix(".new")
    draft.write_bytes(content)
    draft.replace(file)


def test_a_new_authority_is_trusted_without_a_restart(file: Path, tmp_path: Path) -> None:
    found = Authorities()
    assert names(found) == ["first"]
    assert found.context() is found.context(), "not read for each connection"
    put(file, make(tmp_path, "second")[0].read_bytes())
    assert names(found) == ["second"]


def test_a_file_that_is_none_leaves_the_old_one_in_use(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = Authorities()
    assert names(found) == ["first"]
    put(file, b"broken")
    with caplog.at_level(logging.ERROR):
        assert names(found) == ["first"]
    assert "cannot be used" in caplog.text
    file.unlink()
    assert names(found) == ["first"]
