"""Where another engine answers than the one that was picked, or none does: who is charged, credited and blamed."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.test_protocol import answers, off, scene
from tests.subjects.gateway import cluster, endpoint, ext_proc, falls_back, route
from tests.subjects.processes import chat
from tests.subjects.scripted import Handler, ScriptedEngine


def retried(config: dict[str, Any]) -> None:
    route(config)["route"]["retry_policy"] = {"retry_on": "connect-failure,reset", "num_retries": 2}


def key_files(folder: Path) -> list[str]:
    """A line of config for each of two engines, each with a key of its own."""
    paths = [folder / "key0", folder / "key1"]
    for path in paths:
        path.touch(0o600)
        path.write_text(f"key-of-{path.name[-1]}")
    return [f'key_file = "{path}"' for path in paths]


def workers(row: dict[str, Any]) -> list[str]:
    return [each["id"] for each in json.loads(row["workers"])]


def test_no_engine_gets_the_key_of_another(tmp_path: Path) -> None:
    with scene(tmp_path, retried, of_engine=key_files(tmp_path)) as it:
        for engine in it.engines:
            engine.script = Handler.cut
        for number in range(8):
            it.post(chat(f"k{number}"), f"k{number}")
        for number, engine in enumerate(it.engines):
            assert {head["authorization"] for head in engine.heads} <= {f"Bearer key-of-{number}"}


def test_an_engine_that_is_not_in_the_config_is_no_worker_s_row(tmp_path: Path) -> None:
    unknown = ScriptedEngine("unknown", answers)

    def also(config: dict[str, Any]) -> None:
        retried(config)
        route(config)["route"]["retry_policy"]["num_retries"] = 6
        falls_back(config)
        known = cluster(config, "engines")["load_assignment"]["endpoints"][0]["lb_endpoints"]
        known.append(endpoint(unknown.url))

    try:
        with scene(tmp_path, also, engines=1) as it:
            it.engines[0].script = Handler.cut
            given = it.post(chat("u"))
            assert given.status_code == 200, given.text
            assert unknown.bodies
            row = it.picker.row(given.headers["x-warmroute-receipt"])
            assert (row["outcome"], workers(row)) == ("completed", [])
            it.engines[0].script = answers
            again = it.post(chat("u", turns=2)).json()["usage"]["warmroute"]
            assert it.picker.row(again["id"])["predicted_cached"] == 0
            logged = [text for path in tmp_path.rglob("*.log") if "answered at" in (text := path.read_text())]
            assert len(logged) == 1
    finally:
        unknown.stop()


@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
def test_what_envoy_refuses_itself_is_no_engine_s_fault(tmp_path: Path, reads: bool) -> None:
    def full(config: dict[str, Any]) -> None:
        limits = cluster(config, "engines")["circuit_breakers"]["thresholds"][0]
        limits |= {"max_requests": 0, "max_pending_requests": 0, "max_connections": 0}
        if not reads:
            off("SEND")(config)
            assert ext_proc(config)["response_attributes"]

    with scene(tmp_path, full, engines=1) as it:
        for number in range(12):
            given = it.post(chat(f"o{number}"), f"o{number}")
            assert (given.status_code, given.json()["error"]["code"]) == (503, "overloaded"), number
        row = it.picker.row(given.headers["x-warmroute-receipt"])
        assert (row["outcome"], row["price_nanousd"]) == ("cut_off", 0)


def test_an_engine_that_the_picker_did_not_name_gets_nothing(tmp_path: Path) -> None:
    def one_less(config: dict[str, Any]) -> None:
        cluster(config, "engines")["load_assignment"]["endpoints"][0]["lb_endpoints"].pop(0)

    with scene(tmp_path, one_less, of_engine=key_files(tmp_path)) as it:
        given = [it.post(chat(f"g{number}"), f"g{number}") for number in range(8)]
        assert {each.status_code for each in given} == {200, 503}
        assert sum(each.status_code == 200 for each in given) == len(it.engines[1].bodies)
        assert not it.engines[0].bodies
