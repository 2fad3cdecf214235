"""The ports of an SGLang server, in a plan and on a CPU."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a server. Each request to a decode server names the `bootstrap` port of a prefill server."""

    http: int
    bootstrap: int
    distributed: int
    kv_events: int
    kv_replay: int
