"""Lists and adds price books in the database, for operators."""

from collections.abc import Sequence
from typing import Final

from warmroute_proxy.server.stores.database import ask_once
from warmroute_proxy.server.stores.price_table import NewBook, StoredBook, add_books, read_books
from warmroute_proxy.server.stores.store_state import Connection

CALL_S: Final = 10.0
_NONE_READ: Final = -1


class PriceAdmin:
    """Lists and adds price books for one operator. The methods raise: StoreAway, WrongSchema."""

    def __init__(self, dsn: str, who: str) -> None:
        self._dsn = dsn
        self._who = who

    def books(self) -> list[StoredBook]:
        """List all books, in the order in which they were added."""

        async def read(connection: Connection) -> list[StoredBook]:
            found = await read_books(connection, _NONE_READ)
            return found[1] if found is not None else []

        return ask_once(self._dsn, read, CALL_S)

    def add(self, new: Sequence[NewBook]) -> None:
        """Add all books or none. Raises: NotLater."""

        async def add(connection: Connection) -> None:
            await add_books(connection, new, self._who)

        ask_once(self._dsn, add, CALL_S)
