"""`x-warmroute-forward`: the token by which one proxy asks another to serve a request, signed under the fleet secret.

The token names the tenant and its share group (tenants that share their cache), the request (id, hash of the body), the
forwarding region, the region that shall serve the request, and a deadline. It is valid only in the serving region, for
30 s and only once: all processes of a proxy keep the nonces (random numbers) of used tokens (`shared_nonces`) until the
tokens are invalid anyway. Proxies of a region that share a Redis also share these nonces (`region_nonces`). Without a
Redis, anybody who has read a token can use it once more at each other proxy of the region. A request with a token is
not forwarded again, so it crosses the network between proxies at most once.

A proxy that starts does not know the nonces from before. So it refuses tokens issued more than `CLOCKS_APART_S` before
its start. Of the tokens that it accepted before its start, only those of the last 10 s can be used again.

The clocks of regions differ. So a token is refused as too old or too early only if its issue time is over 30 s away
from the present, and a deadline counts as missed only `CLOCKS_APART_S` later. Otherwise a proxy whose clock is ahead
would refuse short deadlines.

A clock may be set back. So nonces are kept by a steady clock, and a token is refused if it is as old as a token whose
nonce may have been dropped. Until the clock that was set back has caught up, forwards are refused, and requests are
served in the region where they came in.

The token names its version (`versions`); a version that this proxy cannot read is refused.

    token = base64url(json) "." hex(HMAC under the fleet secret, purpose "forward", of base64url(json))

While the fleet secret is rotated, a token is valid under each accepted secret.
"""

import base64
import hashlib
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from warmroute.contract.changes import NO_CHANGES, Changes
from warmroute_proxy.server.base.errors import Refusal
from warmroute_proxy.server.base.secrets import Secrets
from warmroute_proxy.server.processes.shared_nonces import SharedNonces
from warmroute_proxy.server.regions.versions import NEWEST, OLDEST, Versions

VALID_S: Final = 30.0
CLOCKS_APART_S: Final = 10.0
_PURPOSE: Final = "forward"
MAX_NONCES: Final = 200_000  # those of invalid tokens are dropped; with more valid tokens, forwards are refused


