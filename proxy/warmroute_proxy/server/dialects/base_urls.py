"""Finds the path that a client means if its `base_url` has too little or too much.

Programs add a path of their own to the address that a user sets, and users set the address with `/v1`, without it, with
a slash behind it, or with the whole path of an API. Azure's clients put the deployment into the path.
"""

from typing import Final
from urllib.parse import unquote

from warmroute_proxy.server.dialects.routes import DIALECT_OF_PATH, PREFIXES
from warmroute_proxy.server.intake.parsed_request import ROUTES

_OWN_PREFIXES: Final = tuple(prefix for prefix in PREFIXES if prefix != "/v1/")

_ENDINGS: Final = sorted(
    [
        *((path, path.split("/")[2:]) for path in (*ROUTES, *DIALECT_OF_PATH, "/v1/models")),
        *((f"{prefix}models", [prefix.strip("/"), "models"]) for prefix in _OWN_PREFIXES),
    ],
    key=lambda end: -len(end[1]),
)
"""The paths that are served, and the segments by which each is recognised; those with most segments first."""

_BEFORE: Final = frozenset({"v1", "api", "openai", "anthropic", *(segment for _, end in _ENDINGS for segment in end)})
"""The segments that may stand before them."""

_DEPLOYMENTS: Final = ["openai", "deployments"]
"""The segments of an Azure path before the name of the deployment."""


def meant_path(path: str) -> str:
    """The served path that a path stands for; the path itself if it stands for none."""
    parts = _parts(path)
    if parts[:2] == _DEPLOYMENTS:
        parts = parts[3:]
    for served, end in _ENDINGS:
        if parts[-len(end) :] == end and _BEFORE.issuperset(parts[: -len(end)]):
            return served
    for prefix in _OWN_PREFIXES:
        if parts[-3:-1] == [prefix.strip("/"), "models"] and _BEFORE.issuperset(parts[:-3]):
            return f"{prefix}models/{parts[-1]}"
    return path


def deployment_of(path: str) -> str:
    """The name of the deployment in an Azure path; empty for other paths."""
    *before, name = _parts(path)[:3] or [""]
    return unquote(name) if before == _DEPLOYMENTS else ""


def _parts(path: str) -> list[str]:
    return [segment for segment in path.split("/") if segment]
