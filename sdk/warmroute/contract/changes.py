"""The changes that a proxy made to a request on its way to an engine, as members of its receipt (`usage.warmroute`)."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Changes(NamedTuple):
    """The differences from the request that the client sent. The receipt has a member for each that is not empty.

    `dropped_fields`: names of members that no engine got. `dropped_blocks`: the number of message parts that no engine
    got, by type. `cache_control`: the number of `cache_control` marks that were removed. `normalised`: the rules by
    which the proxy removed text that changes from turn to turn. `not_normalised`: rules that would have removed text,
    but are switched off. The receipt names `not_normalised` as `prefix_changed_by`, and only if tokens have the loss
    class `prefix_changed`.
    """

    dropped_fields: tuple[str, ...]
    dropped_blocks: Mapping[str, int]
    cache_control: int
    normalised: tuple[str, ...]
    not_normalised: tuple[str, ...]

    def members(self, loss: Mapping[str, int]) -> dict[str, object]:
        """The members that a turn's receipt has. `loss`: the turn's uncached tokens by loss class."""
        found: dict[str, object] = {}
        if self.dropped_fields:
            found["dropped_fields"] = self.dropped_fields
        if self.dropped_blocks:
            found["dropped_blocks"] = self.dropped_blocks
        if self.cache_control:
            found["cache_control"] = self.cache_control
        if self.normalised:
            found["normalised"] = self.normalised
        if self.not_normalised and "prefix_changed" in loss:
            found["prefix_changed_by"] = self.not_normalised
        return found


NO_CHANGES: Final = Changes((), {}, 0, (), ())
