"""What a broken engine does to a turn: each fault is provoked on a real embedded engine, the page says what was seen.

The table of docs/reference/failures.md is made from these observations; `WARMROUTE_UPDATE_DOCS=1` writes it anew.
"""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.machine import configured, seconds
from tests.subjects.fleet import Fleet
from tests.subjects.processes import EngineProcess, chat, events, until
from warmroute.contract import receipt as contract_receipt
from warmroute_cli.processes import stop_all

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[3] / "docs/reference/failures.md"
BEGIN, END = "<!-- made by tests/integration/proxy/test_engine_faults.py -->\n", "<!-- end -->\n"
COUNTS = {"engine": "at once", "evidence": "as evidence", "": "no"}
LIMITS = f"first_token_timeout_s = {configured(2)}\nidle_timeout_s = {configured(1)}"


@dataclass(frozen=True)
class Case:
    """A fault, and the order that provokes it; `frozen`: the engine is stopped (SIGSTOP) in mid-answer.

    `continued`: answers of the model are continued. `replaced`: by this signal the engine ends before the request, and
    another one stands at its address; after SIGTERM the old one still ends a stream while the new one serves.
    """

    title: str
    order: dict[str, Any]
    frozen: bool = False
    continued: bool = False
    replaced: signal.Signals | None = None

    @property
    def model(self) -> str:
        return "other" if self.continued else "kimi-k2.5"


CASES = [
    Case("crashes in the middle of its answer", {"fault": "crash"}),
    Case("crashes in the middle of its answer, with `continue_broken`", {"fault": "crash"}, continued=True),
    Case("crashes before its answer", {"fault": "crash", "after_events": 0}),
    Case("accepts and never answers", {"fault": "hang"}),
    Case("freezes in the middle of its answer", {}, frozen=True),
    Case("is slow with its first token", {"fault": "slow", "delay_s": 1}),
    Case("streams its answer slowly, without a pause", {"fault": "drip", "delay_s": 0.1}),
    Case("resets the connection", {"fault": "reset"}),
    Case("closes the connection early", {"fault": "cut"}),
    Case("ends its answer early, with a clean close", {"fault": "truncate"}),
    Case("answers 200 with HTML", {"fault": "content_type"}),
    Case("answers 200 with an error as the first event", {"fault": "error_first", "status": 500}),
    Case("answers 500", {"fault": "status", "status": 500}),
    Case("answers 503, its queue is full", {"fault": "status", "status": 503}),
    Case("answers 429, it sheds load", {"fault": "status", "status": 429}),
    Case(
        "reports more cached tokens than the prompt has",
        {"fault": "usage", "usage": {"prompt_tokens_details": {"cached_tokens": 10_000_000}}},
    ),
    Case("reports no usage", {"fault": "usage"}),
    Case(
        "reports only zeros",
        {"fault": "usage", "usage": {"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": None}},
    ),
    Case("restarts with an empty cache", {}, replaced=signal.SIGKILL),
    Case("replaces one that is still finishing streams", {}, replaced=signal.SIGTERM),
]


@dataclass(frozen=True)
class Seen:
    """One request: what the client got, the row, and what its engine's failure was judged to be; empty: none."""

    client: str
    row: dict[str, Any]
    judged: str


