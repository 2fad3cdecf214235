"""A Kubernetes API server with a script: lists in pages and watches over TLS, with bookmarks, 410 and restarts."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.certificates import make
from tests.subjects.http_server import QuietServer
from tests.subjects.stopped import Stopped
from warmroute_proxy.server.http.tls import Tls

Object = dict[str, Any]


class KubeServer(Stopped):
    """Collections by path, each of objects by name. What is changed is told to whoever watches."""

    def __init__(self, folder: Path) -> None:
        """`folder`: gets the credentials that a pod would have."""
        self.credentials = folder
        self._cert, self._key = make(folder, "api")
        (folder / "ca.crt").write_bytes(self._cert.read_bytes())
        (folder / "namespace").write_text("prod")
        self.set_token("first")
        self.changed = threading.Condition()
        self.version = 100
        self.oldest = 0
        """Watches from an older version get 410."""

        self.events: list[tuple[int, str, str, Object]] = []
        """Version, path, kind, object."""

        self.objects: dict[str, dict[str, Object]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.generation = 0
        """Goes up when all watches are to end."""

        self.gone_as_event = False
        self.gone_status = 410
        self.ends_at_once = False
        self._server: QuietServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def set_token(self, token: str) -> None:
        """From now on only this token is good; it is in the file, too."""
        self.token = token
        (self.credentials / "token").write_text(token)

    def start(self) -> None:
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = QuietServer(("127.0.0.1", self.port), handler)
        self._server.socket = Tls(self._cert, self._key).context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        """Accept nothing more, and end what is open."""
        assert self._server is not None
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.end_watches()

    def put(self, path: str, name: str, value: Object, labels: dict[str, str] | None = None) -> None:
        with self.changed:
            kind = "MODIFIED" if name in self.objects.setdefault(path, {}) else "ADDED"
            self.version += 1
            metadata = {"name": name, "labels": labels or {}, "resourceVersion": str(self.version)}
            made = {**deepcopy(value), "metadata": {**value.get("metadata", {}), **metadata}}
            self.objects[path][name] = made
            self._tell(path, kind, made)

    def delete(self, path: str, name: str) -> None:
        with self.changed:
            self.version += 1
            found = self.objects[path].pop(name)
            found["metadata"]["resourceVersion"] = str(self.version)
            self._tell(path, "DELETED", found)

    def bookmark(self, path: str) -> None:
        """Tell watches of a newer version at which nothing of theirs has changed."""
        with self.changed:
            self.version += 1
            self._tell(path, "BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def forget(self) -> None:
        """Forget what has happened: watches can go on from now on alone."""
        with self.changed:
            self.oldest = self.version

    def end_watches(self) -> None:
        with self.changed:
            self.generation += 1
            self.changed.notify_all()

    def watches(self) -> list[dict[str, str]]:
        """The parameters of all watches that were asked for."""
        return [parameters for _, parameters in self.asked if parameters.get("watch")]

    def lists(self) -> int:
        return sum(not parameters.get("watch") for _, parameters in self.asked)

    def _tell(self, path: str, kind: str, value: Object) -> None:
        self.events.append((self.version, path, kind, deepcopy(value)))
        self.changed.notify_all()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: KubeServer

    def do_GET(self) -> None:
        owner, parts = self.owner, urlsplit(self.path)
        parameters = dict(parse_qsl(parts.query))
        with owner.changed:
            owner.asked.append((parts.path, parameters))
            generation = owner.generation
            owner.changed.notify_all()
        if self.headers.get("authorization") != f"Bearer {owner.token}":
            self._answer(401, {"kind": "Status", "code": 401})
        elif parameters.get("watch"):
            with suppress(OSError):
                self._watch(parts.path, parameters, generation)
        else:
            self._list(parts.path, parameters)

    def do_PATCH(self) -> None:
        owner, (path, _, name) = self.owner, self.path.rpartition("/")
        merged = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = owner.objects.get(path, {}).get(name)
        if self.headers.get("authorization") != f"Bearer {owner.token}":
            self._answer(401, {"kind": "Status", "code": 401})
        elif found is None or self.headers["content-type"] != "application/merge-patch+json":
            self._answer(404 if found is None else 415, {"kind": "Status"})
        else:
            annotations = {**found["metadata"].get("annotations", {}), **merged["metadata"]["annotations"]}
            owner.put(path, name, found | {"metadata": found["metadata"] | {"annotations": annotations}})
            self._answer(200, found)

    def _list(self, path: str, parameters: dict[str, str]) -> None:
        owner = self.owner
        with owner.changed:
            found = sorted(owner.objects.get(path, {}).items())
            taken = [each for _, each in found if _takes(parameters, each)]
            at = int(parameters.get("continue", 0))
            page = taken[at : at + int(parameters["limit"])]
            more = str(at + len(page)) if at + len(page) < len(taken) else ""
            metadata = {"resourceVersion": str(owner.version), "continue": more}
            self._answer(200, {"kind": "List", "metadata": metadata, "items": page})

    def _watch(self, path: str, parameters: dict[str, str], generation: int) -> None:
        owner, since = self.owner, int(parameters["resourceVersion"])
        gone = {"kind": "Status", "code": owner.gone_status, "message": "too old resource version"}
        if since < owner.oldest and not owner.gone_as_event:
            self._answer(owner.gone_status, gone)
            return
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        if since < owner.oldest:
            self._chunk({"type": "ERROR", "object": gone})
        elif not owner.ends_at_once:
            for kind, value in self._news(path, parameters, since, generation):
                self._chunk({"type": kind, "object": value})
        self.wfile.write(b"0\r\n\r\n")

    def _news(self, path: str, parameters: dict[str, str], since: int, generation: int) -> Iterator[tuple[str, Object]]:
        owner = self.owner
        while True:
            with owner.changed:
                new = [each for each in owner.events if each[0] > since]
                if not new:
                    if owner.generation != generation:
                        return
                    owner.changed.wait(0.2)
                    continue
                since = new[-1][0]
            for _, where, kind, value in new:
                bookmarks = kind == "BOOKMARK" and parameters.get("allowWatchBookmarks") == "true"
                if where == path and (bookmarks or (kind != "BOOKMARK" and _takes(parameters, value))):
                    yield kind, value

    def _chunk(self, event: Object) -> None:
        line = json.dumps(event).encode() + b"\n"
        for half in (line[: len(line) // 2], line[len(line) // 2 :]):  # an event need not come at once
            self.wfile.write(b"%x\r\n%s\r\n" % (len(half), half))
            self.wfile.flush()

    def _answer(self, status: int, value: Object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def _takes(parameters: dict[str, str], value: Object) -> bool:
    wanted = dict(each.split("=") for each in parameters.get("labelSelector", "").split(",") if each)
    name = parameters.get("fieldSelector", "").removeprefix("metadata.name=")
    labels = value["metadata"]["labels"]
    return wanted.items() <= labels.items() and name in {"", value["metadata"]["name"]}
