"""Engines of a Kubernetes cluster, from an API server with a script."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import make
from tests.machine import seconds
from tests.subjects.documents import config_of
from tests.subjects.kube_server import KubeServer

from warmroute_proxy.server.base.config import Config, DiscoveryConfig
from warmroute_proxy.server.base.config_source import LiveConfig
from warmroute_proxy.server.discovery.deletion_costs import ANNOTATION, DeletionCosts
from warmroute_proxy.server.discovery.discovery import Discovery
from warmroute_proxy.server.discovery.kubernetes import Pool, Slices
from warmroute_proxy.server.discovery.source import MAX_ENGINES, DiscoveredEngines, SourceError

pytestmark = pytest.mark.full

SLICES = "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/prod/inferencepools"
PODS = "/api/v1/namespaces/prod/pods"
OF_SERVICE = {"kubernetes.io/service-name": "engines"}


OPEN: list[Slices | Pool] = []


@pytest.fixture(autouse=True)
async def closing() -> AsyncIterator[None]:
    """Closes what a test has read from."""
    yield
    while OPEN:
        OPEN.pop().close()
    await asyncio.sleep(0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[KubeServer]:
    with KubeServer(tmp_path) as found:
        yield found


def endpoint(name: str, host: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [host], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}


def piece(*endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 30000}, {"name": "bootstrap", "port": 8998}]
    return {"addressType": "IPv4", "ports": ports, "endpoints": list(endpoints), **more}


class Pauses(list[float]):
    """Takes no time; what each would have taken."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)
        await asyncio.sleep(0)


def slices(
    server: KubeServer, pause: Pauses | None = None, known: list[dict[str, Any]] | None = None, **more: Any
) -> Slices:
    config = DiscoveryConfig("cluster", "endpointslices", 0.1, name="engines", api=server.url,
                             credentials=server.credentials, **more)  # fmt: skip
    OPEN.append(found := Slices(config, "east", known or [], Pauses() if pause is None else pause))
    return found


def pool(server: KubeServer) -> Pool:
    config = DiscoveryConfig(
        "cluster", "inferencepool", 0.1, name="engines", api=server.url, credentials=server.credentials
    )
    OPEN.append(found := Pool(config, "east", pause=Pauses()))
    return found


async def read(source: Slices | Pool) -> DiscoveredEngines:
    return await asyncio.wait_for(source.read(), seconds(20))


def urls(found: DiscoveredEngines) -> dict[str, str]:
    return {each["id"]: each["url"] for each in found.engines}


async def watching(server: KubeServer, source: Slices | Pool, number: int = 1) -> "asyncio.Task[DiscoveredEngines]":
    """Read on, until the server was asked for so many watches."""
    task = asyncio.ensure_future(read(source))
    while len(server.watches()) < number and not task.done():
        await asyncio.sleep(0.01)
    return task


async def test_endpoints_are_engines_with_the_names_of_their_pods(server: KubeServer) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1", ready=True)), OF_SERVICE)
    server.put(SLICES, "other", piece(endpoint("x", "10.0.0.9", ready=True)), {"kubernetes.io/service-name": "x"})
    source = slices(server, engine={"models": ["m"]})
    found = await read(source)
    assert found.engines == [{"models": ["m"], "id": "engine-0", "url": "http://10.0.0.1:30000", "region": "east"}]
    task = await watching(server, source)
    server.put(SLICES, "b", piece(endpoint("engine-1", "10.0.0.2", ready=True)), OF_SERVICE)
    assert list(urls(await task)) == ["engine-0", "engine-1"]
    server.delete(SLICES, "a")
    assert list(urls(await read(source))) == ["engine-1"]


