"""Types of bodies and answers of the control plane. Some types of the directory are in `stores.directory`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType

from warmroute.contract.receipt import RATES
from warmroute_proxy.core.base.role import Role
from warmroute_proxy.server.base.config_difference import Kind
from warmroute_proxy.server.base.config_schema import settings_schema
from warmroute_proxy.server.base.config_table import NAME
from warmroute_proxy.server.ledger.usage_sums import MAX_LISTED
from warmroute_proxy.server.stores.directory.key_admin import MAX_LIFETIME_S, MAX_NOTE_CHARS, KeyId

T = TypeVar("T")

Json = dict[str, Any]
Name = Annotated[str, Meta(pattern=f"^{NAME.pattern}$")]
Count = Annotated[int, Meta(ge=0)]
Limit = Annotated[int, Meta(ge=1, le=MAX_LISTED)]
Since = Annotated[str, Meta(description="A time ago (`1h`, `7d`), a day (`2026-11-23`, UTC) or unix seconds.")]
Hash = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
By = Literal["session", "model", "harness", "agent", "day", "hour"]
ByForAll = Literal["session", "model", "harness", "agent", "day", "hour", "tenant"]
Rates = Annotated[dict[str, str], Meta(extra_json_schema={"properties": {key: {"type": "string"} for key in RATES}})]

DAY_S: Final = 86_400.0
Lifetime = Annotated[float, Meta(gt=0, le=MAX_LIFETIME_S)]
Note = Annotated[str, Meta(extra_json_schema={"maxLength": MAX_NOTE_CHARS, "pattern": "^[ -~]*$"})]
OF_TENANT: Final = {"tenant": Name}
SESSION: Final = {"x-session-affinity": {"type": "string", "maxLength": 256}}


class ErrorDetail(Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(Struct):
    """OpenAI's error object."""

    error: ErrorDetail


class Page(Struct, Generic[T], kw_only=True):
    """A page of a list. `has_more`: more follow."""

    object: Literal["list"] = "list"
    data: list[T]
    has_more: bool


class ListOf(Struct, Generic[T], kw_only=True):
    """A whole list."""

    object: Literal["list"] = "list"
    data: list[T]


class Rows(ListOf[Json]):
    """Rows of the ledger, or keys."""


class Health(Struct):
    status: str


class Ready(Struct):
    """Whether requests should be sent here, and why not; `degraded`: what does not work as it should."""

    status: Literal["ready", "not ready"]
    region: str
    version: str
    build: Literal["compiled", "pure"]
    reasons: list[str]
    forward_versions: list[int]
    """The oldest and the newest version of messages between proxies that this proxy reads."""
    degraded: list[str] | UnsetType = UNSET
    elsewhere: bool | UnsetType = UNSET
    """Whether no engine of this region takes turns, and another region serves them all."""
    counts_alone: bool | UnsetType = UNSET
    """Whether each proxy of the region counts budgets and limits by itself, because its config says so."""


class Decisions(Struct):
    decisions: list[dict[str, Any]]


class Model(Struct, kw_only=True):
    """A model, as OpenAI lists it, with its price."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "warmroute"
    rates_usd_per_mtok: Rates
    price_book: str
    max_model_len: Count | UnsetType = UNSET


class Tenant(Struct, kw_only=True):
    """A tenant of the database. `is_used`: False if the config has a tenant of the same name, which is used instead."""

    name: Name
    settings: dict[str, Any] | UnsetType = UNSET
    made_at: datetime | UnsetType = UNSET
    changed_at: datetime | UnsetType = UNSET
    source: Literal["config", "database"]
    is_used: bool = True


class RemovedTenant(Struct):
    name: Name
    removed: bool
    keys_revoked: Count


class RevokedKey(Struct):
    id: KeyId
    revoked: bool
    tenant: Name


class NewTenant(Struct, forbid_unknown_fields=True):
    """A tenant, with the settings of a [[tenant]]."""

    name: str
    settings: Annotated[dict[str, Any], Meta(extra_json_schema=settings_schema())] = {}


class ChangedTenant(Struct, forbid_unknown_fields=True):
    """Settings to set; null takes one away."""

    settings: dict[str, Any]


class NewKey(Struct, forbid_unknown_fields=True):
    """A key of a tenant. Without `lifetime_s` it never expires."""

    tenant: str
    note: Note = ""
    lifetime_s: Lifetime | None = None


class ChangedKey(Struct, forbid_unknown_fields=True):
    """Changes of a key. `lifetime_s`: counted from now; null: it never expires."""

    note: Note | UnsetType = UNSET
    lifetime_s: Lifetime | UnsetType | None = UNSET


class RotatedKey(Struct, forbid_unknown_fields=True):
    """`overlap_s`: how long the old key stays valid."""

    overlap_s: Annotated[float, Meta(ge=0, le=MAX_LIFETIME_S)] = DAY_S
    lifetime_s: Lifetime | None = None


class AppliedChange(Struct):
    """A difference of two configs. `name`: empty for a table that a config has once; `keys`: names only, no values."""

    table: str
    name: str
    change: Kind
    keys: tuple[str, ...]
    waits_for_restart: bool


class Reloaded(Struct):
    """What a config file changes. `applied`: False for a dry run, whose answer has no counts of processes."""

    config: str
    applied: bool
    changes: list[AppliedChange]
    waits_for_restart: list[str]
    processes: int | UnsetType = UNSET
    processes_behind: int | UnsetType = UNSET


class Viewer(Struct):
    """Who asks: an operator, or a tenant, who sees only its own turns."""

    role: Literal["operator", "tenant"]
    tenant: str | None
    tenants: list[str]
    region: str
    version: str
    tenants_left_out: int | UnsetType = UNSET


class Sums(Struct):
    """Sums over turns. `turns`: their number."""

    turns: Count


class Minutes(Sums):
    """Sums of the last hour. `complete`: false if some of them are not known."""

    minutes: list[Json]
    complete: bool


class Ladder(Struct):
    """Steps from what was possible to what was billed. `complete`: false if older turns were not read."""

    turns: int
    steps: list[Json]
    would_win_back: list[Json]
    groups: list[Json]
    complete: bool


class Budgets(Struct):
    """Limits and budgets, and what is left of them."""

    tenants: dict[str, Any]
    limits: dict[str, Any]
    budgets: list[dict[str, Any]]
    at_once: list[dict[str, Any]]
    left_out: Count


class ReceiptInWords(Struct):
    words: list[str]
    id: str | UnsetType = UNSET


class EngineState(Struct):
    """An engine. `drained`: it drains, and no request of this proxy runs there any more."""

    id: str
    url: str
    role: Role
    state: Literal["down", "draining", "open", "up"]
    draining_since: Mapping[str, float]
    running: Count
    re_prefills_waiting: Count
    drained: bool
    warm_tokens: Count | UnsetType = UNSET
    """KV tokens of sessions that the engine's workers hold, if the sizes of their KV pools are known."""
    warning: str | UnsetType = UNSET


class EngineList(Struct):
    engines: list[EngineState]
