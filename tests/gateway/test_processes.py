"""A picker of several processes behind Envoy: sessions stay where they are, and a process that dies is replaced."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from tests.gateway.test_protocol import Scene, scene
from tests.subjects.gateway import cluster
from tests.subjects.processes import chat, until

SESSIONS = 12


def a_connection_each(config: dict[str, Any]) -> None:
    """Envoy's requests come to all processes, as the page says."""
    (options,) = cluster(config, "warmroute")["typed_extension_protocol_options"].values()
    options["common_http_protocol_options"] = {"max_requests_per_connection": 1}


def logged(it: Scene, text: str) -> bool:
    return text in it.picker.written()


def test_any_process_picks_for_a_session_and_one_that_dies_is_replaced(tmp_path: Path) -> None:
    with scene(tmp_path, a_connection_each, extra="processes = 2") as it:
        homes = []
        for turn in (1, 2):
            for session in range(SESSIONS):
                before = [len(engine.bodies) for engine in it.engines]
                assert it.post(chat(f"s{session}", turns=turn), f"s{session}").status_code == 200
                homes.append([len(engine.bodies) - count for engine, count in zip(it.engines, before, strict=True)])
        assert homes[:SESSIONS] == homes[SESSIONS:]
        assert {1, 0} == {home[0] for home in homes}  # so a session could have moved
        assert len(it.picker.rows(2 * SESSIONS)) == 2 * SESSIONS
        for number, process in enumerate(it.picker.line["processes"]):
            died = f"process {number} has died"
            os.kill(process, signal.SIGKILL)
            until(partial(logged, it, died), died)
            until(lambda: "x-warmroute-receipt" in it.post(chat("after")).headers, "others, or the next, pick")
