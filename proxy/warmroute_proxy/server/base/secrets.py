"""The fleet secret and the keys that are derived from it, the check of API keys, and the keys of engines.

    tenant key    = HMAC(lasting secret, share group)
    session hash  = HMAC(tenant key, "session" | key), the first 16 hex digits: all that is stored of a session key
    cache salt    = HMAC(tenant key, "salt" | epoch), hex: the engine's cache namespace of a share group
    reasoning key = HMAC(tenant key, "reasoning" | use): vouches for reasoning that a client sends back

The message of an HMAC is a list of fields, each preceded by its length in four bytes, so that no two lists give the
same message. The secret is the same in all proxies of a fleet, and survives restarts.

The secret is one line. During a rotation its file has several lines: the first signs what lives for seconds (tokens
between proxies) and the admin key, and every line is accepted. The keys above are derived from the *lasting secret*:
the line `caches: `, which signs no token; without such a line, the only line. A new lasting secret makes all caches
cold.

A cold call of OpenSSL costs 30 us a request, so results are cached in plain dicts. A dict has at most `MAX_CACHED`
entries and is cleared when full, since refilling it costs less than tracking which entry was used last.
"""

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from xxhash import xxh3_64_intdigest

from warmroute.files.regular import read_regular

MIN_SECRET_BYTES: Final = 32
SECRET_ENV: Final = "WARMROUTE_SECRET"  # noqa: S105 - a name, not a secret
MAX_ACCEPTED: Final = 3
LASTING: Final = b"caches:"
SESSION_HEX: Final = 16
MAX_ENGINE_KEY_CHARS: Final = 1_024
_MAX_FILE_BYTES: Final = 65_536
MAX_CACHED: Final = 10_000
SHOWN_CHARS: Final = 30
"""How long the missing part of a path may be that a problem shows: API keys are longer."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class SecretError(ValueError):
    """The fleet secret or an engine key is missing or invalid. The message never contains it."""


def load_secret(file: Path | None, environ: Mapping[str, str], *, private: bool = False) -> bytes:
    """The lines of the fleet secret, from the environment or else from `file`. With `private`, a file that other users
    can read is refused. Raises: SecretError.
    """
    text = environ.get(SECRET_ENV)
    if text:
        return _checked(text.encode(), SECRET_ENV)
    if file is None:
        raise SecretError(f"no fleet secret: set {SECRET_ENV} or secret.file")
    try:
        content, exposed = read_regular(file, _MAX_FILE_BYTES), is_exposed(file)
    except FileNotFoundError:
        raise SecretError(f"no fleet secret: {_shown(file)} does not exist and {SECRET_ENV} is not set") from None
    except OSError as error:
        raise SecretError(f"cannot read the fleet secret from {_shown(file)}: {error.strerror}") from None
    except ValueError as error:
        raise SecretError(f"cannot read the fleet secret from {file}: it {error}") from None
    if private and exposed:
        raise SecretError(f"{file}: holds a secret, and others can read it: chmod 600 {file}")
    return _checked(content, str(file))


def is_exposed(file: Path) -> bool:
    """Whether every user of the machine may read a file. Raises: OSError."""
    return bool(file.stat().st_mode & stat.S_IROTH)


def bearer(file: Path | None, within: Sequence[Path] = ()) -> str:
    """The value of the `authorization` header with the key in `file`; empty without a file. `within`: the folders that
    may contain the file; empty: any folder. Raises: SecretError, if the file has no key.
    """
    if file is None:
        return ""
    key = _text(file, "engine key", "ascii", within)
    if not 0 < len(key) <= MAX_ENGINE_KEY_CHARS or not key.isprintable() or " " in key:
        raise SecretError(f"{file} holds no engine key: up to {MAX_ENGINE_KEY_CHARS} ASCII characters on one line")
    return f"authorization: Bearer {key}\r\n"


SPECIAL: Final = "special characters of a password are written as %XX there"


def load_dsn(file: Path) -> str:
    """The address of a PostgreSQL database. Raises: SecretError, which never shows the address."""
    return _load_url(file, ("postgresql", "postgres"))


def load_redis_url(file: Path) -> str:
    """The address of a Redis server. Raises: SecretError, which never shows the address."""
    return _load_url(file, ("redis", "rediss"))


def _load_url(file: Path, schemes: tuple[str, ...]) -> str:
    """The address of a store. Errors do not show the address, since it may contain a password."""
    url = _text(file, f"{schemes[0]} address", "utf-8")
    if url.partition("://")[0] not in schemes or len(url.split()) != 1:
        raise SecretError(f"{file} holds no address: one line like {schemes[0]}://user:password@host/name")
    return url


def load_headers(file: Path | None) -> dict[str, str]:
    """The headers in a file, one on each line as `name: value`; empty without a file. Raises: SecretError."""
    if file is None:
        return {}
    lines = [line for line in _text(file, "headers", "ascii").splitlines() if line.strip()]
    pairs = [tuple(piece.strip() for piece in line.split(":", 1)) for line in lines]
    if not (pairs and all(len(pair) == 2 and pair[0] and " " not in pair[0] for pair in pairs)):
        raise SecretError(f"{file} holds no headers: one a line, written name: value, in ASCII")
    return {name.lower(): value for name, value in pairs}


def _text(file: Path, what: str, encoding: str, within: Sequence[Path] = ()) -> str:
    """The text in a file; empty if it has another encoding. Raises: SecretError, which names `what` is in the file."""
    try:
        return read_regular(file, _MAX_FILE_BYTES, within).decode(encoding).strip()
    except OSError as error:
        raise SecretError(f"cannot read the {what} in {_shown(file)}: {error.strerror}") from None
    except UnicodeDecodeError:
        return ""
    except ValueError as error:  # also raised for a path with a NUL, which must not be shown as it is
        raise SecretError(f"cannot read the {what} in {str(file)!r}: {error}") from None


def _shown(file: Path) -> str:
    """The path of a file in problems. A long part that does not exist may be a secret in place of a file's name."""
    there = next((each for each in file.parents if os.access(each, os.F_OK)), Path())
    missing = len(str(file.relative_to(there)))
    if missing <= SHOWN_CHARS or os.access(file, os.F_OK):
        return str(file)
    return f"a path of {missing} characters below {there}"


