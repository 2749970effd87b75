"""The way in: a store with everything that agents keep in it."""

from __future__ import annotations

from typing import Any

from everthread.errors import InvalidValueError
from everthread.model.limits import DEFAULT_LIMITS, Limits
from everthread.model.names import check_name
from everthread.stores.urls import default_url, open_backend
from everthread.threads.runtime import Runtime
from everthread.threads.sync.store import ThreadStore


class Store(ThreadStore):
    """An open store. Close it, or use it as a context manager. Safe to share between threads."""


def open(
    url: str | None = None,
    *,
    durability: str = "full",
    keyring: Any = None,
    namespace: str = "",
    limits: Limits = DEFAULT_LIMITS,
    runtime: Runtime | None = None,
) -> Store:
    """Open a store; it is created if it isn't there.

    ``url``: ``memory:``, ``sqlite:///relative.db`` or ``sqlite:////absolute.db``. Without one:
    ``$EVERTHREAD_URL``, else the nearest ``.everthread`` folder, else ``~/.everthread``.
    ``durability``: ``"full"`` survives a power cut, ``"process"`` only the death of the process and is about
    ten times faster. ``keyring``: where the keys of personal values are (by default
    ``~/.everthread/keyring``). ``namespace`` keeps tenants apart.
    """
    check_options(namespace, limits)
    backend = open_backend(url if url is not None else default_url(), durability)
    return Store(backend, namespace=namespace, keyring=keyring, limits=limits, runtime=runtime)


def check_options(namespace: str, limits: Limits) -> None:
    """Refuse what no store can be opened with."""
    if namespace != "":
        check_name(namespace, "namespace")
    if not isinstance(limits, Limits):
        raise InvalidValueError("limits must be everthread.Limits(…)")
