"""``ApiKeys``: the keys that open a server, compared in constant time and never shown."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from pathlib import Path

from hy3.errors import InputError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ApiKeys:
    """The accepted keys; none means that the server is open."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._keys = tuple(key.encode() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def accepts(self, authorization: bytes) -> bool:
        """Whether an ``Authorization`` header carries a key; as slow for a wrong one."""
        scheme, _, offered = authorization.partition(b" ")
        matches = [hmac.compare_digest(offered.strip(), key) for key in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


def load_keys(file: Path | None, environment: Mapping[str, str]) -> ApiKeys:
    """The keys of ``file``, one a line, else the one in HY3_API_KEY, else none."""
    if file is None:
        key = environment.get("HY3_API_KEY", "")
        lines, where = ([key] if key else []), "HY3_API_KEY"
    else:
        where = str(file)
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"cannot be read ({type(error).__name__})",
                hint="name a text file with one key a line",
                where=where,
            ) from error
        if not any(map(str.strip, lines)):
            raise InputError("holds no key", hint="put one key on each line", where=where)
    keys = [line.strip() for line in lines if line.strip()]
    if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
        raise InputError(
            "a key has characters that an HTTP header cannot carry",
            hint="use printable ASCII without spaces",
            where=where,
        )
    return ApiKeys(keys)


def check_address(host: str, keys: ApiKeys) -> None:
    """Refuse to listen where others can reach an open server."""
    if host not in _LOOPBACK and not keys:
        raise InputError(
            f"refuses to listen on {host} without an API key",
            hint="pass --api-key-file or set HY3_API_KEY, or keep --host 127.0.0.1",
            where="--host",
        )
