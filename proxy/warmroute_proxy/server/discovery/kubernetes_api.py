"""Requests to the API server of Kubernetes, each over its own connection, with answers that are read as they come.

The token and the authority's certificate are read from their files for each connection, since Kubernetes replaces the
files while the proxy runs. The size of a list, the size of an event and pauses within an answer are limited.
"""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final
from urllib.parse import urlencode, urlsplit

import httptools

from warmroute.files.regular import read_regular
from warmroute_proxy.server.base.config import authority
from warmroute_proxy.server.discovery.source import SourceError

CONNECT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 67_108_864
MAX_LINE_BYTES: Final = 8_388_608
_READ_BYTES: Final = 65_536
_TOKEN_BYTES: Final = 65_536
_OF_OUR_OWN: Final = "warmroute"


class Gone(Exception):
    """The server no longer knows the version from which a watch goes on (410), so the collection must be listed."""


class Stale(SourceError):
    """The server may have failed because of the requested version, so the collection must be listed."""


class NotThere(SourceError):
    """The object or the collection does not exist (404)."""


def refusal(status: int, text: str) -> SourceError:
    """The error for a status. A 504 may mean that a version is newer than all versions that the server knows."""
    if status == 404:
        return NotThere(text)
    return Stale(text) if status in {400, 504} else SourceError(text)


class Api:
    """An API server, and the folder with the credentials of this pod: `token`, `ca.crt`, `namespace`."""

    def __init__(self, url: str, credentials: Path) -> None:
        """`url`: empty for the API server of the cluster in which this process runs."""
        self._url = url
        self._credentials = credentials

    def namespace(self) -> str:
        """The namespace of this pod. Raises: SourceError."""
        return self._file("namespace").decode(errors="replace").strip()

    async def open(self, path: str, parameters: dict[str, str], silent_s: float) -> "ApiAnswer":
        """Send a GET. `silent_s`: the longest wait for the next bytes of the answer. Raises: SourceError, Gone."""
        return await self._ask("GET", f"{path}?{urlencode(parameters)}", [], b"", silent_s)

    async def patch(self, path: str, merged: bytes, silent_s: float) -> None:
        """Merge a JSON object into the object at `path`, if there is an object. Raises: SourceError, Gone."""
        head = ["content-type: application/merge-patch+json", f"content-length: {len(merged)}"]
        try:
            answer = await self._ask("PATCH", path, head, merged, silent_s)
        except NotThere:
            return
        answer.close()

    async def _ask(self, method: str, target: str, more: list[str], body: bytes, silent_s: float) -> "ApiAnswer":
        parts = urlsplit(self._url or _of_cluster())
        head = [f"{method} {parts.path.rstrip('/')}{target} HTTP/1.1", f"host: {parts.netloc}", *more]
        head += [f"authorization: Bearer {self._token()}", "accept: application/json", f"user-agent: {_OF_OUR_OWN}"]
        head += ["connection: close", "", ""]
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    parts.hostname, parts.port or 443, ssl=self._context(), server_hostname=parts.hostname
                )
        except (OSError, TimeoutError) as error:
            raise SourceError(f"{parts.netloc} cannot be reached: {error or type(error).__name__}") from None
        answer = ApiAnswer(reader, writer, silent_s)
        try:
            writer.write("\r\n".join(head).encode() + body)
            await answer.begin()
        except BaseException:
            answer.close()
            raise
        return answer

    def _token(self) -> str:
        token = self._file("token").decode(errors="replace").strip()
        if not token.isascii() or not token.isprintable():
            raise SourceError(f"{self._credentials}/token is not a token")
        return token

    def _file(self, name: str) -> bytes:
        try:  # the files of a mounted Secret are links into a hidden folder beside them, so links must be followed
            return read_regular(self._credentials / name, _TOKEN_BYTES, [self._credentials])
        except (OSError, ValueError) as error:
            raise SourceError(f"{self._credentials / name} cannot be read: {error}") from None

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cafile=self._credentials / "ca.crt")
        except (OSError, ssl.SSLError) as error:
            raise SourceError(f"{self._credentials / 'ca.crt'} cannot be used: {error}") from None
        return context


class ApiAnswer:
    """One answer. httptools calls the `on_` methods while it parses the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self._silent_s = silent_s
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._begun = False
        self._ended = False

    def on_headers_complete(self) -> None:
        self._begun = True

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        self._ended = True

    async def begin(self) -> None:
        """Wait for the status of the answer, and check it. Raises: SourceError, Gone."""
        while not self._begun:
            await self._feed()
        status = self._parser.get_status_code()
        if status == 410:
            raise Gone
        if status != 200:
            raise refusal(status, f"the API server answers {status}")

    async def whole(self) -> bytes:
        """The whole body. Raises: SourceError."""
        while not self._ended:
            await self._feed()
            if sum(map(len, self._parts)) > MAX_ANSWER_BYTES:
                raise SourceError(f"a list of the API server has more than {MAX_ANSWER_BYTES} bytes")
        return b"".join(self._parts)

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of the body as they come, until the answer ends. Raises: SourceError."""
        rest = b""
        while True:
            *found, rest = (rest + b"".join(self._parts)).split(b"\n")
            self._parts.clear()
            for line in found:
                if line:
                    yield line
            if len(rest) > MAX_LINE_BYTES:
                raise SourceError(f"an event of the API server has more than {MAX_LINE_BYTES} bytes")
            if self._ended:
                return
            await self._feed()

    def close(self) -> None:
        self._writer.transport.abort()

    async def _feed(self) -> None:
        try:
            async with asyncio.timeout(self._silent_s):
                data = await self._reader.read(_READ_BYTES)
        except TimeoutError:
            raise SourceError(f"the API server has said nothing for {self._silent_s:g} s") from None
        except OSError as error:
            raise SourceError(f"the connection to the API server has failed: {error}") from None
        if not data:
            raise SourceError("the API server has closed the connection within an answer")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise SourceError(f"the API server speaks no HTTP: {error}") from None


def _of_cluster() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SourceError("KUBERNETES_SERVICE_HOST is not set: this is not a pod; name the API server by `api`")
    return f"https://{authority(host, port)}"
