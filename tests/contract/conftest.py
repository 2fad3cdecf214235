"""The two subjects of the contract, each started once, and the line that says how they did."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.contract.subject import DEADLINE_S, Kind, Subject
from tests.machine import seconds
from tests.subjects.connections import NOT_KEPT
from tests.subjects.embedded import EmbeddedEngine

SUBJECTS: tuple[Kind, ...] = ("embedded", "sglang")
SERVERS = {
    "engine": "sglang_aggregated", "pair": "sglang_pair", "impatient_pair": "sglang_pair",
    "drafting": "sglang_speculative",
}  # fmt: skip
"""By the fixture of a subject, that of its real servers."""

HEADER_OVERRIDES = {"SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": "1"}
EMBEDDED = (
    *("--model", "tiny", "--page-size", "16", "--kv-tokens", "32768", "--context-length", "16384"),
    *("--max-running-requests", "8", "--max-queued-requests", "8", "--enable-hierarchical-cache"),
)
"""As the real one of the tests is started, where it shows."""


@pytest.fixture(scope="session")
def embedded_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An embedded engine."""
    storage = tmp_path_factory.mktemp("storage")
    flags = ("--hicache-storage-backend", "file")
    engine = EmbeddedEngine(
        [*EMBEDDED, *flags], {**HEADER_OVERRIDES, "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(storage)}
    )
    yield engine.url
    engine.stop()


@pytest.fixture(params=SUBJECTS)
def engine(request: pytest.FixtureRequest) -> Iterator[Subject]:
    """A subject with nothing running on it, before and after the test."""
    kind: Kind = request.param
    url = (
        request.getfixturevalue("sglang_aggregated").url
        if kind == "sglang"
        else request.getfixturevalue("embedded_url")
    )
    with httpx.Client(base_url=url, timeout=seconds(DEADLINE_S), limits=NOT_KEPT) as client:
        subject = Subject(kind, url, client)
        yield subject
        for connection in subject.connections:
            connection.close()
        if subject.live() != (0, 0):
            subject.abort_all()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one subject after those of the other; and what needs the real server says so, for it to start early."""
    mine = [item for item in items if isinstance(item, pytest.Function) and _subject(item.nodeid)]
    for item in mine:
        if _subject(item.nodeid) == "sglang":
            # A new list: the old one is shared with the test's other subject.
            servers = {server for fixture, server in SERVERS.items() if fixture in item.fixturenames}
            item.fixturenames = [*item.fixturenames, "sglang_servers", *servers]
    order = iter(sorted(mine, key=lambda item: SUBJECTS.index(_subject(item.nodeid) or "embedded")))
    chosen = set(mine)
    items[:] = [next(order) if item in chosen else item for item in items]


def _subject(nodeid: str) -> Kind | None:
    """Which subject a test of the contract is run on, from the first part of its parameters."""
    name = nodeid.partition("[")[2].removesuffix("]").split("-")
    return next((kind for kind in SUBJECTS if "tests/contract/" in nodeid and kind in name), None)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line on the contract: how many tests, on how many subjects, and what failed on which."""
    passed, failed = Counter[str](), Counter[str]()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            subject = _subject(getattr(report, "nodeid", ""))
            if subject is not None and outcome in {"passed", "failed", "error", "skipped", "xfailed"}:
                (passed if outcome == "passed" else failed)[subject] += 1
    total = {kind: passed[kind] + failed[kind] for kind in SUBJECTS}
    if not any(total.values()):
        return
    if not failed and len(set(total.values())) == 1:
        line = f"contract: {total[SUBJECTS[0]]} tests x {len(SUBJECTS)} subjects, all passing"
    else:
        parts = [f"{kind} {passed[kind]} of {total[kind]}" for kind in SUBJECTS]
        line = f"contract: passing on {', on '.join(parts)}"
    terminalreporter.write_line(line)