def mac(key: bytes, *message_fields: str | bytes) -> bytes:
    """HMAC-SHA256 over fields, each preceded by its length."""
    message = bytearray()
    for field in message_fields:
        raw = field.encode("utf-8", "surrogatepass") if isinstance(field, str) else field
        message += len(raw).to_bytes(4, "big") + raw
    return hmac.digest(key, bytes(message), "sha256")


def new_api_key() -> tuple[str, str]:
    """A new API key, and its SHA-256 in hex, which is all that a config contains."""
    key = "wr-" + os.urandom(16).hex()
    return key, key_sha256(key)


def config_key_id(sha256_hex: str) -> str:
    """The id of a config's API key, from its digest; an import keeps it. Keys that the database made have other ids."""
    return f"c-{sha256_hex[:10].lower()}"


def key_sha256(key: str) -> str:
    """The digest of a key, by which a config identifies it."""
    return hashlib.sha256(key.encode()).hexdigest()


class Secrets:
    """Derives keys, hashes and salts from the fleet secret."""

    def __init__(self, fleet_secret: bytes) -> None:
        """`fleet_secret`: the lines of the secret. Raises: SecretError."""
        self._accepted, self._lasting = _lines(fleet_secret, "the fleet secret")
        self._tenant_keys: dict[str, bytes] = {}
        self._sessions: dict[tuple[str, str], tuple[str, int]] = {}
        self._salts: dict[tuple[str, int], str] = {}
        self._seeds: dict[tuple[str, int, str], tuple[str, int]] = {}
        self._reasoning_keys: dict[tuple[str, str], bytes] = {}

    def session_of(self, share_group: str, key: str) -> tuple[str, int]:
        """The 16 hex digits that replace a session key in receipts, ledger rows and logs, and the number that these
        digits stand for."""
        found = self._sessions.get((share_group, key))
        if found is None:
            text = mac(self._tenant_key(share_group), "session", key).hex()[:SESSION_HEX]
            found = text, int(text, 16)
            _keep(self._sessions, (share_group, key), found)
        return found

    def cache_salt(self, share_group: str, epoch: int) -> str:
        """The cache namespace of a share group in engines, 64 hex digits."""
        found = self._salts.get((share_group, epoch))
        if found is None:
            found = mac(self._tenant_key(share_group), "salt", str(epoch)).hex()
            _keep(self._salts, (share_group, epoch), found)
        return found

    def salt_and_seed(self, share_group: str, epoch: int, model: str) -> tuple[str, int]:
        """The cache salt of a share group, and the seed of the hash chains of its prompts for a model."""
        found = self._seeds.get((share_group, epoch, model))
        if found is None:
            salt = self.cache_salt(share_group, epoch)
            found = salt, xxh3_64_intdigest(model.encode(), seed=int(salt[:16], 16))
            _keep(self._seeds, (share_group, epoch, model), found)
        return found

    def reasoning_key(self, share_group: str, use: str) -> bytes:
        """The key of 32 bytes that signs or seals reasoning, so that it is recognised when a client sends it back.

        `use`: `signature` for the key that signs, `seal` for the key that encrypts. The key does not depend on the salt
        epoch, so running conversations keep their reasoning in a new epoch.
        """
        found = self._reasoning_keys.get((share_group, use))
        if found is None:
            found = mac(self._tenant_key(share_group), "reasoning", use)
            _keep(self._reasoning_keys, (share_group, use), found)
        return found

    def replace(self, fleet_secret: bytes) -> tuple[bool, bool]:
        """Sign and accept by the lines of a new secret. Returns whether the accepted lines differ, and whether the
        lasting secret differs. A new lasting secret takes effect only at a restart. Raises: SecretError.
        """
        before, (self._accepted, lasting) = self._accepted, _lines(fleet_secret, "the fleet secret")
        return self._accepted != before, lasting != self._lasting

    @property
    def accepted(self) -> int:
        return len(self._accepted)

    def fleet_mac(self, purpose: str, *message_fields: str | bytes) -> bytes:
        """HMAC for a message between proxies. It is valid for `purpose` alone."""
        return _fleet_mac(self._accepted[0], purpose, *message_fields)

    def is_fleet_mac(self, found: bytes, purpose: str, *message_fields: str | bytes) -> bool:
        """Whether `found` is `fleet_mac` in hex by one of the accepted secrets, compared in constant time."""
        for secret in self._accepted:
            if hmac.compare_digest(_fleet_mac(secret, purpose, *message_fields).hex().encode(), found):
                return True
        return False

    def lasting_mac(self, purpose: str) -> bytes:
        """A key of the fleet that stays the same while its secret is rotated."""
        return _fleet_mac(self._lasting, purpose)

    def key_for(self, purpose: str) -> str:
        """An API key that is derived from the fleet secret, so that it need not be stored."""
        return f"wr-{self.fleet_mac('api-key', purpose).hex()[:32]}"

    def admin_key(self) -> str:
        """The admin key for a config that sets none, derived from the fleet secret."""
        return _admin_key(self._accepted[0])

    def is_admin_key(self, key: bytes) -> bool:
        """Whether `key` is the admin key by an accepted secret, compared in constant time."""
        return any(hmac.compare_digest(_admin_key(secret).encode(), key) for secret in self._accepted)

    def _tenant_key(self, share_group: str) -> bytes:
        found = self._tenant_keys.get(share_group)
        if found is None:
            found = mac(self._lasting, share_group)
            _keep(self._tenant_keys, share_group, found)
        return found


