"""What a proxy changed in a request on its way to an engine: the members of the receipt that say so."""

from collections.abc import Mapping
from typing import Final, NamedTuple


class Changes(NamedTuple):
    """What is not as the client sent it. Each is a member of the receipt, if there is something to say.

    `dropped_fields`: names of members that no engine got. `dropped_blocks`: how many parts of messages no engine got,
    by their type. `cache_control`: how many such marks were taken off. `normalised`: the rules that took something out
    of the prompt. `not_normalised`: the rules that would have, and are off; the receipt has them only as
    `prefix_changed_by`, beside the loss class `prefix_changed`.
    """

    dropped_fields: tuple[str, ...]
    dropped_blocks: Mapping[str, int]
    cache_control: int
    normalised: tuple[str, ...]
    not_normalised: tuple[str, ...]

    def members(self, loss: Mapping[str, int]) -> dict[str, object]:
        """The members of the receipt of a turn with these losses."""
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
