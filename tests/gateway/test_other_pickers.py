"""Two pickers of one region: each knows where the other has sent a session, and answers probes over HTTP."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.gateway.test_protocol import CHAT, answers
from tests.subjects.gateway import Envoy, Picker
from tests.subjects.ports import free_port
from tests.subjects.processes import PLAIN, chat, until
from tests.subjects.scripted import ScriptedEngine
from tests.subjects.stopped import Several
from warmroute_cli.main import main


@pytest.fixture
def pickers(tmp_path: Path) -> Iterator[list[tuple[Picker, Envoy]]]:
    """Each with an Envoy, before the same two engines."""
    ports = [free_port(), free_port()]
    both: list[tuple[Picker, Envoy]] = []
    with contextlib.ExitStack() as stack:
        engines = stack.enter_context(Several(ScriptedEngine(f"s{number}", answers) for number in range(2)))
        tables, urls = [engine.toml() for engine in engines], [engine.url for engine in engines]
        for number, port in enumerate(ports):
            extra = f'admin_port = {port}\nother_proxies = ["http://127.0.0.1:{ports[1 - number]}"]'
            keys = both[0][0].keys if both else None
            picker = stack.enter_context(Picker(tmp_path / f"p{number}", tables, extra=extra, keys=keys))
            both.append((picker, stack.enter_context(Envoy(tmp_path / f"envoy{number}", picker.url, urls))))
        yield both


def test_a_session_that_one_picker_has_placed_is_known_to_the_other(pickers: list[tuple[Picker, Envoy]]) -> None:
    number = itertools.count()

    def known() -> bool:
        messages = [{"role": "user", "content": f"{next(number)} " * 500}]  # which share nothing
        for picker, envoy in pickers:
            with envoy.client(picker.keys[0]) as client:
                given = client.post(CHAT, json={"model": "kimi-k2.5", "messages": messages})
            messages += [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "go on"}]
        return bool(picker.row(given.headers["x-warmroute-receipt"])["predicted_cached"])

    until(known, "the second picker knows what the first has sent")


def test_a_receipt_is_found_by_whichever_picker_is_asked(pickers: list[tuple[Picker, Envoy]]) -> None:
    (picker, envoy), (_, other) = pickers
    with envoy.client(picker.keys[0]) as client:
        receipt = client.post(CHAT, json=chat("receipt")).headers["x-warmroute-receipt"]
    picker.row(receipt)
    with other.client(picker.keys[0]) as client:
        found = client.get(f"/v1/usage/receipts/{receipt}")
    assert (found.status_code, found.json()["id"]) == (200, receipt)


def test_a_picker_is_well_as_long_as_it_runs(pickers: list[tuple[Picker, Envoy]]) -> None:
    picker, _ = pickers[0]
    command = ["health", "--ready", "--config", str(picker.write_config(urlsplit(picker.url).port or 0))]
    assert main(command) == 0
    picker.kill()
    assert main(command) == 1


def test_probes_are_answered_at_the_admin_port_and_all_else_needs_the_admin_key(
    pickers: list[tuple[Picker, Envoy]],
) -> None:
    picker, _ = pickers[0]
    with httpx.Client(base_url=str(picker.line["admin_url"]), verify=PLAIN) as client:
        assert [client.get(path).status_code for path in ("/health", "/ready")] == [200, 200]
        assert [client.get(path).status_code for path in ("/metrics", "/v1/models")] == [401, 401]
        assert client.post("/v1/regions/announcements", content=b"x").status_code == 404  # it is not signed
