"""What a call of the command line was told, and the store it then works on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from everthread.cli.telling import Telling

if TYPE_CHECKING:
    from everthread.opening import Store


class Asked:
    """The shared options of one call."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.namespace: str | None = None
        self.cold: str | None = None
        self.keyring: str | None = None
        self.format: str | None = None

    @property
    def tell(self) -> Telling:
        return Telling(self.format or "text")

    @property
    def where(self) -> str:
        """The URL of the store: the one that was given, or the one that an agent would find from here."""
        from everthread.stores.urls import default_url

        return self.url if self.url is not None else default_url(create=False)

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The store, for the length of a command. Never creates one.

        Raises :class:`NotFoundError` if there is none.
        """
        from everthread.errors import NotFoundError

        url = self.where
        missing = not_there(url)
        if missing:
            raise NotFoundError(missing)
        with self.opened(url) as store:
            yield store

    def opened(self, url: str) -> Store:
        import warnings

        from everthread.opening import open as open_store

        # How a server keeps its data is up to its settings: no reason not to look, doctor tells.
        durability = "process" if url.startswith(("valkey", "redis")) else "full"
        with warnings.catch_warnings():
            if url.startswith("postgres"):
                warnings.filterwarnings("ignore", message=".* can't keep what durability=")
            return open_store(
                url,
                durability=durability,
                namespace=self.namespace or "",
                keyring=self.keyring,
                cold=self.cold,
            )


def not_there(url: str) -> str | None:
    """Why there is no store at this URL that could be looked at; ``None`` if there may be one.

    Looking at a store that isn't there must not make one.
    """
    from everthread.stores.quoting import unquoted

    scheme, colon, rest = url.partition(":")
    location = unquoted(rest.partition("?")[0])
    if not colon and os.path.isfile(url):
        return f"a store is named by a URL; for this file: --store sqlite:///{url}"
    if scheme not in ("sqlite", "file") or not location.startswith("///") or len(location) == 3:
        # Whatever it is, opening it says so.
        return None
    if scheme == "sqlite":
        path = location[3:]
        there = os.path.isdir(path) or (os.path.exists(path) and os.path.getsize(path) > 0)
    else:
        path = location.removeprefix("//")
        there = os.path.isfile(path) or os.path.exists(os.path.join(path, "everthread.json"))
    return None if there else f"there is no store at {path} yet; an agent makes it with its first commit"
