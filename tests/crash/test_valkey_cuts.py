"""Connections to Valkey that break at any moment: nothing twice, nothing lost, no answer of another's."""

from __future__ import annotations

from functools import partial
from urllib.parse import urlsplit

from tests.crash.cutting import Cutter, cancel_while_cut, write_while_cut

#: Short: a half-open connection is given up after half of it.
TIMEOUT_MS = 600
OFTEN = 0.4
#: Not while scripts are loaded: those requests come in pieces.
SPARED = b"LOAD"


def _through(url: str, port: int) -> str:
    parts = urlsplit(url)
    return f"valkey://127.0.0.1:{port}{parts.path}?{parts.query}&timeout_ms={TIMEOUT_MS}&connections=4"


def test_cut_connections_leave_every_write_exactly_once(valkey_url: str, seed: int) -> None:
    write_while_cut(valkey_url, partial(_through, valkey_url), Cutter(seed, OFTEN, SPARED))


def test_the_same_for_tasks_that_are_cancelled_too(valkey_url: str, seed: int) -> None:
    cancel_while_cut(valkey_url, partial(_through, valkey_url), Cutter(seed, OFTEN, SPARED), seed)
