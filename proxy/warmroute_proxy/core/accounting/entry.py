"""Defines the ledger entry of one logical request, and its form on disk. `entry_steps` has its state transitions.

An entry is written as an array of its fields in their order, because names would take a third of the record. `record`
makes the line that is written to the journal, a file, when the request is dispatched and again when it has ended.
`Entry.read` parses such a line, even if it has the older form with names. The fields that are set at the beginning come
first, then those that are summed up when the entry moves from the journal to the SQLite file. `usage` comes last: it is
null while the request is under way.
"""

from typing import Final, Literal

import msgspec

from warmroute.contract.money import Rates

State = Literal["open", "dispatched", "settled", "interrupted"]
Outcome = Literal["completed", "client_left", "refused", "engine_error", "cut_off", "interrupted", "voided", "credited"]

UNDER_WAY: Final = ("open", "dispatched")
_NO_WORKERS: Final = msgspec.Raw(b"[]")
_NO_USAGE: Final = msgspec.Raw(b"null")
_encode: Final = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, array_like=True, gc=False):
    """One logical request from its dispatch to its row in the ledger. Times are unix seconds, given by the caller.

    `workers` (as JSON) and `predicted_cached` belong to the last attempt. `usage`: the usage object that the client
    gets.
    """

    id: str
    tenant: str
    session: str | None
    lineage: str
    turn: int
    region: str
    model: str
    route: str
    stream: bool
    rates: Rates
    opened_at: float
    forwarded_from: str | None = None
    state: State = "open"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    list_nanousd: int = 0
    price_nanousd: int = 0
    outcome: Outcome | None = None
    status: int = 0
    rids: list[str] = []
    workers: msgspec.Raw = _NO_WORKERS
    predicted_cached: int = 0
    settled_at: float = 0.0
    proxy_ms: float | None = None
    ttft_ms: float | None = None
    usage: msgspec.Raw = _NO_USAGE

    @staticmethod
    def read(record: bytes | str) -> "Entry":
        """Parse a line that `record` made. Raises: msgspec.DecodeError."""
        try:
            return _decode(record)
        except msgspec.ValidationError:
            return Entry(**msgspec.structs.asdict(_decode_named(record)))

    @property
    def ended(self) -> bool:
        return self.state not in UNDER_WAY

    def receipt(self) -> "StoredReceipt":
        """Decode the receipt in `usage`. An entry that is under way has an empty one."""
        found = _decode_usage(self.usage)
        return StoredReceipt() if found is None else found.warmroute

    def record(self) -> bytes:
        """The entry as one line of JSON; a later line of an entry replaces an earlier one."""
        return _encode(self)


class StoredReceipt(msgspec.Struct):
    """The members that are read again of the receipt in a row. A member that the receipt lacks is empty."""

    loss: dict[str, int] = {}
    cached: dict[str, int] = {}
    cache_write: dict[str, int] = {}
    estimated: list[str] = []
    continued: msgspec.Raw | None = None
    kind: str = ""
    key: str = ""
    """The id of the API key."""

    harness: str = ""
    price_nanousd: int | None = None
    credit: dict[str, int] = {}

    @property
    def credit_nanousd(self) -> int:
        """The credit that the receipt names. A separate row books it."""
        return self.credit.get("nanousd", 0)


class _Usage(msgspec.Struct):
    warmroute: StoredReceipt = msgspec.field(default_factory=StoredReceipt)


COLUMNS: Final = tuple(name for name in Entry.__struct_fields__ if name != "rates")
"""The columns of a row: all fields but the rates, which the receipt in `usage` shows with their price book's name."""

UNDER_WAY_END: Final = "null]"
"""The end of a record that has no usage yet."""

_Named: Final = msgspec.defstruct("_Named", [(field.name, field.type) for field in msgspec.structs.fields(Entry)])
_decode: Final = msgspec.json.Decoder(Entry).decode
_decode_named: Final = msgspec.json.Decoder(_Named).decode
_decode_usage: Final = msgspec.json.Decoder(_Usage | None).decode
