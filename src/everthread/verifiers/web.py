"""Whether a server still answers as it did."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from everthread.errors import InvalidValueError
from everthread.verifiers.permissions import Permissions
from everthread.verifiers.specs import Spec, fields, make_spec
from everthread.verifiers.verdicts import Verdict, contradicted, fresh, unverifiable

if TYPE_CHECKING:
    from http.client import HTTPConnection


def http_status(url: str | None = None, status: int | None = None) -> Spec:
    """Holds while a GET of ``url`` is answered with ``status``, by default the one it is answered with now.

    Without a URL the value of the fact is the URL. Redirects aren't followed, to whatever host: a redirect is
    an answer like any other. No cookies, credentials or proxies are used and the body isn't read.
    """
    if url is not None:
        _split(url)
    return make_spec("http_status", {"url": url, "status": status})


class HttpStatus:
    """The verifier behind :func:`http_status`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        url = args.get("url", value)
        if not isinstance(url, str):
            raise InvalidValueError("neither an argument nor the value of the fact is a URL")
        status = args.get("status")
        return {"url": url, "status": _get(url, timeout_s) if status is None else status}

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        url, status = fields(expected, "url", "status")
        if not isinstance(url, str) or type(status) is not int:
            return unverifiable("what was recorded of the server is not understood")
        if not allowed.network:
            return unverifiable(f"the reader doesn't allow requests: {url}")
        try:
            now = _get(url, timeout_s)
        except ConnectionRefusedError:
            return contradicted(f"nothing listens at {url}")
        if now != status:
            return contradicted(f"{url} answers {now}, it answered {status}")
        return fresh(f"{url} answers {now}")


def _split(url: str) -> SplitResult:
    if not isinstance(url, str):
        raise InvalidValueError(f"a URL is text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise InvalidValueError("this is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidValueError("a URL to verify begins with http:// or https:// and names a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidValueError("a URL to verify carries no credentials: it is stored in clear")
    return parts


def _get(url: str, timeout_s: float) -> int:
    """The status of one GET."""
    from http.client import HTTPConnection, HTTPException, HTTPSConnection

    parts = _split(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection: HTTPConnection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            connection.request("GET", target, headers={"User-Agent": "everthread", "Connection": "close"})
            return connection.getresponse().status
        except HTTPException as error:
            raise InvalidValueError(f"the answer isn't HTTP ({type(error).__name__})") from None
