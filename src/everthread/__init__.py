"""Everthread keeps the state of AI agents so that their thread of work never breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everthread.codec.types import register
    from everthread.errors import (
        AccessError,
        ConflictError,
        DamageError,
        EverthreadError,
        FencedError,
        InvalidNameError,
        InvalidStateError,
        InvalidValueError,
        KeyReusedError,
        KeyringError,
        LimitError,
        MergeConflictError,
        MessageNotFoundError,
        MissingDependencyError,
        NotAStoreError,
        NotFoundError,
        RetryError,
        SchemaVersionError,
        SealError,
        StateCorruptedError,
        StateNotFoundError,
        StorageWriteError,
        StoreBusyError,
        StoreClosedError,
        StoreUnavailableError,
        ThreadDeletedError,
        ThreadExistsError,
        ThreadNotFoundError,
        UnavailableError,
        UnsupportedError,
        UsageError,
        ValidationError,
        VersionNotFoundError,
    )
    from everthread.history.chain import SignedHead
    from everthread.history.diff import Diff
    from everthread.history.merge import ABSENT, Conflict, Merge
    from everthread.history.retention import Retention
    from everthread.model.limits import Limits
    from everthread.model.values import Erased, Opaque, Personal
    from everthread.model.versions import ThreadInfo, Version
    from everthread.opening import Store, open
    from everthread.opening_async import AsyncStore, open_async
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.sync.thread import Thread

__all__ = [
    "ABSENT",
    "AccessError",
    "AsyncStore",
    "AsyncThread",
    "Conflict",
    "ConflictError",
    "DamageError",
    "Diff",
    "Erased",
    "EverthreadError",
    "FencedError",
    "InvalidNameError",
    "InvalidStateError",
    "InvalidValueError",
    "KeyReusedError",
    "KeyringError",
    "LimitError",
    "Limits",
    "Merge",
    "MergeConflictError",
    "MessageNotFoundError",
    "MissingDependencyError",
    "NotAStoreError",
    "NotFoundError",
    "Opaque",
    "Personal",
    "Retention",
    "RetryError",
    "SchemaVersionError",
    "SealError",
    "SignedHead",
    "StateCorruptedError",
    "StateNotFoundError",
    "StorageWriteError",
    "Store",
    "StoreBusyError",
    "StoreClosedError",
    "StoreUnavailableError",
    "Thread",
    "ThreadDeletedError",
    "ThreadExistsError",
    "ThreadInfo",
    "ThreadNotFoundError",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "ValidationError",
    "Version",
    "VersionNotFoundError",
    "__version__",
    "open",
    "open_async",
    "register",
]

__version__ = "0.1.0"

#: Public name → the module it lives in, ``everthread.errors`` where none is named. Imported when first
#: asked for, so that a bare import stays cheap.
_DOOR = {
    "ABSENT": "everthread.history.merge",
    "AsyncStore": "everthread.opening_async",
    "AsyncThread": "everthread.threads.aio.thread",
    "Conflict": "everthread.history.merge",
    "Diff": "everthread.history.diff",
    "Erased": "everthread.model.values",
    "Limits": "everthread.model.limits",
    "Merge": "everthread.history.merge",
    "Opaque": "everthread.model.values",
    "Personal": "everthread.model.values",
    "Retention": "everthread.history.retention",
    "SignedHead": "everthread.history.chain",
    "Store": "everthread.opening",
    "Thread": "everthread.threads.sync.thread",
    "ThreadInfo": "everthread.model.versions",
    "Version": "everthread.model.versions",
    "open": "everthread.opening",
    "open_async": "everthread.opening_async",
    "register": "everthread.codec.types",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'everthread' has no attribute {name!r}")
    value = getattr(import_module(_DOOR.get(name, "everthread.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
