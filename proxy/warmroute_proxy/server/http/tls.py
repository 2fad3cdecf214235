"""TLS on the clients' port, with a certificate and its key from files that may be replaced at any time.

TLS 1.2 is the lowest version, and only HTTP/1.1 is offered. Files are checked when they are loaded, by a handshake in
memory with a client that trusts only this certificate. The handshake shows that the key fits, that the certificate is
for servers, and that it is valid today.
"""

import ssl
from pathlib import Path
from typing import NamedTuple

from warmroute_proxy.server.base.config import ProxyConfig

_EXPIRED = 10  # OpenSSL's X509_V_ERR_*
_NOT_YET_VALID = 9


class TlsError(Exception):
    """A certificate or key cannot be used; the message says which file and why."""


class Pem(NamedTuple):
    """The contents of the files. `client_ca`: the authorities of clients' certificates; None: clients need none."""

    cert: bytes
    key: bytes
    client_ca: bytes | None


class Tls:
    """The context of a listener. After `reload`, new connections get the new certificate; open ones keep theirs.

    A listener keeps its context, and a context keeps a certificate for each type of key that was ever loaded. So each
    handshake switches to the context that was loaded last.
    """

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        """`cert`: PEM, the server's certificate first, then the intermediate certificates. `key`: PEM, not encrypted.
        `client_ca`: PEM, the authorities of clients' certificates. Only the gRPC server of a picker (which chooses
        engines for a gateway) asks for certificates.
        """
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self.valid_until = ""
        self.context = self._newest = self._loaded()
        self.context.sni_callback = self._use_newest

    def reload(self) -> None:
        """Read the files again. Raises: TlsError. The old certificate then stays in use."""
        self._newest = self._loaded()

    def _use_newest(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Switch a handshake to the newest context. Called in each handshake, even if the client names no host."""
        connection.context = self._newest

    def _loaded(self) -> ssl.SSLContext:
        pem = self._read()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(self._cert, self._key, _no_password)
        except _Encrypted:
            raise TlsError(f"{self._key}: the key is encrypted; store it without a password") from None
        except ssl.SSLError as error:
            if "KEY_VALUES_MISMATCH" in str(error) or "key values mismatch" in str(error):
                raise TlsError(f"{self._key}: is not the key of the certificate in {self._cert}") from None
            raise TlsError(f"{self._cert}, {self._key}: not a PEM certificate and its key: {error}") from None
        valid_until = _tried(context, self._cert)
        if self._client_ca is not None:
            try:
                clients = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                clients.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise TlsError(f"{self._client_ca}: has no PEM certificate of an authority: {error}") from None
            if not clients.cert_store_stats()["x509"]:
                raise TlsError(f"{self._client_ca}: has a revocation list, and no PEM certificate of an authority")
        if self._read() != pem:  # gRPC gets `pem`, which must be what OpenSSL has read from the files
            raise TlsError(f"{self._cert}, {self._key}: the files changed while they were read")
        self.valid_until, self.pem = valid_until, pem
        return context

    def _read(self) -> Pem:
        return Pem(_read(self._cert), _read(self._key), None if self._client_ca is None else _read(self._client_ca))


def tls_of(proxy: ProxyConfig) -> Tls | None:
    """The TLS of a config; None if the config has no certificate. Raises: TlsError."""
    if proxy.tls_cert is None or proxy.tls_key is None:
        return None
    return Tls(proxy.tls_cert, proxy.tls_key, proxy.tls_client_ca)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: cannot be read: {error.strerror}") from None


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    raise _Encrypted


def _tried(server_context: ssl.SSLContext, cert: Path) -> str:
    """When the certificate expires. Raises: TlsError, if a client that trusts the certificate would reject it."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    end = "-----END CERTIFICATE-----"
    text = cert.read_text("ascii", "replace")
    own = text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]
    client_context.load_verify_locations(cadata=own)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for side in (client, server, client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in {_EXPIRED, _NOT_YET_VALID}:
            what = "has expired" if error.verify_code == _EXPIRED else "is not valid yet"
            raise TlsError(f"{cert}: the certificate {what}") from None
        raise TlsError(f"{cert}: clients would not take the certificate: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise TlsError(f"{cert}: no TLS connection can be made with it: {error}") from None
    found = client.getpeercert() or {}
    return str(found.get("notAfter", ""))
