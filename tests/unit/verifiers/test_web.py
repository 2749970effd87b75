"""http_status, against real servers on the loopback interface."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from everthread import InvalidValueError, verifiers


class Handler(http.server.BaseHTTPRequestHandler):
    server: Any

    def do_GET(self) -> None:
        self.server.seen.append((self.path, dict(self.headers)))
        status = self.server.status
        self.send_response(status)
        if status in (301, 302, 307):
            self.send_header("Location", self.server.location)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving() -> Iterator[Any]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.status, server.location, server.seen = 200, "", []
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def verdict(stored: dict[str, object], **options: Any) -> tuple[str, str]:
    found = verifiers.check(stored, None, **options)
    return found.status.value, found.reason


def test_a_status_is_fresh_until_it_changes() -> None:
    with serving() as server:
        url = server.address + "/health?x=1"
        stored = verifiers.capture(verifiers.http_status(url), "the service is up")
        assert stored["expected"] == {"url": url, "status": 200}
        assert verdict(stored) == ("fresh", f"{url} answers 200")
        assert {path for path, _ in server.seen} == {"/health?x=1"}
        server.status = 503
        assert verdict(stored) == ("contradicted", f"{url} answers 503, it answered 200")
        wanted = verifiers.capture(verifiers.http_status(status=503), url)
        assert verdict(wanted)[0] == "fresh"
        seen = len(server.seen)
        assert verdict(stored, allow_network=False)[0] == "unverifiable"
        assert len(server.seen) == seen
    assert verdict(stored) == ("contradicted", f"nothing listens at {url}")


def test_redirects_are_answers_and_not_followed() -> None:
    with serving() as server, serving() as other:
        server.status, server.location = 302, other.address + "/secret"
        stored = verifiers.capture(verifiers.http_status(server.address), None)
        assert stored["expected"]["status"] == 302
        assert verdict(stored)[0] == "fresh"
        assert other.seen == []


def test_no_proxy_and_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server, serving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.address)
        monkeypatch.setenv("HTTP_PROXY", proxy.address)
        verifiers.capture(verifiers.http_status(server.address), None)
        assert proxy.seen == []
        ((_, headers),) = server.seen
        assert not {"cookie", "authorization"} & {name.lower() for name in headers}


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://127.0.0.1/",
        "http://",
        "http://user:secret@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://[::1",
        "javascript:alert(1)",
        "",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(InvalidValueError):
        verifiers.http_status(url)
    stored = {"name": "http_status", "args": {}, "expected": {"url": url, "status": 200}}
    assert verdict(stored)[0] == "unverifiable"


@pytest.mark.parametrize("path", ["/a\r\nX-Evil: 1", "/a b", "/\x00", "/ü"])
def test_a_path_can_not_smuggle_headers(path: str) -> None:
    with serving() as server:
        stored = {"name": "http_status", "args": {}, "expected": {"url": server.address + path, "status": 1}}
        verdict(stored)
        assert not [headers for _, headers in server.seen if "X-Evil" in headers]


def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        stored = {"name": "http_status", "args": {}, "expected": {"url": url, "status": 200}}
        status, reason = verdict(stored, timeout_s=0.3)
        assert (status, bool(reason)) == ("unverifiable", True)


def test_a_server_that_does_not_speak_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"220 smtp ready\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{other.getsockname()[1]}/"
        stored = {"name": "http_status", "args": {}, "expected": {"url": url, "status": 200}}
        status, reason = verdict(stored)
        thread.join()
        assert (status, "isn't HTTP" in reason) == ("unverifiable", True), reason
