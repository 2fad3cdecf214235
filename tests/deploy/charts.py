"""Renders the chart by Helm's library, and reads what comes out."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from .container import ROOT

CHART: Final = ROOT / "deploy/helm/warmroute"


class Rendered(NamedTuple):
    """What Helm makes of the chart, or why it does not."""

    manifests: list[dict[str, Any]]
    refused: str

    def one(self, kind: str, name: str = "east-warmroute") -> dict[str, Any]:
        """The manifest of this kind and name."""
        found = [each for each in self.manifests if each["kind"] == kind and each["metadata"]["name"] == name]
        assert len(found) == 1, [(each["kind"], each["metadata"]["name"]) for each in self.manifests]
        return found[0]

    def kinds(self) -> set[str]:
        """What kinds there are."""
        return {each["kind"] for each in self.manifests}

    def config(self) -> str:
        """The proxy's TOML."""
        return str(self.one("ConfigMap")["data"]["warmroute.toml"])

    def pod(self) -> dict[str, Any]:
        """The specification of a proxy's pod."""
        return dict(self.one("StatefulSet")["spec"]["template"]["spec"])


def render(values: dict[str, Any]) -> Rendered:
    """The chart with these values, as release `east` in the namespace `prod`."""
    return _rendered("east", json.dumps(values), [])


def accepted(values: dict[str, Any]) -> Rendered:
    """The chart with values that it takes."""
    found = render(values)
    assert not found.refused, found.refused
    return found


def render_with(name: str, pairs: list[str], files: list[Path]) -> Rendered:
    """The chart as `helm install NAME` takes it: with `--set` of the pairs, and `--values` of at most one file."""
    text = files[0].read_text() if files else "{}"
    return _rendered(name, text, pairs)


def notes(values: dict[str, Any]) -> str:
    """What `helm install` would print."""
    (text,) = (text for path, text in _texts("east", json.dumps(values), []).items() if path.endswith("NOTES.txt"))
    return text


def _rendered(name: str, values: str, pairs: list[str]) -> Rendered:
    try:
        templates = _texts(name, values, pairs)
    except subprocess.CalledProcessError as error:
        return Rendered([], str(error.stderr))
    texts = [text for path, text in templates.items() if not path.endswith("NOTES.txt")]
    return Rendered([each for text in texts for each in yaml.safe_load_all(text) if each], "")


def _texts(name: str, values: str, pairs: list[str]) -> dict[str, str]:
    """The rendered template of each path. Raises: CalledProcessError."""
    command = [str(ROOT / ".venv-deploy/bin/python"), str(ROOT / "scripts/chart.py"), str(CHART), name, "prod", *pairs]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert not found["problems"], found["problems"]
    return dict(found["templates"])
