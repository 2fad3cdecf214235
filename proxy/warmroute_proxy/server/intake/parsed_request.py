"""What a request is read as: the facts that placement decides on, and everything a dispatch needs."""

from collections.abc import Mapping
from typing import Any

import msgspec

from warmroute_proxy.core.prompt.facts import Facts
from warmroute_proxy.server.base.config import ModelConfig, TenantConfig
from warmroute_proxy.server.intake.body import AnyBody


class Intake(msgspec.Struct, gc=False):
    """A request that may be dispatched. `session` is the 16 hex digits that stand for its key, or None."""

    tenant: TenantConfig
    route: str
    body: AnyBody
    model: ModelConfig
    alias: str | None
    stream: bool
    include_usage: bool
    stream_options: Mapping[str, Any]
    keep_sglext: bool
    choices: int
    prompts: int
    metadata: dict[str, Any] | None
    """What goes to the engine instead of the client's `metadata`, where that names a session."""
    salt: str
    session: str | None
    facts: Facts
    forwarded_from: str | None

    @property
    def wire_model(self) -> str | None:
        """The name that goes to engines where the client used an alias."""
        return self.model.name if self.alias else None

    @property
    def several(self) -> bool:
        """Whether the engine makes several requests of it, with ids of their own, which share what they compute."""
        return self.choices > 1 or self.prompts > 1