class Forward(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claims that a forwarding proxy signs.

    `region`: the forwarding proxy's region; `audience`: the region that may serve the request. `issued_s` and
    `deadline_s` are unix seconds. `route`: the route that the client called, if its request was translated to chat;
    `changes`: the changes that the forwarding proxy made to the request; `key`: the id of the client's API key;
    `rtt_ms`: the last measured round trip between the two regions; `v`: the version, or 0 in tokens older than
    versions.
    """

    tenant: str
    share_group: str
    request_id: str
    region: str
    audience: str
    issued_s: float
    deadline_s: float
    nonce: str
    body_sha256: str
    route: str | None = None
    changes: Changes = NO_CHANGES
    key: str = ""
    rtt_ms: float = 0.0
    v: int = 0


class Noted(NamedTuple):
    """Details of a client's request for its token. `Forward` has fields of these names."""

    route: str | None = None
    changes: Changes = NO_CHANGES
    key: str = ""
    rtt_ms: float = 0.0


NOTHING_NOTED: Final = Noted()

SHA256_OF_NOTHING: Final = hashlib.sha256(b"").hexdigest()


class Forwards:
    def __init__(
        self,
        secrets: Secrets,
        region: str,
        unix_clock: Callable[[], float],
        random_hex: Callable[[int], str],
        nonces: "Nonces | SharedNonces | None" = None,
        steady_clock: Callable[[], float] | None = None,
    ) -> None:
        """`region`: this proxy's region. `nonces`: the nonces that processes share; None if this process keeps its own.
        `steady_clock`: a clock that is never set, in seconds; None means `unix_clock`.
        """
        self._secrets = secrets
        self._region = region
        self._clock = unix_clock
        self._random_hex = random_hex
        self._nonces = nonces or Nonces()
        self._steady_clock = steady_clock or unix_clock
        self._newest = _NewestTaken()
        self._begun_s, self._begun_steady_s = unix_clock(), self._steady_clock()
        self.versions = Versions()
        """The version in which to sign tokens for each region."""

    def sign(
        self,
        tenant: str,
        share_group: str,
        request_id: str,
        audience: str,
        body_sha256: str,
        timeout_s: float,
        noted: Noted = NOTHING_NOTED,
        version: int | None = None,
    ) -> str:
        """Make the header's value for one request to a proxy of the region `audience`. `version`: a version that the
        proxy reads; None means the version that `versions` has for the region.
        """
        now = self._clock()
        claim = Forward(
            tenant,
            share_group,
            request_id,
            self._region,
            audience,
            now,
            now + timeout_s,
            self._random_hex(16),
            body_sha256,
            *noted,
            v=self.versions.of(audience) if version is None else version,
        )
        payload = base64.urlsafe_b64encode(msgspec.json.encode(claim))
        return f"{payload.decode()}.{self._secrets.fleet_mac(_PURPOSE, payload).hex()}"

    def check_head(self, token: str) -> Forward:
        """Check a token before the body has come, and return its claims. Raises: Refusal, if the token is forged or too
        old, or its deadline is past.
        """
        payload, _, mac = token.partition(".")
        if not self._secrets.is_fleet_mac(
            mac.encode("latin-1", "replace"), _PURPOSE, payload.encode("latin-1", "replace")
        ):
            raise Refusal(401, "the forward token is not signed by this fleet", code="invalid_forward")
        try:
            claim = msgspec.json.decode(base64.urlsafe_b64decode(payload), type=Forward)
        except (ValueError, msgspec.MsgspecError):
            raise Refusal(401, "the forward token is malformed", code="invalid_forward") from None
        if not OLDEST <= claim.v <= NEWEST:
            problem = f"the forward token is of version {claim.v}, this proxy reads {OLDEST} to {NEWEST}: update it"
            raise Refusal(401, problem, code="forward_version")
        if claim.audience != self._region:
            raise Refusal(401, "the forward token is for another region", code="invalid_forward")
        now = self._clock()
        if not -VALID_S <= now - claim.issued_s <= VALID_S:
            problem = "the forward token is older than 30 s, or from the future: compare the proxies' clocks"
            raise Refusal(401, problem, code="invalid_forward")
        if now > claim.deadline_s + CLOCKS_APART_S:
            raise Refusal(504, "the forwarded request is past its deadline", code="deadline_exceeded")
        return claim

    def check(self, token: str, body_sha256: str) -> Forward:
        """Check a token, and mark it as used. Raises: Refusal, as `check_head` does, and if the token was used before
        or is for another body.
        """
        claim = self.check_head(token)
        if claim.body_sha256 != body_sha256:
            raise Refusal(401, "the forward token is for another body", code="invalid_forward")
        self._spend(claim, self._steady_clock())
        return claim

    def _spend(self, claim: Forward, steady_s: float) -> None:
        starts = steady_s - self._begun_steady_s <= 2 * VALID_S
        if starts and claim.issued_s < self._begun_s - CLOCKS_APART_S:
            problem = "the forward token is older than this proxy's start, and may have been used before"
            raise Refusal(401, problem, code="invalid_forward")
        fresh = self._nonces.spend(claim.nonce, steady_s)
        if fresh is None:
            raise Refusal(503, "too many forwards", code="overloaded", retry_after_s=1)
        if not fresh:
            raise used_before()
        if not self._newest.take(claim.issued_s, steady_s):
            problem = "the forward token may have been used before: was a clock put back?"
            raise Refusal(401, problem, code="invalid_forward")


def used_before() -> Refusal:
    """The refusal of a token that was used before."""
    return Refusal(401, "the forward token was used before", code="invalid_forward")


class _NewestTaken:
    """Keeps the issue time of the newest token whose nonce may have been dropped. A nonce is dropped `2 * VALID_S`
    after its token was accepted; here, this time is exact to a second.
    """

    def __init__(self) -> None:
        self._dropped_s = float("-inf")  # the issue time
        self._taken: deque[tuple[float, float]] = deque()  # steady seconds, and the newest issue time until then

    def take(self, issued_s: float, steady_s: float) -> bool:
        """Accept a token if it is newer than all tokens whose nonces may have been dropped. Returns whether it is."""
        taken = self._taken
        while taken and steady_s - taken[0][0] > 2 * VALID_S:
            self._dropped_s = max(self._dropped_s, taken.popleft()[-1])
        if issued_s <= self._dropped_s:
            return False
        newest_s = max(issued_s, taken[-1][-1]) if taken else issued_s
        if taken and steady_s - taken[-1][0] < 1.0:
            taken[-1] = (taken[-1][0], newest_s)
        else:
            taken.append((steady_s, newest_s))
        return True


class Nonces:
    """The nonces that were used in this process."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}

    def spend(self, nonce: str, now: float) -> bool | None:
        """Use a nonce. Returns True if it is new, False if it was used before, None if too many nonces are kept."""
        spent = self._spent
        for old in list(spent)[:16]:
            if now - spent[old] <= 2 * VALID_S:
                break
            del spent[old]
        if nonce in spent:
            return False
        if len(spent) >= MAX_NONCES:
            return None
        spent[nonce] = now
        return True
