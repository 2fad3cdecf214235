"""Checks a request's members: those on the dialect's list pass within their type and bounds; tenants decide on others.

Engines parse the members that a proxy passes on, and some values end an engine's process: a count of log probabilities
above the vocabulary, a token id outside of it, a `top_k` that overflows (sglang #40076, #8383, #31908, #36856). So a
member on the list passes only if its value is within the bounds there. `null` counts as an absent member, and no
engine gets it: SGLang refuses `"n": null`, which OpenAI takes.

The tenant's `unlisted` setting decides what happens to a member that is not on the list:

    drop     the engine does not see it, and the receipt (in the answer's `usage`) names it
    pass     the engine sees it as it came
    refuse   the request gets a 400
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from warmroute_proxy.dialects.work import is_deeper

MAX_NAMED_FIELDS: Final = 32
"""How many names of dropped fields a receipt lists; further fields are dropped without a name."""

MAX_NAME_CHARS: Final = 64
"""The length of a field's name in a receipt or an error."""

_NONE: Final[frozenset[str]] = frozenset()
_NULL: Final = msgspec.Raw(b"null")

Check = Callable[[Any], str | None]
"""Takes the decoded value, and returns what is wrong with it, or None."""

Unlisted = Literal["drop", "pass", "refuse"]
"""The treatment of members that are not on the list."""


class FieldError(ValueError):
    """A member must not reach an engine. `code` is the error code that the client gets."""

    def __init__(self, field: str, problem: str, code: str) -> None:
        shown = _shown(field)
        super().__init__(f"field {shown!r} {problem}")
        self.field = shown
        self.code = code


class Permissions(msgspec.Struct, frozen=True):
    """What a tenant and its model allow.

    `grants` names the fields that need a permission and have it. `vocabulary` is the number of token ids of the model.
    If the number is unknown (None), no field with token ids passes.
    """

    grants: frozenset[str] = frozenset()
    unlisted: Unlisted = "drop"
    vocabulary: int | None = None


NO_PERMISSIONS: Final = Permissions()


def names_of(fields: frozenset[str]) -> tuple[str, ...]:
    """A receipt's list of names that a client chose: the first `MAX_NAMED_FIELDS`, each shortened."""
    return tuple(_shown(name) for name in sorted(fields)[:MAX_NAMED_FIELDS])


def _shown(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARS else f"{name[:MAX_NAME_CHARS]}..."


class Field:
    """One field: a type with bounds, and checks that the type cannot express.

    `kind` is a type for msgspec, bounds included; None takes any JSON and decodes nothing. `max_bytes` and `max_depth`
    bound the raw JSON. `token_ids` finds the token ids in a decoded value. A field with `needs_grant` passes only for
    tenants with a grant for its name.
    """

    __slots__ = ("_check", "_decode", "_max_bytes", "_max_depth", "_token_ids", "needs_grant")

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
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._check = check
        self._token_ids = token_ids
        self.needs_grant = needs_grant

    def read(self, name: str, raw: msgspec.Raw, allowed: Permissions) -> Any:
        """The decoded value; None if `kind` is None. Raises `FieldError` if the member must not reach an engine."""
        if self._max_bytes is not None and len(memoryview(raw)) > self._max_bytes:
            raise FieldError(name, f"has more than {self._max_bytes} bytes of JSON", "invalid_value")
        if self._max_depth is not None and is_deeper(bytes(raw), self._max_depth):
            raise FieldError(name, f"nests deeper than {self._max_depth} levels", "invalid_value")
        if self._decode is None:
            return None
        try:
            value = self._decode(raw)
        except msgspec.ValidationError as error:
            if ", got " in str(error):
                raise FieldError(name, f"has the wrong type: {error}", "invalid_type") from None
            raise FieldError(name, f"is out of bounds: {error}", "invalid_value") from None
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise FieldError(name, f"is not valid JSON: {error}", "invalid_json") from None
        if value is not None:
            self._check_value(name, value, allowed)
        return value

    def _check_value(self, name: str, value: Any, allowed: Permissions) -> None:
        if self.needs_grant and name not in allowed.grants:
            problem = "is not enabled for this API key: it lets an engine run a client's grammar; ask the operator"
            raise FieldError(name, problem, "field_not_allowed")
        if self._token_ids is not None:
            _check_token_ids(name, self._token_ids(value), allowed.vocabulary)
        wrong = self._check(value) if self._check is not None else None
        if wrong is not None:
            raise FieldError(name, wrong, "invalid_value")


def _check_token_ids(name: str, ids: list[int], vocabulary: int | None) -> None:
    """Refuse token ids outside the vocabulary: they end an engine's process."""
    if not ids:
        return
    if vocabulary is None:
        problem = "has token ids, and the proxy does not know the model's vocabulary; send text instead"
        raise FieldError(name, problem, "token_ids_not_allowed")
    if min(ids) < 0 or max(ids) >= vocabulary:
        raise FieldError(name, f"has a token id that is not between 0 and {vocabulary - 1}", "invalid_value")


class Members(NamedTuple):
    """The members of a body after the check.

    `values` are the decoded members. Members in `dropped` must not reach an engine, and neither must those in `nulls`,
    which are null. `bounded`: all that reaches an engine is on the list, within bounds, and needs no grant.
    """

    values: dict[str, Any]
    dropped: frozenset[str]
    bounded: bool
    nulls: frozenset[str] = _NONE


class FieldsReader:
    """Reads bodies that all have members with these names, so that the fields are looked up only once."""

    __slots__ = ("_fields", "_grants", "_unlisted")

    def __init__(self, listed: Mapping[str, Field], names: Iterable[str]) -> None:
        names = tuple(names)
        self._fields = tuple((name, listed[name]) for name in names if name in listed)
        self._unlisted = frozenset(name for name in names if name not in listed)
        self._grants = any(field.needs_grant for _, field in self._fields)

    def read(self, members: Mapping[str, msgspec.Raw], allowed: Permissions) -> Members:
        """Check and decode all members. Raises `FieldError` for the first that must not pass."""
        values = {name: field.read(name, members[name], allowed) for name, field in self._fields}
        nulls = _NONE
        if None in values.values():
            nulls = frozenset([name for name, value in values.items() if value is None and members[name] == _NULL])
        unlisted = self._unlisted
        if unlisted and allowed.unlisted == "refuse":
            problem = "is not a field of this API that the proxy knows; remove it"
            raise FieldError(min(unlisted), problem, "unknown_field")
        if unlisted and allowed.unlisted == "pass":
            return Members(values, _NONE, bounded=False, nulls=nulls)
        return Members(values, unlisted, bounded=not self._grants, nulls=nulls)
