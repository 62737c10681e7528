"""Clients: who may ask, how they are told apart, and how many rows each may ask for.

The key file is TOML, a table per key:

    [alice]
    token = "a long random text"
    budget = 1000                   # rows; without it the server's --budget-per-client, or no limit
"""

import hashlib
import hmac
import ipaddress
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from relumine.errors import MisuseError

_SHORTEST_TOKEN = 8  # of characters, as NIST SP 800-63B has it for passwords
# Who has one address of IPv6 usually has all that begin with the same 64 bits.
_IPV6_BITS = 64


@dataclass(frozen=True)
class Client:
    """A name that tells a client from others, and the rows it may ask for."""

    name: str
    budget: int | None = None


@dataclass(frozen=True)
class Key(Client):
    """A client that is known by the digest of its token."""

    digest: bytes = b""

    def __repr__(self) -> str:
        return f"Key({self.name!r}, budget={self.budget})"


class Keys:
    """Tells clients apart: by the tokens of a key file, by whatever a header says, or by their address.

    keys:   those of a key file; without any everybody may ask
    budget: rows of clients that no key file names
    header: where the token is; without keys its text is the client. Something in front must set or check it then:
            else clients choose it. None: "Authorization: Bearer TOKEN" with keys, addresses without
    """

    def __init__(self, keys: list[Key], *, budget: int | None = None, header: str | None = None) -> None:
        if budget is not None and budget < 1:
            raise MisuseError(f"budget: expected at least 1 row, got {budget}")
        if header is not None and not re.fullmatch(r"[\w!#$%&'*+.^`|~-]+", header, re.ASCII):
            raise MisuseError(f"--client-header: expected the name of a header, such as X-API-Key, got {header!r}")
        self._keys = keys
        self._budget = budget
        self.header = "authorization" if header is None and keys else header and header.lower()

    @property
    def are_needed(self) -> bool:
        """Whether a request needs a token that is known."""
        return bool(self._keys)

    def who(self, headers: list[tuple[bytes, bytes]], address: str) -> Client | None:
        """The client that sends these headers from this address, or None if there is no such client."""
        if self.header is None:
            return Client(f"address {_network(address)}", self._budget)
        texts = [value for name, value in headers if name.lower() == self.header.encode("latin-1")]
        if len(texts) != 1:  # of several, others might read another
            return None
        scheme, _, token = texts[0].strip().partition(b" ")
        if self.header == "authorization" and scheme.lower() != b"bearer":
            return None
        digest = hashlib.sha256(token.strip() if self.header == "authorization" else texts[0].strip()).digest()
        if not self._keys:
            return Client(f"key {digest.hex()[:32]}", self._budget)
        # Every key is compared, whichever fits: the time taken tells nothing.
        fitting = [key for key in self._keys if hmac.compare_digest(key.digest, digest)]
        return fitting[0] if fitting else None


@lru_cache(maxsize=10_000)
def _network(address: str) -> str:
    try:
        known = ipaddress.ip_address(address)
    except ValueError:  # a socket's path, or none
        return address
    known = getattr(known, "ipv4_mapped", None) or known
    return str(known if known.version == 4 else ipaddress.ip_network((known, _IPV6_BITS), strict=False))


def read_keys(path: Path | None, *, budget: int | None = None, header: str | None = None) -> Keys:
    """The keys of a file, or a MisuseError that says what is wrong with it, without showing a token."""
    if path is None:
        return Keys([], budget=budget, header=header)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise MisuseError(f"--key-file {path}: expected TOML, a table per key, got {type(error).__name__}") from None
    keys = [_key(path, name, table, budget) for name, table in tables.items()]
    if not keys:
        raise MisuseError(f"--key-file {path}: expected at least one key, got none")
    if len({key.digest for key in keys}) < len(keys):
        raise MisuseError(f"--key-file {path}: expected a token of its own for every key, got one twice")
    return Keys(keys, header=header)


def _key(path: Path, name: str, table: object, budget: int | None) -> Key:
    where = f"--key-file {path}: [{name}]"
    if not isinstance(table, dict) or not set(table) <= {"token", "budget"}:
        raise MisuseError(f"{where}: expected a table with token = … and perhaps budget = …")
    token, own = table.get("token"), table.get("budget", budget)
    if not isinstance(token, str) or len(token) < _SHORTEST_TOKEN or not token.isascii() or token != token.strip():
        raise MisuseError(f"{where}: expected a token of at least {_SHORTEST_TOKEN} plain characters")
    if own is not None and (isinstance(own, bool) or not isinstance(own, int) or own < 1):
        raise MisuseError(f"{where}: expected a budget of at least 1 row, got {own!r}")
    return Key(name, own, hashlib.sha256(token.encode()).digest())
