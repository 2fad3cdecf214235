"""Cases of the inference extension's conformance tests that need a gateway and a picker, but no cluster."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.test_protocol import CHAT, Also, Scene, answers, hinted, scene
from tests.subjects.gateway import Envoy, Picker, cluster, endpoint, ext_proc, route
from tests.subjects.processes import chat
from tests.subjects.scripted import Handler, ScriptedEngine
from tests.subjects.stopped import Several

REQUESTS = 40


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with scene(tmp_path_factory.mktemp("three"), engines=3) as found:
        yield found


@pytest.mark.parametrize("allowed", [[2], [0, 1], [0, 1, 2]])
def test_gateway_following_epp_routing_also_among_ports_of_one_address(three: Scene, allowed: list[int]) -> None:
    for engine in three.engines:
        engine.bodies.clear()
    addresses = [three.engines[number].url.removeprefix("http://") for number in allowed]
    with Also(three, hinted(addresses)) as envoy, envoy.client(three.picker.keys[0]) as client:

        def post(number: int) -> int:
            return client.post(CHAT, json=chat(str(number)), headers={"x-session-affinity": str(number)}).status_code

        with ThreadPoolExecutor(10) as pool:
            assert set(pool.map(post, range(REQUESTS))) == {200}
    asked = [len(engine.bodies) for engine in three.engines]
    assert sum(asked[number] for number in allowed) == sum(asked) == REQUESTS


def test_gateway_destination_endpoint_served_is_read_of_the_metadata(tmp_path: Path) -> None:
    def says_which(config: dict[str, Any]) -> None:
        del ext_proc(config)["response_attributes"]
        policy = cluster(config, "engines")["load_balancing_policy"]["policies"][0]["typed_extension_config"]
        key = {"key": "envoy.lb", "path": [{"key": "x-gateway-destination-endpoint-served"}]}
        policy["typed_config"]["selected_host_key"] = key
        route(config)["route"]["retry_policy"]["retry_on"] = "connect-failure,reset"

    with scene(tmp_path, says_which) as it:
        it.engines[0].script = Handler.cut
        for number in range(4):
            given = it.post(chat(str(number)), str(number))
            row = it.picker.row(given.json()["usage"]["warmroute"]["id"])
            assert it.engines[1].name in row["workers"]
        assert it.engines[0].bodies  # it was picked at first


def two_pools(second: Picker, engines: list[ScriptedEngine], config: dict[str, Any]) -> None:
    """Two pools with a picker each; a header chooses one, and without it each gets half of the requests."""
    clusters = config["static_resources"]["clusters"]
    for name, url in (("warmroute", second.url), ("engines", engines[1].url)):
        clusters.append(deepcopy(cluster(config, name)) | {"name": f"{name}-2"})
        clusters[-1]["load_assignment"]["endpoints"][0]["lb_endpoints"] = [endpoint(url)]
    cluster(config, "engines")["load_assignment"]["endpoints"][0]["lb_endpoints"] = [endpoint(engines[0].url)]
    ask = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {"grpc_service": {"envoy_grpc": {"cluster_name": "warmroute-2"}, "timeout": "0s"}},
    }
    other = {"typed_per_filter_config": {"envoy.filters.http.ext_proc": ask}}
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    host = manager["route_config"]["virtual_hosts"][0]
    (one,) = host["routes"]

    def pool(name: str) -> dict[str, Any]:
        return {"prefix": "/", "headers": [{"name": "x-pool", "string_match": {"exact": name}}]}

    weighted = {"clusters": [{"name": "engines", "weight": 1}, {"name": "engines-2", "weight": 1} | other]}
    both = {name: value for name, value in one["route"].items() if name != "cluster"} | {"weighted_clusters": weighted}
    host["routes"] = [
        one | {"match": pool("one")},
        one | {"match": pool("two"), "route": one["route"] | {"cluster": "engines-2"}} | other,
        one | {"route": both},
    ]


def test_rules_and_weights_of_two_pools_ask_the_picker_of_the_pool_that_is_chosen(tmp_path: Path) -> None:
    with (
        Several(ScriptedEngine(name, answers) for name in ("one", "two")) as engines,
        Picker(tmp_path / "p1", [engines[0].toml()]) as first,
        Picker(tmp_path / "p2", [engines[1].toml()], keys=first.keys) as second,
        Envoy(tmp_path / "envoy", first.url, [], lambda config: two_pools(second, engines, config)) as envoy,
    ):
        with envoy.client(first.keys[0]) as client:
            for name, engine in zip(("one", "two"), engines, strict=True):
                assert client.post(CHAT, json=chat(name), headers={"x-pool": name}).status_code == 200
                assert len(engine.bodies) == 1
            for number in range(REQUESTS):
                assert client.post(CHAT, json=chat(str(number))).status_code == 200
        asked = [len(engine.bodies) for engine in engines]
        assert sum(asked) == REQUESTS + 2
        assert min(asked) > 1
        assert [len(picker.rows(count)) for picker, count in zip((first, second), asked, strict=True)] == asked
