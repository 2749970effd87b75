"""Everthread keeps the state of AI agents so that their thread of work never breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everthread.briefing.selecting import Briefing
    from everthread.checkpoints.decorating import checkpoint
    from everthread.checkpoints.migrations import register_migration
    from everthread.checkpoints.objects import Checkpointable
    from everthread.checkpoints.saving import CheckpointManager
    from everthread.codec.types import register
    from everthread.errors import (
        AccessError,
        ConflictError,
        DamageError,
        EffectMismatchError,
        EverthreadError,
        FencedError,
        InDoubtError,
        InvalidNameError,
        InvalidStateError,
        InvalidValueError,
        KeyReusedError,
        KeyringError,
        LimitError,
        MaxTurnsError,
        MergeConflictError,
        MessageNotFoundError,
        MissingDependencyError,
        NotAStoreError,
        NotFoundError,
        ResultNotStoredError,
        RetryError,
        SchemaVersionError,
        SealError,
        SessionBusyError,
        SessionFencedError,
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
    from everthread.events.aio.stream import AsyncEventStream
    from everthread.events.event import Event
    from everthread.events.sync.stream import EventStream
    from everthread.history.chain import SignedHead
    from everthread.history.diff import Diff
    from everthread.history.merge import ABSENT, Conflict, Merge
    from everthread.history.retention import Retention
    from everthread.model.limits import Limits
    from everthread.model.values import Erased, Opaque, Personal
    from everthread.model.versions import ThreadInfo, Version
    from everthread.opening import Store, open
    from everthread.opening_async import AsyncStore, open_async
    from everthread.people.users import UserStore
    from everthread.sessions.decisions import PendingDecision
    from everthread.sessions.effects import Done
    from everthread.sessions.records import SessionRecords
    from everthread.sessions.resuming import ResumeReport
    from everthread.sessions.session import AgentSession
    from everthread.sessions.taskgraph import Task
    from everthread.sessions.usage import Usage
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.sync.thread import Thread
    from everthread.working.config import Config, StorageBackend
    from everthread.working.items import (
        Constraint,
        ContextItem,
        Intention,
        OpenLoop,
        Priority,
        StateStatus,
        Todo,
        TodoStatus,
    )
    from everthread.working.state import WorkingState

__all__ = [
    "ABSENT",
    "AccessError",
    "AgentSession",
    "AsyncEventStream",
    "AsyncStore",
    "AsyncThread",
    "Briefing",
    "CheckpointManager",
    "Checkpointable",
    "Config",
    "Conflict",
    "ConflictError",
    "Constraint",
    "ContextItem",
    "DamageError",
    "Diff",
    "Done",
    "EffectMismatchError",
    "Erased",
    "Event",
    "EventStream",
    "EverthreadError",
    "FencedError",
    "InDoubtError",
    "Intention",
    "InvalidNameError",
    "InvalidStateError",
    "InvalidValueError",
    "KeyReusedError",
    "KeyringError",
    "LimitError",
    "Limits",
    "MaxTurnsError",
    "Merge",
    "MergeConflictError",
    "MessageNotFoundError",
    "MissingDependencyError",
    "NotAStoreError",
    "NotFoundError",
    "Opaque",
    "OpenLoop",
    "PendingDecision",
    "Personal",
    "Priority",
    "ResultNotStoredError",
    "ResumeReport",
    "Retention",
    "RetryError",
    "SchemaVersionError",
    "SealError",
    "SessionBusyError",
    "SessionFencedError",
    "SessionRecords",
    "SignedHead",
    "StateCorruptedError",
    "StateNotFoundError",
    "StateStatus",
    "StorageBackend",
    "StorageWriteError",
    "Store",
    "StoreBusyError",
    "StoreClosedError",
    "StoreUnavailableError",
    "Task",
    "Thread",
    "ThreadDeletedError",
    "ThreadExistsError",
    "ThreadInfo",
    "ThreadNotFoundError",
    "Todo",
    "TodoStatus",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "UsageError",
    "UserStore",
    "ValidationError",
    "Version",
    "VersionNotFoundError",
    "WorkingState",
    "__version__",
    "checkpoint",
    "open",
    "open_async",
    "register",
    "register_migration",
]

__version__ = "0.1.0"

#: Public name → the module it lives in, ``everthread.errors`` where none is named. Imported when first
#: asked for, so that a bare import stays cheap.
_DOOR = {
    "AgentSession": "everthread.sessions.session",
    "Done": "everthread.sessions.effects",
    "PendingDecision": "everthread.sessions.decisions",
    "SessionRecords": "everthread.sessions.records",
    "Task": "everthread.sessions.taskgraph",
    "Usage": "everthread.sessions.usage",
    "UserStore": "everthread.people.users",
    "ABSENT": "everthread.history.merge",
    "AsyncEventStream": "everthread.events.aio.stream",
    "AsyncStore": "everthread.opening_async",
    "AsyncThread": "everthread.threads.aio.thread",
    "Briefing": "everthread.briefing.selecting",
    "CheckpointManager": "everthread.checkpoints.saving",
    "Checkpointable": "everthread.checkpoints.objects",
    "Conflict": "everthread.history.merge",
    "Diff": "everthread.history.diff",
    "Erased": "everthread.model.values",
    "Event": "everthread.events.event",
    "EventStream": "everthread.events.sync.stream",
    "Limits": "everthread.model.limits",
    "Merge": "everthread.history.merge",
    "Opaque": "everthread.model.values",
    "Personal": "everthread.model.values",
    "ResumeReport": "everthread.sessions.resuming",
    "Retention": "everthread.history.retention",
    "SignedHead": "everthread.history.chain",
    "Store": "everthread.opening",
    "Thread": "everthread.threads.sync.thread",
    "ThreadInfo": "everthread.model.versions",
    "Version": "everthread.model.versions",
    "open": "everthread.opening",
    "open_async": "everthread.opening_async",
    "checkpoint": "everthread.checkpoints.decorating",
    "register": "everthread.codec.types",
    "register_migration": "everthread.checkpoints.migrations",
    "Config": "everthread.working.config",
    "Constraint": "everthread.working.items",
    "ContextItem": "everthread.working.items",
    "Intention": "everthread.working.items",
    "OpenLoop": "everthread.working.items",
    "Priority": "everthread.working.items",
    "StateStatus": "everthread.working.items",
    "StorageBackend": "everthread.working.config",
    "Todo": "everthread.working.items",
    "TodoStatus": "everthread.working.items",
    "WorkingState": "everthread.working.state",
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
