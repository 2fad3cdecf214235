"""The ports of an SGLang server, in a plan and on a CPU."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

Port = Annotated[int, Meta(ge=1, le=65_535)]


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a server. Each request to a decode server names the `bootstrap` port of a prefill server."""

    http: Port
    bootstrap: Port
    distributed: Port
    kv_events: Port
    kv_replay: Port
