"""Debian's Prometheus, scraping proxies of a test every second."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from tests.machine import seconds
from tests.subjects.ports import free_port
from tests.subjects.processes import PLAIN, until

ROOT = Path(__file__).parents[2]


class Prometheus:
    """One server with a folder of its own; `targets`: address and admin key of each proxy."""

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: Path | None = None) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        folder.mkdir(parents=True, exist_ok=True)
        jobs = []
        for number, (address, key) in enumerate(targets.items()):
            of_proxy = {"authorization": {"credentials": key}, "static_configs": [{"targets": [address]}]}
            jobs.append({"job_name": f"warmroute-{number}", **of_proxy})
        files = [] if rules is None else [str(rules)]
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps({**config, "rule_files": files}))  # JSON is YAML, too
        self._log_file = folder / "log"
        command = [str(ROOT / "scripts/prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", "--enable-feature=exemplar-storage"]
        command += [f"--web.listen-address={self.url.removeprefix('http://')}"]
        with self._log_file.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def ready(self) -> "Prometheus":
        """Wait until it answers."""

        def answers() -> bool:
            assert self._process.poll() is None, self.log()
            try:
                return httpx.get(f"{self.url}/-/ready", verify=PLAIN).status_code == 200
            except httpx.TransportError:
                return False

        until(answers, "Prometheus answers", 60.0)
        return self

    def query(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of an instant query."""
        found = self._ask("query", {"query": expr})["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def exemplars(self, selector: str, since_s: float, until_s: float) -> list[dict[str, Any]]:
        """The exemplars of a histogram's buckets."""
        asked = {"query": selector, "start": str(since_s), "end": str(until_s)}
        return [exemplar for series in self._ask("query_exemplars", asked) for exemplar in series["exemplars"]]

    def log(self) -> str:
        """What it has printed."""
        return self._log_file.read_text()

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(seconds(10))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, what: str, asked: dict[str, str]) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=asked, verify=PLAIN)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]
