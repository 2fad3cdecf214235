"""What is wrong with a certificate is said before anybody connects; a wrong one takes the place of no right one."""

import re
import ssl
from pathlib import Path

import pytest
from tests.certificates import make, run

from warmroute_proxy.server.http.tls import Tls, TlsError


def refused(cert: Path, key: Path) -> str:
    with pytest.raises(TlsError) as caught:
        Tls(cert, key)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["ec", "rsa"])
def test_a_sound_pair_is_taken(kind: str, tmp_path: Path) -> None:
    tls = Tls(*make(tmp_path, "sound", key=kind))
    assert re.search(r"20\d\d GMT$", tls.valid_until)
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_each_thing_that_can_be_wrong_has_its_own_words(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "one")
    _, other_key = make(tmp_path, "other")
    nothing = tmp_path / "nothing"
    text = tmp_path / "text"
    text.write_text("no certificate")
    locked = tmp_path / "locked.key"
    run("ec", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked)
    assert refused(nothing, key) == f"{nothing}: cannot be read: No such file or directory"
    assert refused(cert, nothing) == f"{nothing}: cannot be read: No such file or directory"
    assert refused(cert, other_key) == f"{other_key}: is not the key of the certificate in {cert}"
    assert refused(cert, locked) == f"{locked}: the key is encrypted; store it without a password"
    assert "not a PEM certificate and its key" in refused(text, key)
    old_cert, old_key = make(tmp_path, "old", days=0)
    assert refused(old_cert, old_key) == f"{old_cert}: the certificate has expired"


def test_a_client_authority_is_a_certificate(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "one")
    (tmp_path / "index").touch()
    settings, revoked, text = tmp_path / "settings", tmp_path / "revoked", tmp_path / "text"
    settings.write_text(f"[ca]\ndefault_ca = own\n[own]\ndatabase = {tmp_path}/index\ndefault_md = sha256\n")
    run("ca", "-gencrl", "-crldays", "1", "-config", settings, "-keyfile", key, "-cert", cert, "-out", revoked)
    text.write_text("no certificate")
    with pytest.raises(TlsError, match=f"{text}: has no PEM certificate of an authority"):
        Tls(cert, key, text)
    with pytest.raises(TlsError, match=f"{revoked}: has a revocation list, and no PEM certificate of an authority"):
        Tls(cert, key, revoked)
    revoked.write_text(revoked.read_text() + cert.read_text())
    assert Tls(cert, key, revoked).pem.client_ca == revoked.read_bytes()


def test_files_that_do_not_fit_leave_the_old_certificate_in_use(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "one")
    tls = Tls(cert, key)
    before = certificate(tls.context)
    _, other_key = make(tmp_path, "two")
    key.write_bytes(other_key.read_bytes())
    with pytest.raises(TlsError):
        tls.reload()
    assert certificate(tls.context) == before
    cert.write_bytes((tmp_path / "two.crt").read_bytes())
    tls.reload()
    assert certificate(tls.context) == ssl.PEM_cert_to_DER_cert((tmp_path / "two.crt").read_text())


class Replaced(type(Path())):  # type: ignore[misc]
    """A certificate whose file and key are replaced once it has been read."""

    def read_bytes(self) -> bytes:
        before: bytes = super().read_bytes()
        for kind in ("crt", "key"):
            Path(self).with_suffix(f".{kind}").write_bytes(Path(self).with_name(f"new.{kind}").read_bytes())
        return before


def test_files_that_are_replaced_while_they_are_read_are_not_mixed(tmp_path: Path) -> None:
    cert, key = make(tmp_path, "old")
    newer = make(tmp_path, "new")
    assert refused(Replaced(cert), key) == f"{cert}, {key}: the files changed while they were read"
    assert Tls(cert, key).pem[:2] == tuple(path.read_bytes() for path in newer)


@pytest.mark.parametrize(("before", "after"), [("rsa", "ec"), ("ec", "rsa")])
def test_a_key_of_another_type_takes_the_place_of_the_old_one(before: str, after: str, tmp_path: Path) -> None:
    cert, key = make(tmp_path, "old", key=before)
    tls = Tls(cert, key)
    newer_cert, newer_key = make(tmp_path, "new", key=after)
    cert.write_bytes(newer_cert.read_bytes())
    key.write_bytes(newer_key.read_bytes())
    tls.reload()
    assert certificate(tls.context) == ssl.PEM_cert_to_DER_cert(newer_cert.read_text())


def certificate(server_context: ssl.SSLContext) -> bytes | None:
    """What a client is shown."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return client.getpeercert(binary_form=True)