class Breaking(Fleet):
    """Aggregated engines which can be started again at their addresses."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir()
        engines = [EngineProcess(folder, f"e{n}", "aggregated") for n in range(count)]
        super().__init__(folder, engines, limits=LIMITS)
        self.folder = folder
        self.lives = 0
        self.replaced: list[EngineProcess] = []

    def start_again(self, name: str) -> None:
        """The same address, a new process with an empty cache; the old one listens no more."""
        self.replaced.append(self.engines[name])
        self.lives += 1
        port = self.engines[name].url.rsplit(":", 1)[1]
        folder = self.folder / f"life{self.lives}"
        folder.mkdir()
        self.engines[name] = EngineProcess(folder, name, "aggregated", "--port", port).listening()

    def stop(self) -> None:
        super().stop()
        stop_all([engine.child for engine in self.replaced], seconds(5.0))

    def judged(self, name: str) -> dict[str, float]:
        """How many failures of a worker were judged to be what."""
        begin = f'warmroute_engine_failures_total{{worker="{name}",judged="'
        lines = self.proxy.metrics().splitlines()
        counted = [line.removeprefix(begin).split('"} ') for line in lines if line.startswith(begin)]
        return {kind: float(count) for kind, count in counted}

    def up(self, name: str) -> bool:
        return bool(self.proxy.workers()[name]["health"] == "up")

    def observe(self, case: Case, *, stream: bool) -> Seen:
        """Warm an engine, break it, and ask again."""
        session = f"{case.title} {stream}"
        warm = self._whole(session, case.model)
        name = str(warm["usage"]["warmroute"]["workers"][0]["id"])
        engine = self.engines[name]
        if case.order:
            order = case.order if stream or "after_events" not in case.order else {**case.order, "after_events": 0}
            httpx.post(f"{engine.url}/engine/faults", json=order).raise_for_status()
        if case.replaced is not None:
            self._replace(name, case.replaced, session)
        before = self.judged(name)
        client, receipt = self._ask(session, case.model, stream=stream, freeze=engine if case.frozen else None)
        row = self.proxy.row(receipt)
        judged = "".join(kind for kind, count in self.judged(name).items() if count > before.get(kind, 0))
        if case.frozen:
            os.kill(engine.child.pid, signal.SIGCONT)
        if not self.engines[name].child.running():
            self.start_again(name)
        until(lambda: self.up(name), f"{name} is up again")
        until(lambda: self.running() == 0, "no engine works any more")
        return Seen(client, row, judged)

    def _replace(self, name: str, number: signal.Signals, session: str) -> None:
        """Another engine at the address; where the old one is asked to end, it ends a stream that it has."""
        old = self.engines[name]
        with self.proxy.client() as client, ThreadPoolExecutor(1) as pool:
            if number == signal.SIGTERM:
                script = {"script": '{"output_tokens": 1800}'}  # 1.8 s at speed 20; the engine gives it 2
                body, headers = chat(_opening(session), metadata=script), {"x-session-affinity": session}
                asked = pool.submit(client.post, "/v1/chat/completions", json=body, headers=headers)
                until(lambda: old.running() == 1 or asked.done(), "the long answer is under way, or was seen too late")
            os.kill(old.child.pid, number)
            until(lambda: not self.up(name), "the proxy has noticed")
            self.start_again(name)
            until(lambda: self.up(name), "the new engine is up")

    def _whole(self, session: str, model: str) -> dict[str, Any]:
        body = chat(_opening(session)) | {"model": model}
        with self.proxy.client() as client:
            answer = client.post("/v1/chat/completions", json=body, headers={"x-session-affinity": session})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def _ask(self, session: str, model: str, *, stream: bool, freeze: EngineProcess | None) -> tuple[str, str]:
        """(what the client got, the receipt's id)."""
        script: dict[str, Any] = {"metadata": {"script": '{"output_tokens": 400}'}} if freeze else {}
        body = chat(_opening(session), turns=2, stream=stream, **script) | {"model": model}
        if stream:
            body["stream_options"] = {"include_usage": True}
        text, clean = b"", True
        with (
            self.proxy.client() as client,
            client.stream("POST", "/v1/chat/completions", json=body, headers={"x-session-affinity": session}) as answer,
        ):
            if freeze is not None and not stream:
                os.kill(freeze.child.pid, signal.SIGSTOP)
            try:
                for data in answer.iter_bytes():
                    text += data
                    if freeze is not None and b'"content"' in text:
                        os.kill(freeze.child.pid, signal.SIGSTOP)
            except httpx.RemoteProtocolError:
                clean = False
        return _what(answer, text.decode(), clean, stream), answer.headers["x-warmroute-receipt"]


def _opening(session: str) -> str:
    """Long and each session's own, so that the engine that has it cached is by far the cheapest."""
    return f"{session}: " * 400


def _what(answer: httpx.Response, text: str, clean: bool, stream: bool) -> str:
    if answer.status_code != 200:
        return f"{answer.status_code} `{json.loads(text)['error']['code']}`"
    if not stream:
        usage = json.loads(text)["usage"]
        assert contract_receipt.check(usage) == []
        return "the whole answer"
    if clean:
        assert text.endswith("data: [DONE]\n\n")
        assert contract_receipt.check(events(text)[-1]["usage"]) == []
        return "the whole answer"
    assert "[DONE]" not in text
    return f"content, then an error event (`{events(text)[-1]['error']['code']}`)"


Observed = dict[tuple[str, int, bool], Seen]
"""By case, number of engines, and whether streamed."""


@pytest.mark.timeout(180)
def test_the_page_says_what_clients_are_told_and_nothing_broken_is_charged(tmp_path: Path) -> None:
    def observe_all(count: int) -> Observed:
        with Breaking(tmp_path / str(count), count) as fleet:
            return {
                (case.title, count, stream): fleet.observe(case, stream=stream)
                for case in CASES
                for stream in (True, False)
                if stream or not case.frozen  # a whole answer that freezes is one that never comes
            }

    with ThreadPoolExecutor(2) as pool:
        alone, paired = pool.map(observe_all, (1, 2))
    observed = alone | paired
    for (title, _, _), seen in observed.items():
        ok = seen.client == "the whole answer"
        assert (seen.row["outcome"] == "completed") == ok, title
        assert ok or seen.row["price_nanousd"] == 0, title
        assert contract_receipt.check(json.loads(seen.row["usage"])) == [], title
    made = _table(observed)
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    if os.environ.get("WARMROUTE_UPDATE_DOCS") == "1":
        PAGE.write_text(before + BEGIN + made + END + after)
    assert PAGE.read_text() == before + BEGIN + made + END + after


def _table(observed: Observed) -> str:
    lines = [
        "| An engine that | streamed | not streamed | with another engine | ledger | counts against it |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for case in CASES:
        alone = observed[case.title, 1, True]
        whole = observed.get((case.title, 1, False))
        pair = [seen for (title, count, _), seen in observed.items() if title == case.title and count == 2]
        cells = [
            case.title,
            alone.client,
            whole.client if whole else "as one that never answers",
            _or(seen.client for seen in pair),
            _or(_ledger(seen.row) for seen in (alone, whole) if seen is not None),
            COUNTS[alone.judged],
        ]
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def _or(texts: Any) -> str:
    return "; whole: ".join(dict.fromkeys(texts))


def _ledger(row: dict[str, Any]) -> str:
    estimated = json.loads(row["usage"])["warmroute"]["estimated"]
    said = f"`{row['outcome']}`" + (", charged 0" if row["outcome"] != "completed" else "")
    if row["predicted_cached"] == row["cached_tokens"] == 0 and row["outcome"] == "completed" and not estimated:
        said += ", nothing cached, as predicted"
    return said + (f", estimated: {', '.join(estimated)}" if estimated and row["outcome"] == "completed" else "")