async def test_an_engine_joins_when_it_is_ready_and_leaves_when_its_pod_ends(server: KubeServer) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1", ready=False)), OF_SERVICE)
    source = slices(server)
    assert not (await read(source)).engines
    for state, names in (
        ({"ready": True}, ["engine-0"]),
        ({"ready": False, "serving": False}, ["engine-0"]),
        ({"ready": False, "terminating": True}, []),
    ):
        server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1", **state)), OF_SERVICE)
        assert list(urls(await read(source))) == names
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.5", ready=False)), OF_SERVICE)
    assert not (await read(source)).engines


async def test_a_pod_with_addresses_of_both_families_is_one_engine(server: KubeServer) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "fd00::1", ready=True), addressType="IPv6"), OF_SERVICE)
    source = slices(server)
    assert urls(await read(source)) == {"engine-0": "http://[fd00::1]:30000"}
    server.put(SLICES, "b", piece(endpoint("engine-0", "10.0.0.1", ready=True)), OF_SERVICE)
    assert urls(await read(source)) == {"engine-0": "http://10.0.0.1:30000"}


@pytest.mark.parametrize(("port", "used"), [("", 30000), ("bootstrap", 8998), ("8998", 8998)])
async def test_the_port_is_named_or_http(server: KubeServer, port: str, used: int) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    assert urls(await read(slices(server, port=port))) == {"engine-0": f"http://10.0.0.1:{used}"}


async def test_a_slice_that_cannot_be_read_is_a_problem_of_its_own(server: KubeServer) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    server.put(
        SLICES, "b", piece(endpoint("engine-1", "10.0.0.2"), ports=[{"name": "x", "port": 1}, {"port": 2}]), OF_SERVICE
    )
    server.put(SLICES, "c", piece({"addresses": []}), OF_SERVICE)
    found = await read(slices(server))
    assert list(urls(found)) == ["engine-0"]
    assert "has no port" in found.problems[0]
    assert len(found.problems) == 2


async def test_long_lists_come_in_pages_and_have_a_limit(server: KubeServer) -> None:
    for number in range(450):
        three = [endpoint(f"e-{number}-{each}", f"10.{number // 250}.{number % 250}.{each}") for each in range(3)]
        server.put(SLICES, f"s{number:03}", piece(*three), OF_SERVICE)
    found = await read(slices(server))
    assert server.lists() == 3
    assert len(found.engines) == MAX_ENGINES
    assert f"only {MAX_ENGINES} are used" in found.problems[0]


async def test_a_watch_goes_on_from_the_newest_bookmark(server: KubeServer) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    source = slices(server)
    await read(source)
    task = await watching(server, source)
    server.bookmark(SLICES)
    newest = server.version
    server.end_watches()
    while len(server.watches()) < 2:
        await asyncio.sleep(0.01)
    assert server.watches()[1]["resourceVersion"] == str(newest)
    assert server.watches()[0]["allowWatchBookmarks"] == "true"
    server.put(SLICES, "b", piece(endpoint("engine-1", "10.0.0.2")), OF_SERVICE)
    assert list(urls(await task)) == ["engine-0", "engine-1"]
    assert server.lists() == 1


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_version_that_is_gone_is_listed_again(server: KubeServer, as_event: bool) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    source = slices(server)
    await read(source)
    task = await watching(server, source)
    server.gone_as_event = as_event
    server.stop()
    with pytest.raises(SourceError):
        await task
    server.delete(SLICES, "a")
    server.put(SLICES, "b", piece(endpoint("engine-1", "10.0.0.2")), OF_SERVICE)
    server.forget()
    server.start()
    found = await read(source)
    if as_event:  # the server took the watch, so what was known last is told first
        assert list(urls(found)) == ["engine-0"]
        found = await read(source)
    assert list(urls(found)) == ["engine-1"]
    assert server.lists() == 2


async def watched_in_vain(server: KubeServer, source: Slices, watches: int) -> DiscoveredEngines:
    """Read until there were so many watches; what was known last."""
    found = await read(source)
    while len(server.watches()) < watches:
        found = await read(source)
    return found


