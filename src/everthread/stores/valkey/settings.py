"""From a URL to where a store is and how it is reached."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import msgspec

from everthread.errors import InvalidValueError

PORT = 6379
SCHEMES = ("valkey", "valkeys", "redis", "rediss")
#: Neither a brace, which would move keys to other slots, nor anything that a pattern gives a meaning to.
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_EXAMPLE = "valkey://user:password@host:6379/0"
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_KNOWN = ("cluster", "connections", "prefix", *_TLS, "timeout_ms")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """``nodes`` are the servers named in the URL: one, or some of a cluster. ``cluster`` is ``None`` where
    the server shall say it itself. ``timeout_s`` bounds a whole verb, with all tries and waiting."""

    nodes: tuple[tuple[str, int], ...]
    scheme: str = "valkey"
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: bool = False
    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    check_hostname: bool = True
    prefix: str = "everthread"
    connections: int = 16
    timeout_s: float = 10.0
    cluster: bool | None = None
    durability: str = "full"

    @property
    def url(self) -> str:
        """Without secrets."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes)
        options = [] if self.prefix == "everthread" else [f"prefix={quote(self.prefix)}"]
        query = "?" + "&".join(options) if options else ""
        return f"{self.scheme}://{hosts}/{self.db}{query}"


def read_url(url: str, durability: str) -> Settings:
    """Raises :class:`InvalidValueError`, saying how one is written. The password is never shown."""
    scheme, _, rest = url.partition("://")
    if not rest or scheme not in SCHEMES:
        raise InvalidValueError(f"a store URL of this kind is written {_EXAMPLE}")
    authority, slash, tail = rest.partition("/")
    if not slash:
        authority, mark, query = authority.partition("?")
        tail = mark + query
    login, _, hosts = authority.rpartition("@")
    username, colon, password = login.partition(":")
    path, _, query = tail.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = [name for name in options if name not in _KNOWN]
    if unknown:
        raise InvalidValueError(
            f"unknown options in the store URL: {', '.join(unknown)}; known are {', '.join(_KNOWN)}"
        )
    prefix = options.get("prefix", "everthread")
    if not _PREFIX.fullmatch(prefix):
        raise InvalidValueError("prefix is up to 64 letters, digits, dots, hyphens and underscores")
    return Settings(
        nodes=tuple(_node(scheme, host) for host in hosts.split(",")),
        scheme=scheme,
        db=_number(path or "0", "the database", 0),
        username=unquote(username) or None if login else None,
        password=unquote(password) if colon else None,
        tls=scheme in ("valkeys", "rediss"),
        ca_certs=options.get("ssl_ca_certs"),
        certfile=options.get("ssl_certfile"),
        keyfile=options.get("ssl_keyfile"),
        check_hostname=_truth(options.get("ssl_check_hostname", "true"), "ssl_check_hostname"),
        prefix=prefix,
        connections=_number(options.get("connections", "16"), "connections", 1),
        timeout_s=_number(options.get("timeout_ms", "10000"), "timeout_ms", 1) / 1000,
        cluster=None if "cluster" not in options else _truth(options["cluster"], "cluster"),
        durability=durability,
    )


def _node(scheme: str, host: str) -> tuple[str, int]:
    try:
        found = urlsplit(f"{scheme}://{host}")
        return found.hostname or "localhost", found.port or PORT
    except ValueError:
        raise InvalidValueError(f"a host of the store URL makes no sense; it is written {_EXAMPLE}") from None


def _number(text: str, what: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise InvalidValueError(f"{what} in the store URL is a whole number, {least} at least")
    return int(text)


def _truth(text: str, what: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidValueError(f"{what} in the store URL is true or false")
    return text == "true"


def tls_options(settings: Settings) -> dict[str, Any]:
    """How redis-py encrypts connections: the server must show a certificate that is trusted.

    Raises :class:`InvalidValueError` if a file of the URL can't be used.
    """
    import ssl

    try:
        context = ssl.create_default_context(cafile=settings.ca_certs)
        if settings.certfile:
            context.load_cert_chain(settings.certfile, settings.keyfile)
    except (OSError, ssl.SSLError) as error:
        raise InvalidValueError(f"a certificate of the store URL can't be used: {error}") from error
    return {
        "ssl_ca_certs": settings.ca_certs,
        "ssl_certfile": settings.certfile,
        "ssl_keyfile": settings.keyfile,
        "ssl_check_hostname": settings.check_hostname,
    }
