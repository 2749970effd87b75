"""Everthread keeps the state of AI agents so that their thread of work never breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everthread.briefing.selection import Briefing
    from everthread.checkpoints.objects import Checkpointable
    from everthread.checkpoints.saves import CheckpointManager, checkpoint
    from everthread.checkpoints.states import register_migration
    from everthread.codec.types import register
    from everthread.errors import (
        AccessError,
        ConflictError,
        DamageError,
        EffectMismatchError,
        EffectsDeniedError,
        ErasedError,
        EventsTrimmedError,
        EverthreadError,
        FencedError,
        InDoubtError,
        InvalidNameError,
        InvalidStateError,
        InvalidValueError,
        KeyReusedError,
        KeyringError,
        LegalHoldError,
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
        ToolVetoError,
        UnavailableError,
        UnsupportedError,
        UsageError,
        ValidationError,
        VersionNotFoundError,
        VersionPrunedError,
    )
    from everthread.events.aio.stream import AsyncEventStream
    from everthread.events.event import Event
    from everthread.events.sync.stream import EventStream
    from everthread.history.chain import SignedHead
    from everthread.history.diff import Diff
    from everthread.history.merge import ABSENT, Conflict, Merge
    from everthread.history.retention import Retention
    from everthread.keyring.backup import KeyringBackup, KeyringRestored
    from everthread.keyring.keyring import Keyring, open_keyring
    from everthread.knowledge import Passage
    from everthread.limits import Limits
    from everthread.maintenance.key_needs import KeyNeeds
    from everthread.maintenance.reports import (
        Affected,
        BackupReport,
        CoolReport,
        Damage,
        GcReport,
        RestoreReport,
        VerifyReport,
    )
    from everthread.maintenance.stats import StoreStats
    from everthread.people.holds import LegalHold
    from everthread.people.report import ErasureReport
    from everthread.people.users import UserStore
    from everthread.redaction.report import Place, RedactionReport
    from everthread.salvager.report import SalvagedThread, SalvageReport
    from everthread.salvager.salvager import salvage
    from everthread.search.query import Hit, Hits
    from everthread.sessions.aio.session import AsyncAgentSession
    from everthread.sessions.effects import Done
    from everthread.sessions.orders import StandingOrder
    from everthread.sessions.resume import ResumeReport
    from everthread.sessions.sync.decisions import PendingDecision
    from everthread.sessions.sync.session import AgentSession
    from everthread.sessions.sync.status import SessionRecords
    from everthread.sessions.tasks import Task
    from everthread.sessions.usage import Usage
    from everthread.store import Store, open
    from everthread.store_async import AsyncStore, open_async
    from everthread.threads.aio.thread import AsyncThread
    from everthread.threads.migrations import register_document_migration
    from everthread.threads.reports import Recovered
    from everthread.threads.sync.thread import Thread
    from everthread.transfer.report import ExportReport, ImportReport
    from everthread.values import Corrupt, Erased, Opaque, Personal, derive, reveal
    from everthread.versions import Pin, RecordedStep, RunToken, ThreadInfo, Version
    from everthread.working.aio.state import AsyncWorkingState
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
    from everthread.working.sync.state import WorkingState

__all__ = [
    "ABSENT",
    "AccessError",
    "Affected",
    "AgentSession",
    "AsyncAgentSession",
    "AsyncEventStream",
    "AsyncStore",
    "AsyncThread",
    "AsyncWorkingState",
    "BackupReport",
    "Briefing",
    "CheckpointManager",
    "Checkpointable",
    "Config",
    "Conflict",
    "ConflictError",
    "Constraint",
    "ContextItem",
    "CoolReport",
    "Corrupt",
    "Damage",
    "DamageError",
    "Diff",
    "Done",
    "EffectMismatchError",
    "EffectsDeniedError",
    "Erased",
    "ErasedError",
    "ErasureReport",
    "Event",
    "EventStream",
    "EventsTrimmedError",
    "EverthreadError",
    "ExportReport",
    "FencedError",
    "GcReport",
    "Hit",
    "Hits",
    "ImportReport",
    "InDoubtError",
    "Intention",
    "InvalidNameError",
    "InvalidStateError",
    "InvalidValueError",
    "KeyNeeds",
    "KeyReusedError",
    "Keyring",
    "KeyringBackup",
    "KeyringError",
    "KeyringRestored",
    "LegalHold",
    "LegalHoldError",
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
    "Passage",
    "PendingDecision",
    "Personal",
    "Pin",
    "Place",
    "Priority",
    "RecordedStep",
    "Recovered",
    "RedactionReport",
    "RestoreReport",
    "ResultNotStoredError",
    "ResumeReport",
    "Retention",
    "RetryError",
    "RunToken",
    "SalvageReport",
    "SalvagedThread",
    "SchemaVersionError",
    "SealError",
    "SessionBusyError",
    "SessionFencedError",
    "SessionRecords",
    "SignedHead",
    "StandingOrder",
    "StateCorruptedError",
    "StateNotFoundError",
    "StateStatus",
    "StorageBackend",
    "StorageWriteError",
    "Store",
    "StoreBusyError",
    "StoreClosedError",
    "StoreStats",
    "StoreUnavailableError",
    "Task",
    "Thread",
    "ThreadDeletedError",
    "ThreadExistsError",
    "ThreadInfo",
    "ThreadNotFoundError",
    "Todo",
    "TodoStatus",
    "ToolVetoError",
    "UnavailableError",
    "UnsupportedError",
    "Usage",
    "UsageError",
    "UserStore",
    "ValidationError",
    "VerifyReport",
    "Version",
    "VersionNotFoundError",
    "VersionPrunedError",
    "WorkingState",
    "__version__",
    "checkpoint",
    "derive",
    "open",
    "open_async",
    "open_keyring",
    "register",
    "register_document_migration",
    "register_migration",
    "reveal",
    "salvage",
]

__version__ = "0.1.0"

#: Public name → the module it lives in, ``everthread.errors`` where none is named. Imported when first
#: asked for, so that a bare import stays cheap.
_DOOR = {
    "ABSENT": "everthread.history.merge",
    "Affected": "everthread.maintenance.reports",
    "AgentSession": "everthread.sessions.sync.session",
    "AsyncAgentSession": "everthread.sessions.aio.session",
    "AsyncEventStream": "everthread.events.aio.stream",
    "AsyncStore": "everthread.store_async",
    "AsyncThread": "everthread.threads.aio.thread",
    "AsyncWorkingState": "everthread.working.aio.state",
    "BackupReport": "everthread.maintenance.reports",
    "Briefing": "everthread.briefing.selection",
    "CheckpointManager": "everthread.checkpoints.saves",
    "Checkpointable": "everthread.checkpoints.objects",
    "Config": "everthread.working.config",
    "Conflict": "everthread.history.merge",
    "Constraint": "everthread.working.items",
    "ContextItem": "everthread.working.items",
    "CoolReport": "everthread.maintenance.reports",
    "Corrupt": "everthread.values",
    "Damage": "everthread.maintenance.reports",
    "Diff": "everthread.history.diff",
    "Done": "everthread.sessions.effects",
    "Erased": "everthread.values",
    "Event": "everthread.events.event",
    "EventStream": "everthread.events.sync.stream",
    "ExportReport": "everthread.transfer.report",
    "GcReport": "everthread.maintenance.reports",
    "ImportReport": "everthread.transfer.report",
    "Hit": "everthread.search.query",
    "Hits": "everthread.search.query",
    "Intention": "everthread.working.items",
    "KeyNeeds": "everthread.maintenance.key_needs",
    "Keyring": "everthread.keyring.keyring",
    "KeyringBackup": "everthread.keyring.backup",
    "KeyringRestored": "everthread.keyring.backup",
    "LegalHold": "everthread.people.holds",
    "Limits": "everthread.limits",
    "Merge": "everthread.history.merge",
    "Opaque": "everthread.values",
    "OpenLoop": "everthread.working.items",
    "Passage": "everthread.knowledge",
    "PendingDecision": "everthread.sessions.sync.decisions",
    "Personal": "everthread.values",
    "Pin": "everthread.versions",
    "Place": "everthread.redaction.report",
    "RedactionReport": "everthread.redaction.report",
    "Priority": "everthread.working.items",
    "RecordedStep": "everthread.versions",
    "Recovered": "everthread.threads.reports",
    "RestoreReport": "everthread.maintenance.reports",
    "ResumeReport": "everthread.sessions.resume",
    "Retention": "everthread.history.retention",
    "RunToken": "everthread.versions",
    "SalvageReport": "everthread.salvager.report",
    "SalvagedThread": "everthread.salvager.report",
    "SessionRecords": "everthread.sessions.sync.status",
    "SignedHead": "everthread.history.chain",
    "StandingOrder": "everthread.sessions.orders",
    "StateStatus": "everthread.working.items",
    "StorageBackend": "everthread.working.config",
    "Store": "everthread.store",
    "StoreStats": "everthread.maintenance.stats",
    "Task": "everthread.sessions.tasks",
    "Thread": "everthread.threads.sync.thread",
    "ThreadInfo": "everthread.versions",
    "Todo": "everthread.working.items",
    "TodoStatus": "everthread.working.items",
    "Usage": "everthread.sessions.usage",
    "UserStore": "everthread.people.users",
    "ErasureReport": "everthread.people.report",
    "VerifyReport": "everthread.maintenance.reports",
    "Version": "everthread.versions",
    "WorkingState": "everthread.working.sync.state",
    "checkpoint": "everthread.checkpoints.saves",
    "derive": "everthread.values",
    "reveal": "everthread.values",
    "open": "everthread.store",
    "open_keyring": "everthread.keyring.keyring",
    "open_async": "everthread.store_async",
    "register": "everthread.codec.types",
    "register_document_migration": "everthread.threads.migrations",
    "register_migration": "everthread.checkpoints.states",
    "salvage": "everthread.salvager.salvager",
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