@pytest.mark.parametrize("as_event", [False, True])
async def test_a_server_that_knows_no_version_is_asked_less_and_less_often(server: KubeServer, as_event: bool) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    pauses = Pauses()
    server.gone_as_event, server.oldest = as_event, 10**9
    found = await watched_in_vain(server, slices(server, pauses), 7)
    assert list(urls(found)) == ["engine-0"]
    assert pauses[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]


async def test_a_server_that_ends_each_watch_is_asked_less_and_less_often(server: KubeServer) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    pauses = Pauses()
    source = slices(server, pauses)
    await read(source)
    server.ends_at_once = True
    task = await watching(server, source, 7)
    server.ends_at_once = False
    server.put(SLICES, "b", piece(endpoint("engine-1", "10.0.0.2")), OF_SERVICE)
    assert list(urls(await task)) == ["engine-0", "engine-1"]
    assert pauses[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    before = len(pauses)
    task = await watching(server, source, len(server.watches()))
    server.end_watches()
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.5")), OF_SERVICE)
    await task
    server.end_watches()
    server.put(SLICES, "b", piece(endpoint("engine-1", "10.0.0.6")), OF_SERVICE)
    await read(source)
    assert set(pauses[before:]) <= {1.0, 2.0}, "after news the first wait is short again"


@pytest.mark.parametrize(("status", "as_event"), [(400, False), (504, False), (504, True)])
async def test_a_version_that_the_server_does_not_take_is_listed_again(
    server: KubeServer, status: int, as_event: bool
) -> None:
    """An API server that was restored from a backup knows older versions alone."""
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    source = slices(server)
    await read(source)
    server.delete(SLICES, "a")
    server.put(SLICES, "b", piece(endpoint("engine-1", "10.0.0.2")), OF_SERVICE)
    server.gone_as_event, server.gone_status, server.oldest = as_event, status, 10**9
    with pytest.raises(SourceError, match=r"answers|too old"):
        await read(source)
    server.oldest = 0
    assert list(urls(await read(source))) == ["engine-1"]
    assert server.lists() == 2


async def test_after_several_errors_in_a_row_it_is_listed_again(server: KubeServer) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    source = slices(server)
    await read(source)
    server.delete(SLICES, "a")
    server.put(SLICES, "b", piece(endpoint("engine-1", "10.0.0.2")), OF_SERVICE)
    server.gone_status, server.oldest = 500, 10**9
    for _ in range(5):
        with pytest.raises(SourceError, match="answers 500"):
            await read(source)
    assert server.lists() == 1
    assert list(urls(await read(source))) == ["engine-1"]


async def test_a_slice_without_endpoints_and_ports_is_no_problem(server: KubeServer) -> None:
    """That of a Service whose pods are gone, beside one that has some."""
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    server.put(SLICES, "b", {"addressType": "IPv6", "endpoints": [], "ports": []}, OF_SERVICE)
    server.put(SLICES, "c", {"addressType": "IPv4", "endpoints": None, "ports": None}, OF_SERVICE)
    found = await read(slices(server))
    assert (list(urls(found)), found.problems) == (["engine-0"], [])


@pytest.mark.parametrize(("old", "new"), [("a", "b"), ("b", "a")])
async def test_a_pod_that_ends_hides_no_new_one_of_its_name(server: KubeServer, old: str, new: str) -> None:
    """As a StatefulSet's does, whose slices are not changed at once."""
    server.put(SLICES, old, piece(endpoint("engine-0", "10.0.0.1", ready=False, terminating=True)), OF_SERVICE)
    server.put(SLICES, new, piece(endpoint("engine-0", "10.0.0.2", ready=True)), OF_SERVICE)
    assert urls(await read(slices(server))) == {"engine-0": "http://10.0.0.2:30000"}


async def test_an_engine_that_is_not_ready_while_the_proxy_starts_stays(server: KubeServer) -> None:
    ready = [endpoint("engine-0", "10.0.0.1", ready=True), endpoint("engine-1", "fd00::1", ready=True)]
    server.put(SLICES, "a", piece(*ready), OF_SERVICE)
    known = (await read(slices(server))).engines
    state = [endpoint("engine-0", "10.0.0.1", ready=True), endpoint("engine-1", "fd00::1", ready=False)]
    server.put(SLICES, "a", piece(*state, endpoint("engine-2", "10.0.0.3", ready=False)), OF_SERVICE)
    assert list(urls(await read(slices(server, known=known)))) == ["engine-0", "engine-1"]
    assert list(urls(await read(slices(server)))) == ["engine-0"]


def in_cluster(server: KubeServer, **more: bool) -> Config:
    """A configuration whose engines are those of the cluster."""
    source = {"id": "cluster", "kind": "endpointslices", "name": "engines", "api": server.url, **more}
    return config_of(engine=None, discovery=[source | {"credentials": str(server.credentials)}])


async def test_what_is_known_from_before_a_restart_is_given_to_the_source(server: KubeServer, tmp_path: Path) -> None:
    both = [endpoint(f"engine-{number}", f"10.0.0.{number}", ready=True) for number in (1, 2)]
    server.put(SLICES, "a", piece(*both), OF_SERVICE)
    config = in_cluster(server)
    state_dir = tmp_path / "state"
    state_dir.mkdir()

    async def engines() -> list[str]:
        """Those of a proxy that has just read its source."""
        discovery = Discovery(state_dir, lambda: None)
        before = len(server.watches())
        discovery.replace(config)
        async with asyncio.timeout(seconds(20)):
            while len(server.watches()) <= before:  # the second thing that it asks
                await asyncio.sleep(0.01)
        discovery.close()
        await asyncio.sleep(0)
        return [engine.id for engine in discovery.engines(config)]

    assert await engines() == ["engine-1", "engine-2"]
    server.put(SLICES, "a", piece(both[0], endpoint("engine-2", "10.0.0.2", ready=False)), OF_SERVICE)
    assert await engines() == ["engine-1", "engine-2"]


async def test_after_a_restart_of_the_server_the_source_is_back_without_news(server: KubeServer) -> None:
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    source = slices(server)
    await read(source)
    task = await watching(server, source)
    server.stop()
    with pytest.raises(SourceError, match="cannot be reached"):
        await task
    with pytest.raises(SourceError, match="cannot be reached"):
        await read(source)
    server.start()
    assert list(urls(await read(source))) == ["engine-0"]
    assert server.lists() == 1


async def test_token_and_authority_may_be_replaced(server: KubeServer) -> None:
    source = slices(server)
    await read(source)
    task = await watching(server, source)
    server.set_token("second")
    server.end_watches()
    while len(server.watches()) < 2:
        await asyncio.sleep(0.01)
    server.put(SLICES, "a", piece(endpoint("engine-0", "10.0.0.1")), OF_SERVICE)
    assert list(urls(await task)) == ["engine-0"]
    (server.credentials / "token").write_text("wrong")
    server.end_watches()
    with pytest.raises(SourceError, match="answers 401"):
        await read(source)
    own = (server.credentials / "ca.crt").read_bytes()
    other = server.credentials / "other"
    other.mkdir()
    (server.credentials / "ca.crt").write_bytes(make(other, "other")[0].read_bytes())
    with pytest.raises(SourceError, match="CERTIFICATE_VERIFY_FAILED"):
        await read(source)
    (server.credentials / "ca.crt").write_bytes(own)
    server.set_token("third")
    assert list(urls(await read(source))) == ["engine-0"]


def a_pod(host: str, *, ready: bool = True, **metadata: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {"metadata": metadata, "status": {"podIP": host, "phase": "Running", "conditions": conditions}}


def a_pool(*ports: int, app: str = "sglang") -> dict[str, Any]:
    target = [{"number": port} for port in ports]
    return {"spec": {"selector": {"matchLabels": {"app": app}}, "targetPorts": target}}


async def test_the_pods_of_a_pool_are_engines(server: KubeServer) -> None:
    server.put(POOLS, "engines", a_pool(30000))
    server.put(POOLS, "other", a_pool(1))
    server.put(PODS, "engine-0", a_pod("10.0.0.1"), {"app": "sglang"})
    server.put(PODS, "engine-1", a_pod("10.0.0.2", ready=False), {"app": "sglang"})
    server.put(PODS, "x", a_pod("10.0.0.3"), {"app": "x"})
    source = pool(server)
    assert urls(await read(source)) == {"engine-0": "http://10.0.0.1:30000"}
    server.put(PODS, "engine-1", a_pod("10.0.0.2"), {"app": "sglang"})
    assert list(urls(await read(source))) == ["engine-0", "engine-1"]
    server.put(PODS, "engine-0", a_pod("10.0.0.1", deletionTimestamp="2026-11-23T00:00:00Z"), {"app": "sglang"})
    assert list(urls(await read(source))) == ["engine-1"]
    server.put(POOLS, "engines", a_pool(30000, 30001, app="x"))
    assert urls(await read(source)) == {"x:30000": "http://10.0.0.3:30000", "x:30001": "http://10.0.0.3:30001"}


async def test_a_pool_that_is_not_there_yet_is_waited_for(server: KubeServer) -> None:
    source = pool(server)
    with pytest.raises(SourceError, match="there is no InferencePool engines"):
        await read(source)
    task = await watching(server, source)
    server.put(PODS, "engine-0", a_pod("10.0.0.1"), {"app": "sglang"})
    server.put(POOLS, "engines", a_pool(30000))
    assert list(urls(await task)) == ["engine-0"]


async def test_outside_of_a_cluster_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    config = DiscoveryConfig("cluster", "endpointslices", 1.0, name="engines", namespace="a", credentials=tmp_path)
    with pytest.raises(SourceError, match="name the API server by `api`"):
        await Slices(config, "east").read()


async def test_pods_that_hold_more_warm_tokens_cost_more_to_delete(server: KubeServer, tmp_path: Path) -> None:
    for name in ("engine-0", "engine-1"):
        server.put(PODS, name, a_pod("10.0.0.1"))
    held = {"engine-0": 812_000, "engine-1": 30_400, "gone": 1_000, "of-the-config": 9_000}
    config = in_cluster(server, deletion_cost=True)
    three = [endpoint(name, f"10.0.0.{at}", ready=True) for at, name in enumerate(["engine-0", "engine-1", "gone"])]
    server.put(SLICES, "a", piece(*three), OF_SERVICE)
    (tmp_path / "state").mkdir()
    discovery = Discovery(tmp_path / "state", lambda: None)
    discovery.replace(config)
    async with asyncio.timeout(seconds(20)):
        while not discovery.engines(config):
            await asyncio.sleep(0.01)
    costs = DeletionCosts(LiveConfig(config), discovery, lambda: held)

    def annotated() -> dict[str, tuple[str, str]]:
        pods = server.objects[PODS]
        return {name: (pods[name]["metadata"]["annotations"][ANNOTATION], pods[name]["metadata"]["resourceVersion"])
                for name in pods}  # fmt: skip

    await costs.annotate()
    first = annotated()
    assert {name: cost for name, (cost, _) in first.items()} == {"engine-0": "812", "engine-1": "30"}
    held |= {"engine-0": 850_000, "engine-1": 60_000}
    await costs.annotate()
    assert annotated()["engine-0"] == first["engine-0"], "a small change is not worth an update"
    assert annotated()["engine-1"][0] == "60"
    server.set_token("second")
    (server.credentials / "token").write_text("wrong")
    held["engine-1"] = 0
    await costs.annotate()  # refused: the log says so, and the proxy goes on
    server.set_token("third")
    await costs.annotate()
    assert annotated()["engine-1"][0] == "0"
    discovery.close()