class KeyOwner(NamedTuple):
    """The tenant of an API key, and the key's id, which is not a secret."""

    tenant: str
    key_id: str


class ApiKeys:
    """API key -> owner, by the key's SHA-256. Only valid keys are cached, so invalid keys cannot flush the cache."""

    def __init__(self, tenant_by_sha256: Mapping[str, str]) -> None:
        self._by_digest: dict[str, KeyOwner] = {}
        self._by_key: dict[bytes, KeyOwner] = {}
        self.replace(tenant_by_sha256)

    def replace(self, tenant_by_sha256: Mapping[str, str], id_by_sha256: Mapping[str, str] | None = None) -> None:
        """Accept only these keys. `id_by_sha256`: the ids of the database's keys; others get `config_key_id`."""
        ids = id_by_sha256 or {}
        self._by_digest = {
            digest.lower(): KeyOwner(tenant, ids.get(digest) or config_key_id(digest))
            for digest, tenant in tenant_by_sha256.items()
        }
        self._by_key.clear()

    def owner_of(self, key: bytes) -> KeyOwner | None:
        """The owner of an API key (the bearer token without `Bearer `), or None."""
        owner = self._by_key.get(key)
        if owner is None:
            owner = self._by_digest.get(hashlib.sha256(key).hexdigest())
            if owner is not None:
                _keep(self._by_key, bytes(key), owner)
        return owner


def admin_key_matches(key: bytes, sha256_hex: str) -> bool:
    """Whether a key has the digest of the admin key, compared in constant time."""
    return hmac.compare_digest(hashlib.sha256(key).hexdigest(), sha256_hex.lower())


def _keep(cache: dict[_K, _V], key: _K, value: _V) -> None:
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[key] = value


def _fleet_mac(secret: bytes, purpose: str, *message_fields: str | bytes) -> bytes:
    return mac(secret, "fleet", purpose, *message_fields)


def _admin_key(secret: bytes) -> str:
    return _fleet_mac(secret, "admin-key").hex()[:32]


def _checked(content: bytes, source: str) -> bytes:
    _lines(content, source)
    return content.strip()


def _lines(content: bytes, source: str) -> tuple[tuple[bytes, ...], bytes]:
    """The accepted secrets, of which the first signs, and the lasting secret. `source`: the name of `content` in
    errors. Raises: SecretError.
    """
    content = content.strip()
    is_text = content.isascii() or LASTING in content  # random bytes are one secret, not divided into lines
    pieces = content.splitlines() if is_text else [content]
    lines = [line.strip() for line in pieces if line.strip()] or [b""]
    accepted = tuple(line for line in lines if not line.startswith(LASTING))
    lasting = [line.removeprefix(LASTING).strip() for line in lines if line.startswith(LASTING)]
    if (shortest := min(map(len, [*accepted, *lasting]))) < MIN_SECRET_BYTES:
        raise SecretError(f"{source} has {shortest} bytes, at least {MIN_SECRET_BYTES} are needed in each line")
    if not 0 < len(accepted) <= MAX_ACCEPTED or len(lasting) > 1:
        problem = f"{len(accepted)} secrets and {len(lasting)} lines `caches:`"
        raise SecretError(f"{source} has {problem}; it has 1 to {MAX_ACCEPTED} and at most one")
    if len(accepted) > 1 and not lasting:
        raise SecretError(f"{source} has several lines, and none of them is `caches: ` with the secret of the caches")
    if lasting and any(line.startswith(b"#") for line in accepted):
        raise SecretError(f"{source} has a comment, which would be accepted as a secret")
    return accepted, (lasting or accepted)[0]
