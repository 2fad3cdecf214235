"""Engines in a Kubernetes cluster: the endpoints of a Service, or the pods of an InferencePool.

An engine joins when its pod is ready for the first time, and leaves when the pod ends. If the pod is not ready for a
moment, the engine stays, and the proxy's own probes decide whether the engine gets requests. An engine's id is the name
of its pod, followed by a port if the pods of a pool have several ports.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from warmroute_proxy.server.base.config import DiscoveryConfig
from warmroute_proxy.server.base.config_engines import record_values
from warmroute_proxy.server.base.config_table import shown
from warmroute_proxy.server.discovery.kubernetes_api import Api, ApiAnswer, Gone, Stale, refusal
from warmroute_proxy.server.discovery.source import MAX_ENGINES, DiscoveredEngines, SourceError

# One collection of objects, kept up to date: first it is listed page by page, then changes since the list's version
# are watched.
#
# A watch ends now and then, and the next one goes on from the last version that was seen. Bookmarks keep this version
# recent while nothing changes. If the server no longer knows the version (410, as an answer or as an event), the
# collection is listed again. After any other error, the next watch has the version of the one that failed, since a
# server that has restarted still reports the changes. But if the version may be the cause (400, 504), or after
# `MAX_FAILURES` errors in a row, the collection is listed again.
#
# Limits: before the next watch, or the list after a 410, there is a pause of at least `LEAST_S`. The pause doubles each
# time, up to `MOST_S`, until a watch has an event or lasts `MOST_S`.

PAGE: Final = "200"
MAX_OBJECTS: Final = 20_000
LIST_SILENT_S: Final = 10.0
WATCH_S: Final = 240
WATCH_SILENT_S: Final = WATCH_S + 30.0
LEAST_S: Final = 1.0
MOST_S: Final = 30.0
MAX_FAILURES: Final = 5

Pause = Callable[[float], Awaitable[None]]

_decoder: Final = msgspec.json.Decoder()


class Watch:
    """The objects at `path` that match `selector` (query parameters of the API)."""

    def __init__(self, api: Api, path: str, selector: dict[str, str], pause: Pause = asyncio.sleep) -> None:
        self._api = api
        self._path = path
        self._selector = selector
        self._objects: dict[str, dict[str, Any]] = {}
        self._version = ""
        self._answer: ApiAnswer | None = None
        self._events: AsyncIterator[bytes] | None = None
        self._failed = False
        self._failures = 0
        self._pause = pause
        self._opened_s = 0.0
        self._last_wait_s = 0.0
        self._wait_s = 0.0
        """How long to wait before the server is asked again."""

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [self._objects[name] for name in sorted(self._objects)]

    async def changed(self) -> None:
        """Wait until the collection is known, has changed, or can be read again. Raises: SourceError."""
        try:
            while True:
                try:
                    if await self._step():
                        return
                except Gone:
                    self.close()
                    self._version = ""
                    self._wait_longer()
        except SourceError as error:
            self._failed = True
            self._failures += 1
            if isinstance(error, Stale) or self._failures >= MAX_FAILURES:
                self._version = ""
            self.close()
            raise
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            self._failed, self._version = True, ""
            self.close()
            raise SourceError(f"the API server says what it should not: {type(error).__name__}: {error}") from None
        except BaseException:  # such as a cancellation
            self.close()
            raise

    def close(self) -> None:
        """End the watch. `changed` begins a new one."""
        if self._answer is not None:
            self._answer.close()
        self._answer = self._events = None

    async def _step(self) -> bool:
        """List the collection, begin a watch, or handle an event. Returns whether the collection may have changed."""
        if self._events is None and self._wait_s:
            wait_s, self._wait_s = self._wait_s, 0.0
            await self._pause(wait_s)
        if not self._version:
            await self._list()
            self._failed, self._failures = False, 0
            return True
        if self._events is None:
            more = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version}
            asked = {**self._selector, **more, "timeoutSeconds": str(WATCH_S)}
            self._answer = await self._api.open(self._path, asked, WATCH_SILENT_S)
            self._events, self._opened_s = self._answer.lines(), time.monotonic()
            was, self._failed = self._failed, False
            return was
        async for line in self._events:
            return self._apply(_decoder.decode(line))
        self.close()  # the server has ended the watch
        if time.monotonic() - self._opened_s >= MOST_S:
            self._last_wait_s = 0.0
        self._wait_longer()
        return False

    def _wait_longer(self) -> None:
        self._last_wait_s = self._wait_s = min(MOST_S, max(LEAST_S, 2 * self._last_wait_s))

    def _apply(self, event: dict[str, Any]) -> bool:
        kind, found = event["type"], event["object"]
        if kind == "ERROR":
            if found.get("code") == 410:
                raise Gone
            raise refusal(found.get("code"), f"the API server ends a watch: {str(found.get('message'))[:200]}")
        self._failures, self._last_wait_s = 0, 0.0
        self._version = found["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        name = found["metadata"]["name"]
        if kind == "DELETED":
            return self._objects.pop(name, None) is not None
        if name not in self._objects and len(self._objects) >= MAX_OBJECTS:
            raise SourceError(f"{self._path} has more than {MAX_OBJECTS} objects")
        self._objects[name] = found
        return True

    async def _list(self) -> None:
        found: dict[str, dict[str, Any]] = {}
        further = ""
        while True:
            asked = {**self._selector, "limit": PAGE} | ({"continue": further} if further else {})
            answer = await self._api.open(self._path, asked, LIST_SILENT_S)
            try:
                page = _decoder.decode(await answer.whole())
            finally:
                answer.close()
            found |= {each["metadata"]["name"]: each for each in page["items"]}
            if len(found) > MAX_OBJECTS:
                raise SourceError(f"{self._path} has more than {MAX_OBJECTS} objects")
            further = page["metadata"].get("continue", "")
            if not further:
                break
        self._objects, self._version = found, page["metadata"]["resourceVersion"]


PORT_NAME: Final = "http"
_SLICES: Final = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
_POOLS: Final = "/apis/inference.networking.k8s.io/v1/namespaces/{}/inferencepools"
PODS: Final = "/api/v1/namespaces/{}/pods"
Engines = Sequence[dict[str, Any]]
_MALFORMED: Final = (LookupError, TypeError, AttributeError, ValueError)


class _Pod(NamedTuple):
    """The address at which a pod serves. `ending`: the pod ends or has ended."""

    name: str
    host: str
    port: int
    ready: bool
    ending: bool


class Slices:
    """The EndpointSlices of one Service. `region`: the region of its engines. `known`: the engines that the Service
    last named before the proxy was started.
    """

    def __init__(self, config: DiscoveryConfig, region: str, known: Engines = (), pause: Pause = asyncio.sleep) -> None:
        self._members = _Members(config, region, known)
        self._pause = pause
        self._config = config
        self._api = Api(config.api, config.credentials)
        self._watch: Watch | None = None

    async def read(self) -> DiscoveredEngines:
        """Wait until the slices have changed, then return the engines (see `Source`)."""
        if self._watch is None:
            path = _SLICES.format(self._config.namespace or self._api.namespace())
            selector = {"labelSelector": f"kubernetes.io/service-name={self._config.name}"}
            self._watch = Watch(self._api, path, selector, self._pause)
        await self._watch.changed()
        slices = sorted(self._watch.objects, key=lambda each: str(each.get("addressType")))  # IPv4 before IPv6
        return self._members.found(slices, self._pods_of)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _pods_of(self, piece: dict[str, Any]) -> Iterator[_Pod]:
        endpoints = piece.get("endpoints") or []
        if not endpoints:  # a Service without pods has no ports, either
            return
        port = _port_of(piece.get("ports") or [], self._config.port)
        for each in endpoints:
            state, host = each.get("conditions") or {}, each["addresses"][0]
            name = (each.get("targetRef") or {}).get("name") or f"{host}:{port}"
            ready, ending = state.get("ready") is not False, state.get("terminating") is True
            yield _Pod(name, host, port, ready, ending)


class Pool:
    """The pods of one InferencePool (Gateway API Inference Extension, v1). `region`: the region of its engines.
    `known`: the engines that the pool last named before the proxy was started.
    """

    def __init__(self, config: DiscoveryConfig, region: str, known: Engines = (), pause: Pause = asyncio.sleep) -> None:
        self._members = _Members(config, region, known)
        self._pause = pause
        self._config = config
        self._api = Api(config.api, config.credentials)
        self._pool: Watch | None = None
        self._pods: Watch | None = None
        self._labels: dict[str, str] = {}
        self._ports: list[int] = []
        self._waiting: dict[Watch, asyncio.Task[None]] = {}

    async def read(self) -> DiscoveredEngines:
        """Wait until the pool or its pods have changed, then return the engines (see `Source`)."""
        namespace = self._config.namespace or self._api.namespace()
        if self._pool is None:
            fields = {"fieldSelector": f"metadata.name={self._config.name}"}
            self._pool = Watch(self._api, _POOLS.format(namespace), fields, self._pause)
        other_pods = await self._news() is self._pool and self._select(namespace)
        if self._pods is None:
            raise SourceError(f"there is no InferencePool {self._config.name}")
        while other_pods and await self._news() is self._pool:
            self._select(namespace)
        return self._members.found(self._pods.objects, self._pods_of)

    def close(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        for watch in (self._pool, self._pods):
            if watch is not None:
                watch.close()

    async def _news(self) -> Watch:
        """Wait until one watch reports a change, and return this watch. The other watch goes on."""
        for watch in (self._pool, self._pods):
            if watch is not None and watch not in self._waiting:
                self._waiting[watch] = asyncio.ensure_future(watch.changed())
        await asyncio.wait(self._waiting.values(), return_when=asyncio.FIRST_COMPLETED)
        watch = next(watch for watch, task in self._waiting.items() if task.done())
        self._waiting.pop(watch).result()
        return watch

    def _select(self, namespace: str) -> bool:
        """Watch the pods that the pool now selects. Returns whether this is a new watch."""
        assert self._pool is not None
        found = self._pool.objects
        try:
            labels = dict(found[0]["spec"]["selector"]["matchLabels"]) if found else {}
            self._ports = [int(each["number"]) for each in found[0]["spec"]["targetPorts"]] if found else []
        except _MALFORMED:
            raise SourceError(f"the InferencePool {self._config.name} is not of version v1") from None
        if labels == self._labels:
            return False
        if self._pods is not None:
            if task := self._waiting.pop(self._pods, None):
                task.cancel()
            self._pods.close()
        self._labels, self._pods = labels, None
        if labels:
            wanted = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            self._pods = Watch(self._api, PODS.format(namespace), {"labelSelector": wanted}, self._pause)
        return self._pods is not None

    def _pods_of(self, pod: dict[str, Any]) -> Iterator[_Pod]:
        state, name = pod["status"], pod["metadata"]["name"]
        conditions = {each["type"]: each["status"] for each in state.get("conditions") or []}
        ready, ending = conditions.get("Ready") == "True", "deletionTimestamp" in pod["metadata"]
        if state.get("podIP"):
            for port in self._ports:
                own = name if len(self._ports) == 1 else f"{name}:{port}"
                yield _Pod(own, state["podIP"], port, ready, ending or state.get("phase") in {"Failed", "Succeeded"})


class _Members:
    """Which pods are engines: those that were ready once, and have not ended since."""

    def __init__(self, config: DiscoveryConfig, region: str, known: Engines) -> None:
        self._config = config
        self._region = region
        self._hosts = dict(_host_of(engine) for engine in known)
        """Engine id -> the host of its pod when the pod was ready."""

    def found(
        self, objects: list[dict[str, Any]], pods_of: Callable[[dict[str, Any]], Iterable[_Pod]]
    ) -> DiscoveredEngines:
        """The engines in these objects. An object that cannot be read becomes a problem, and all others are used."""
        problems: list[str] = []
        now: dict[str, _Pod] = {}
        for each in objects:
            try:
                for pod in pods_of(each):
                    before = now.get(pod.name)
                    if before is None or (self._serves(pod) and not self._serves(before)):
                        now[pod.name] = pod
            except _MALFORMED as error:
                problems.append(f"{shown(each.get('metadata', {}).get('name'))} cannot be read: {error}")
        self._hosts = {pod.name: pod.host for pod in now.values() if self._serves(pod)}
        used = sorted(self._hosts)
        if len(used) > MAX_ENGINES:
            problems.append(f"{self._config.name} has {len(used)} engines, and only {MAX_ENGINES} are used")
        return DiscoveredEngines([self._engine(now[name]) for name in used[:MAX_ENGINES]], 0.0, problems)

    def _serves(self, pod: _Pod) -> bool:
        """Whether the pod is an engine. The host is compared, since a pod's successor may have the pod's name."""
        return not pod.ending and (pod.ready or self._hosts.get(pod.name) == pod.host)

    def _engine(self, pod: _Pod) -> dict[str, Any]:
        host = f"[{pod.host}]" if ":" in pod.host else pod.host
        own = record_values(pod.name, self._config.scheme, host, pod.port, self._region)
        return {**self._config.engine, **own}


def _host_of(engine: dict[str, Any]) -> tuple[str, str]:
    try:
        return str(engine.get("id")), urlsplit(str(engine.get("url"))).hostname or ""
    except ValueError:
        return str(engine.get("id")), ""


def _port_of(ports: list[dict[str, Any]], wanted: str) -> int:
    """The port whose name or number is `wanted`. If `wanted` is empty: the port named `http`, or the only port."""
    for each in ports:
        if wanted and wanted in {each.get("name"), str(each["port"])}:
            return int(each["port"])
    if not wanted:
        named = [each for each in ports if each.get("name") == PORT_NAME] or ports
        if len(named) == 1:
            return int(named[0]["port"])
    raise ValueError(f"it has no port {shown(wanted or PORT_NAME)}")
