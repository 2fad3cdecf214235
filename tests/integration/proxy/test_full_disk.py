"""A disk that is full while turns are under way, for real: what clients get, what is said meanwhile, and the rows.

The proxy's files may grow no further for a while (RLIMIT_FSIZE), which is a full disk to it.
"""

import json
import resource
import socket
import threading
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import httpx

from tests.machine import seconds
from tests.subjects.processes import ProxyProcess, chat, events, until
from tests.subjects.scripted import Handler, ScriptedEngine, delta, whole
from tests.subjects.stopped import Several

USAGE = {"prompt_tokens": 500, "completion_tokens": 3, "total_tokens": 503}
UNLIMITED = resource.RLIM_INFINITY
BUDGET = '[[budget]]\nname = "b"\ntenants = ["first"]\nusd_per_day = "1"\ntokens_per_minute = 1000000000\n'


def limit(proxy: ProxyProcess, file_bytes: int) -> None:
    assert proxy.child is not None
    resource.prlimit(proxy.child.pid, resource.RLIMIT_FSIZE, (file_bytes, UNLIMITED))


def ready(proxy: ProxyProcess) -> tuple[int, Any]:
    answered = httpx.get(f"{proxy.url}/ready")
    return answered.status_code, answered.json().get("reasons")


def limits(proxy: ProxyProcess) -> Any:
    with proxy.admin() as admin:
        return admin.get("/admin/admission").json()


def told(sock: socket.socket) -> tuple[int, str]:
    """Status and body of an answer that may break off."""
    with sock, HTTPResponse(sock) as response:
        response.begin()
        try:
            body = response.read()
        except IncompleteRead as error:
            body = error.partial
    return response.status, body.decode()


def test_turns_that_a_full_disk_kept_from_their_rows_have_them_once_it_is_not(tmp_path: Path) -> None:
    goes_on = threading.Event()

    def script(handler: Handler) -> None:
        asked = json.loads(handler.engine.bodies[-1])["messages"][-1]["content"].split()[0]
        if asked == "streamed":
            handler.stream(delta("begun"), end=False)
            handler.close_connection = False
        if asked != "before":
            goes_on.wait(seconds(60))
        if asked == "again":
            handler.reply(500, b"{}")
        elif asked == "streamed":
            last = [json.dumps(each) for each in (delta(finish="stop"), {"choices": [], "usage": USAGE})]
            data = "".join(f"data: {each}\n\n" for each in [*last, "[DONE]"]).encode()
            handler.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
        else:
            handler.reply(200, whole(USAGE))

    with (
        Several([ScriptedEngine(name, script) for name in ("e0", "e1")]) as engines,
        ProxyProcess(tmp_path, [engine.toml() for engine in engines], limits=BUDGET) as proxy,
    ):
        for number in range(20):  # so that the journal is longer than the log, which the limit is on too
            assert told(proxy.send(chat(f"before {number}")))[0] == 200
        proxy.rows(expected=20)
        asks = [proxy.send(chat(f"{what} now", stream=what == "streamed")) for what in ("streamed", "whole", "again")]
        until(lambda: sum(len(engine.bodies) for engine in engines) == 23, "all three are under way")
        limit(proxy, max(path.stat().st_size for path in proxy.state_dir.glob("journal-*")))
        goes_on.set()

        status, text = told(asks[0])
        assert (status, events(text)[-1]["error"]["code"]) == (200, "ledger_unavailable")
        assert "[DONE]" not in text
        for ask in asks[1:]:
            status, text = told(ask)
            assert (status, json.loads(text)["error"]["code"]) == (503, "ledger_unavailable")
        assert ready(proxy) == (503, ["the ledger cannot be written: the rows of 3 turns wait"])
        assert proxy.metric("warmroute_ledger_rows_waiting") == 3
        assert told(proxy.send(chat("before")))[0] == 503, "nothing new is taken"
        (budget,) = limits(proxy)["budgets"]
        spent = sum(row["price_nanousd"] for row in proxy.rows())
        assert (budget["limit"] - budget["left"] - budget["lease"], budget["reserved"]) == (spent, 0)
        assert "the ledger cannot be written" in proxy.written()

        limit(proxy, UNLIMITED)
        rows = proxy.rows(expected=23)  # nobody has to ask for anything
        assert [(row["outcome"], row["price_nanousd"]) for row in rows[20:]] == [("interrupted", 0)] * 3
        until(lambda: ready(proxy)[0] == 200, "it takes turns again")
        assert proxy.metric("warmroute_ledger_rows_waiting") == 0
        assert proxy.metric('warmroute_turns_total{outcome="interrupted"}') == 3
        assert proxy.metric('warmroute_turns_total{outcome="completed"}') == 20
        assert proxy.metric("warmroute_price_nanousd_total") == sum(row["price_nanousd"] for row in rows)
        until(lambda: "with the rows of 3 turns that waited" in proxy.written(), "the log says so")
        with proxy.client() as client:
            receipts = [client.get(f"/v1/usage/receipts/{row['id']}").json() for row in rows[20:]]
        assert [receipt["state"] for receipt in receipts] == ["interrupted"] * 3
        assert told(proxy.send(chat("before")))[0] == 200
