"""Asks the proxy of a launch to drain an engine, and to give it work again."""

from collections.abc import Callable
from urllib.parse import quote

from warmroute_cli.api import Api, ApiError
from warmroute_proxy.server.base.secrets import SecretError


class ProxyDrains:
    """The drain orders of one proxy. All raise OSError if it does not answer."""

    def __init__(self, admin_url: str, admin_key: Callable[[], str]) -> None:
        """`admin_key`: as it is now; it may raise SecretError."""
        self._admin_url = admin_url
        self._admin_key = admin_key

    def drain(self, engine: str) -> bool:
        """No new work. False if an operator had it drained already."""
        found = self._ask(engine, "GET")
        since = found["draining_since"]
        if isinstance(since, dict) and "operator" in since:
            return False
        self._ask(engine, "POST")
        return True

    def is_drained(self, engine: str) -> bool:
        found = self._ask(engine, "GET")
        return bool(found["drained"]) or found["state"] == "down"

    def undrain(self, engine: str) -> None:
        """It may get work again."""
        self._ask(engine, "DELETE")

    def _ask(self, engine: str, method: str) -> dict[str, object]:
        try:
            api = Api(self._admin_url, self._admin_key())
            found: dict[str, object] = api.ask(f"/admin/engines/{quote(engine, safe='')}/drain", method=method)
        except (ApiError, SecretError) as error:
            raise OSError(str(error)) from None
        return found


class NoDrains:
    """On a node without a proxy: nothing to ask."""

    def drain(self, engine: str) -> bool:
        raise OSError(f"no proxy runs on this node: drain {engine} by `warmroute engines drain` if it does")

    def is_drained(self, engine: str) -> bool:
        """Never asked."""
        del engine
        return True

    def undrain(self, engine: str) -> None:
        """Never asked."""
        del engine
