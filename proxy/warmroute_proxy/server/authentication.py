"""Finds the tenant of a request by its API key, or by the signed token of another proxy that forwards the request.

A token contains a claim, which names the tenant. Keys and tokens are checked as soon as a request's head has come,
before its body is read.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from warmroute.contract import headers as names
from warmroute_proxy.server.base.config import Config, TenantConfig
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import MAX_CACHED, ApiKeys
from warmroute_proxy.server.dialects.routes import KEY_HEADERS
from warmroute_proxy.server.http.exchange import Request
from warmroute_proxy.server.regions.forward_claim import Forward, Forwards, used_before
from warmroute_proxy.server.regions.region_nonces import RegionNonces

PROXIES: Final = "other proxies"
"""The name under which connections for requests of proxies themselves are counted. Tenants' names have no spaces."""


def bearer(request: Request) -> bytes:
    """The API key of a request; empty if it does not have one."""
    value = request.headers.get("authorization", "")
    scheme, _, key = value.partition(" ")
    if scheme.lower() != "bearer":
        key = next((found for name in KEY_HEADERS if (found := request.headers.get(name))), "")
    return key.strip().encode("latin-1", "replace")


class KnownKey(NamedTuple):
    """The tenant of a key, and the key's id."""

    tenant: TenantConfig
    key_id: str


class Authentication:
    """Finds the tenants of requests. The methods raise a `Refusal` if a request has no valid key or token."""

    def __init__(
        self, config: Config, api_keys: ApiKeys | None, forwards: Forwards, region_nonces: RegionNonces | None = None
    ) -> None:
        """`api_keys`: the keys of the config and the database, which are kept up to date elsewhere; if None, the keys
        of the config are used. `region_nonces`: None if proxies do not share a Redis.
        """
        self._keys_of_config = api_keys is None
        self._tenants = config.tenant_by_name
        self._api_keys = ApiKeys(config.tenant_by_sha256()) if api_keys is None else api_keys
        self._forwards = forwards
        self._region_nonces = region_nonces
        self._known: dict[str, KnownKey] = {}  # valid keys by `Authorization` header; cleared when full

    def replace(self, config: Config) -> None:
        """Use the tenants of another config, and forget which keys were valid."""
        self._tenants = config.tenant_by_name
        if self._keys_of_config:
            self._api_keys.replace(config.tenant_by_sha256())
        self._known.clear()

    def forget(self) -> None:
        self._known.clear()

    def of_head(self, request: Request) -> KnownKey | None:
        """The tenant and id of a request's key; None if another proxy forwards the request with a valid token."""
        known = self._known.get(request.headers.get("authorization", ""))
        if known is not None:
            return known
        if not is_forwarded(request):
            return self._by_key(request)
        request.tenant = self._forwards.check_head(request.headers[names.FORWARD]).tenant
        return None

    def check_proxy(self, request: Request, max_bytes: int) -> None:
        """Check by its head that another proxy itself sends a request, with a body of at most `max_bytes`."""
        if request.method != "POST" or not is_forwarded(request):
            raise Refusal(404, f"there is no route {request.path}", code="not_found")
        if request.length is None or request.length > max_bytes:
            raise Refusal(413, f"{request.path} takes at most {max_bytes} bytes", code="request_too_large")
        self._forwards.check_head(request.headers[names.FORWARD])
        request.tenant = PROXIES

    def of_whole(self, request: Request) -> tuple[TenantConfig, Forward | None]:
        """The tenant of a whole request, and the forwarding proxy's claim; None if no proxy forwards the request."""
        known = self._known.get(request.headers.get("authorization", ""))
        if known is not None:
            return known.tenant, None
        if not is_forwarded(request):
            return self._by_key(request).tenant, None
        return self.of_forwarded(request)

    def of_forwarded_head(self, request: Request) -> tuple[TenantConfig, Forward]:
        """The tenant and claim of a forwarded request whose body has not come. Does not use up the claim's token."""
        claim = self._forwards.check_head(request.headers[names.FORWARD])
        return self._vouched_for(claim), claim

    def of_forwarded(self, request: Request) -> tuple[TenantConfig, Forward]:
        """The tenant and claim of a whole forwarded request. Uses up the claim's token."""
        claim = self._forwards.check(request.headers[names.FORWARD], request.body_sha256())
        return self._vouched_for(claim), claim

    def once_in_region(self, claim: Forward | None, answered: Callable[[Refusal | None], None]) -> None:
        """Ask whether another proxy of the region has already used a claim's token.

        `claim`: None if the request was not forwarded. `answered` gets a refusal if the request must not begin, else
        None. Without a claim or a shared Redis, it gets None at once.
        """
        if claim is None or self._region_nonces is None:
            answered(None)
        else:
            self._region_nonces.spend(claim, lambda fresh: answered(None if fresh else used_before()))

    def may_be_served(self, tenant: str, region: str) -> bool:
        """Whether a tenant of this name exists and may be served in a region."""
        found = self._tenants.get(tenant)
        return found is not None and found.may_be_served(region)

    def _vouched_for(self, claim: Forward) -> TenantConfig:
        tenant = self._tenants.get(claim.tenant)
        if tenant is None or tenant.share_group != claim.share_group:
            raise Refusal(401, "the forwarding proxy knows a tenant that this one does not", code="invalid_forward")
        return tenant

    def _by_key(self, request: Request) -> KnownKey:
        key = bearer(request)
        if not key:
            raise Refusal(401, "no API key: send it as `Authorization: Bearer <key>`", code="invalid_api_key")
        owner = self._api_keys.owner_of(key)
        if owner is None:
            raise Refusal(401, "the API key is not known here", code="invalid_api_key")
        known = KnownKey(self._tenants[owner.tenant], owner.key_id)
        value = request.headers.get("authorization", "")
        if value[:7].lower() == "bearer " and value[7:].strip():  # the key came in this header, not in another
            if len(self._known) >= MAX_CACHED:
                self._known.clear()
            self._known[value] = known
        return known


def is_forwarded(request: Request) -> bool:
    """Whether another proxy forwards a request. A request with a key is a client's, and its token is ignored."""
    return names.FORWARD in request.headers and not bearer(request)
