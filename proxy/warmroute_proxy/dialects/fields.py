"""The check of a request's members: each is on the dialect's list with a type and bounds, or does not reach an engine.

An engine parses a member that a proxy passes on, and some values end its process: a count of log probabilities above
the vocabulary, a token id outside of it, a `top_k` that overflows (sglang #40076, #8383, #31908, #36856). So a member
passes only if its name is on the list and its value is within the bounds there. `null` is an absent member.

What happens to a member that is not on the list is the tenant's `unlisted` setting:

    drop     the engine does not see it, and the receipt names it
    pass     the engine sees it as it came
    refuse   the request gets a 400
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

import msgspec

from warmroute_proxy.dialects.json_bounds import depth_of

MAX_NAMED_FIELDS: Final = 32
"""Names of dropped fields that a receipt lists; further ones are dropped all the same."""

Check = Callable[[Any], str | None]
"""Given the decoded value: what is wrong with it, or None."""


class Unlisted(Enum):
    """What happens to members that are not on the list."""

    DROP = "drop"
    PASS = "pass"  # noqa: S105 - no password
    REFUSE = "refuse"


class FieldError(ValueError):
    """A member that must not reach an engine. `code` is the error code that the client gets."""

    def __init__(self, field: str, problem: str, code: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.code = code


class Permissions(msgspec.Struct, frozen=True):
    """What a tenant and its model allow.

    `grants` names the fields that need a permission and have it. `vocabulary` is the number of token ids of the model;
    None where it is unknown, and then no field with token ids passes.
    """

    grants: frozenset[str] = frozenset()
    unlisted: Unlisted = Unlisted.DROP
    vocabulary: int | None = None


NO_PERMISSIONS: Final = Permissions()


class Field:
    """One field: a type with bounds, and what the type cannot express.

    `kind` is a type for msgspec, bounds included; None takes any JSON and decodes nothing. `max_bytes` and `max_depth`
    bound the raw JSON. `token_ids` finds the token ids in a decoded value. A field with `needs_grant` passes only for
    tenants that are granted its name.
    """

    __slots__ = ("_decode", "check", "max_bytes", "max_depth", "needs_grant", "token_ids")

    def __init__(
        self,
        kind: Any,
        *,
        max_bytes: int | None = None,
        max_depth: int | None = None,
        check: Check | None = None,
        token_ids: Callable[[Any], list[int]] | None = None,
        needs_grant: bool = False,
    ) -> None:
        self._decode = None if kind is None else msgspec.json.Decoder(kind | None).decode
        self.max_bytes = max_bytes
        self.max_depth = max_depth
        self.check = check
        self.token_ids = token_ids
        self.needs_grant = needs_grant

    def examine(self, name: str, raw: msgspec.Raw, allowed: Permissions) -> None:
        """Raise `FieldError` unless the value may reach an engine."""
        if self.max_bytes is not None and len(memoryview(raw)) > self.max_bytes:
            raise FieldError(name, f"has more than {self.max_bytes} bytes of JSON", "invalid_value")
        if self.max_depth is not None and depth_of(bytes(raw)) > self.max_depth:
            raise FieldError(name, f"nests deeper than {self.max_depth} levels", "invalid_value")
        if self._decode is None:
            return
        try:
            value = self._decode(raw)
        except msgspec.ValidationError as error:
            raise FieldError(name, f"is not allowed: {error}", "invalid_value") from None
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise FieldError(name, f"cannot be read: {error}", "invalid_value") from None
        if value is None:
            return
        if self.needs_grant and name not in allowed.grants:
            problem = "is not enabled for this API key: it lets an engine run a client's grammar; ask the operator"
            raise FieldError(name, problem, "field_not_allowed")
        if self.token_ids is not None:
            _check_token_ids(name, self.token_ids(value), allowed.vocabulary)
        wrong = self.check(value) if self.check is not None else None
        if wrong is not None:
            raise FieldError(name, wrong, "invalid_value")


def _check_token_ids(name: str, ids: list[int], vocabulary: int | None) -> None:
    """Token ids outside the vocabulary end an engine's process."""
    if not ids:
        return
    if vocabulary is None:
        problem = "has token ids, and the proxy does not know the model's vocabulary; send text instead"
        raise FieldError(name, problem, "token_ids_not_allowed")
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise FieldError(name, f"has a token id that is not between 0 and {vocabulary - 1}", "invalid_value")


def unlisted_fields(
    listed: Mapping[str, Field], members: Mapping[str, msgspec.Raw], allowed: Permissions
) -> tuple[str, ...]:
    """Check all members, and return the names of those to drop; raise `FieldError` for the first that may not pass."""
    drop = []
    for name, raw in members.items():
        field = listed.get(name)
        if field is not None:
            field.examine(name, raw, allowed)
        elif allowed.unlisted is Unlisted.REFUSE:
            raise FieldError(name[:100], "is not a field of this API that the proxy knows; remove it", "unknown_field")
        elif allowed.unlisted is Unlisted.DROP:
            drop.append(name)
    return tuple(drop)
