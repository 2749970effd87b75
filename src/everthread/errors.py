"""Every error Everthread raises, grouped by what the caller does about it.

EverthreadError
├── RetryError               re-read, then try again
│   ├── ConflictError        another writer committed first
│   │   └── MergeConflictError   both sides changed the same thing
│   ├── FencedError          a newer attempt took over this step
│   │   └── SessionFencedError   another run took over this session
│   └── KeyReusedError       the key belongs to a version that was rewound past
├── InDoubtError             look at the world, then settle it
├── NotFoundError            create it first, or correct the name
│   ├── StateNotFoundError
│   ├── ThreadNotFoundError
│   │   └── ThreadDeletedError
│   ├── VersionNotFoundError
│   │   └── VersionPrunedError   it was there; store.gc() removed it
│   ├── EventsTrimmedError   they were there; the stream was trimmed
│   └── MessageNotFoundError
├── UnavailableError         try later, or look at the machine
│   ├── StoreUnavailableError
│   ├── StoreBusyError
│   ├── SessionBusyError     another run holds the thread
│   └── StorageWriteError
├── DamageError              stop, then heal
│   └── StateCorruptedError
├── SchemaVersionError       upgrade the code, the data is newer
├── AccessError              ask whoever holds the key
│   ├── KeyringError
│   ├── LegalHoldError       somebody's data must be kept for now
│   └── SealError
│       └── ErasedError      the person was erased
└── UsageError               correct the call
    ├── InvalidStateError
    │   ├── EffectsDeniedError   no effects are made in this fork
    │   ├── MaxTurnsError
    │   ├── ToolVetoError
    │   └── StoreClosedError
    ├── InvalidNameError
    ├── InvalidValueError
    │   ├── EffectMismatchError
    │   ├── LimitError
    │   ├── ResultNotStoredError
    │   └── ValidationError
    ├── UnsupportedError
    ├── NotAStoreError
    ├── ThreadExistsError
    └── MissingDependencyError
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = [
    "AccessError",
    "ConflictError",
    "DamageError",
    "EffectMismatchError",
    "EffectsDeniedError",
    "ErasedError",
    "EventsTrimmedError",
    "EverthreadError",
    "FencedError",
    "InDoubtError",
    "InvalidNameError",
    "InvalidStateError",
    "InvalidValueError",
    "KeyReusedError",
    "KeyringError",
    "LegalHoldError",
    "LimitError",
    "MaxTurnsError",
    "MergeConflictError",
    "MessageNotFoundError",
    "MissingDependencyError",
    "NotAStoreError",
    "NotFoundError",
    "ResultNotStoredError",
    "RetryError",
    "SchemaVersionError",
    "SealError",
    "SessionBusyError",
    "SessionFencedError",
    "StateCorruptedError",
    "StateNotFoundError",
    "StorageWriteError",
    "StoreBusyError",
    "StoreClosedError",
    "StoreUnavailableError",
    "ThreadDeletedError",
    "ThreadExistsError",
    "ThreadNotFoundError",
    "ToolVetoError",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "ValidationError",
    "VersionNotFoundError",
    "VersionPrunedError",
]


class EverthreadError(Exception):
    """The root of everything raised on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Engines keep errors, and pools of processes send them on. Most take more than a message to be made.
        found: Any = super().__reduce__()
        kind, arguments, *state = found
        return _unmade, (kind, *arguments), *state


def _unmade(kind: type[EverthreadError], *arguments: Any) -> EverthreadError:
    """An error whose attributes are yet to be filled in."""
    return kind.__new__(kind, *arguments)


class RetryError(EverthreadError):
    """Somebody else was first: read again and decide anew."""


class ConflictError(RetryError):
    """The line moved on after this handle read it; nothing was written.

    ``expected`` is the version this handle stood on, ``actual`` the line's newest one
    (``None`` where there is none). The uncommitted changes are still in the handle.
    """

    def __init__(self, message: str, *, expected: Any = None, actual: Any = None) -> None:
        super().__init__(message)
        self.expected = expected
        self.actual = actual


class MergeConflictError(ConflictError):
    """Both sides changed the same places; ``conflicts`` lists each one. Nothing was changed."""

    def __init__(
        self,
        message: str,
        *,
        conflicts: Sequence[Any],
        expected: Any = None,
        actual: Any = None,
    ) -> None:
        super().__init__(message, expected=expected, actual=actual)
        self.conflicts = tuple(conflicts)


class FencedError(RetryError):
    """This attempt of a step may not write any more: a newer one has been entered, or a rewind has left the
    version behind that it was entered on."""

    def __init__(self, message: str, *, attempt: int, newest: int) -> None:
        super().__init__(message)
        self.attempt = attempt
        self.newest = newest


class SessionFencedError(FencedError):
    """Another run has taken this session over; this one may not write any more. Stop it.

    ``attempt`` and ``newest`` are the fencing numbers of the two, ``holder`` is who has it now.
    """

    def __init__(self, message: str, *, attempt: int, newest: int, holder: Any = None) -> None:
        super().__init__(message, attempt=attempt, newest=newest)
        self.holder = holder


class KeyReusedError(RetryError):
    """The commit key belongs to ``version``, which ``rewind`` left behind; nothing was written."""

    def __init__(self, message: str, *, key: str, version: Any, rewind: Any) -> None:
        super().__init__(message)
        self.key = key
        self.version = version
        self.rewind = rewind


class InDoubtError(EverthreadError):
    """Whether the effect ``key`` has happened is not known; it was not repeated.

    Look at the world, then say so with ``session.settle(key, …)``, or pass a ``verify`` that can tell.
    ``reason`` says why it is in doubt, ``since`` when it was begun.
    """

    def __init__(self, message: str, *, key: str, reason: str = "", since: Any = None) -> None:
        super().__init__(message)
        self.key = key
        self.reason = reason
        self.since = since


class NotFoundError(EverthreadError):
    """What was asked for isn't there."""


class StateNotFoundError(NotFoundError):
    """No saved state has this id."""


class ThreadNotFoundError(NotFoundError):
    """No thread has this name yet (a thread exists from its first commit)."""


class ThreadDeletedError(ThreadNotFoundError):
    """The thread was deleted after this handle read it. Deletion is final."""


class VersionNotFoundError(NotFoundError):
    """This thread has no such version."""


class VersionPrunedError(VersionNotFoundError):
    """The version was there, and was removed by ``store.gc()`` as its retention allows."""


class EventsTrimmedError(NotFoundError):
    """Events of ``stream`` that were to be read next were trimmed; ``first`` is the first one that is kept,
    or that will come. Nothing was read."""

    def __init__(self, message: str, *, stream: str, first: int) -> None:
        super().__init__(message)
        self.stream = stream
        self.first = first


class MessageNotFoundError(NotFoundError, LookupError):
    """The log has no item with this id."""


class UnavailableError(EverthreadError):
    """The store can't serve this now."""


class StoreUnavailableError(UnavailableError):
    """The place where the store should be can't be reached or opened."""


class StoreBusyError(UnavailableError):
    """Other writers kept the store locked for the whole waiting time; nothing was written."""


class SessionBusyError(UnavailableError):
    """Another live run holds this thread: ``holder`` says which, ``expires`` until when unless it renews."""

    def __init__(self, message: str, *, holder: Any, expires: Any) -> None:
        super().__init__(message)
        self.holder = holder
        self.expires = expires


class StorageWriteError(UnavailableError):
    """Writing failed (disk full, I/O error). The version is wholly there or not at all.

    Commit again from the same handle: it recognises its own attempt if that had landed.
    """


class DamageError(EverthreadError):
    """Stored bytes are not what was written."""


class StateCorruptedError(DamageError):
    """A record fails its checksum, its chain or its format. ``where`` names it."""

    def __init__(self, message: str, *, where: str | None = None) -> None:
        super().__init__(message)
        self.where = where


class SchemaVersionError(EverthreadError):
    """The data was written by a newer Everthread; nothing was touched."""

    def __init__(self, message: str, *, found: Any = None, supported: Any = None) -> None:
        super().__init__(message)
        self.found = found
        self.supported = supported


class AccessError(EverthreadError):
    """A key is missing, wrong or destroyed."""


class KeyringError(AccessError):
    """The keyring can't be read or written, or its master key is wrong."""


class SealError(AccessError):
    """A personal value can't be sealed or opened."""


class ErasedError(SealError):
    """A personal value belongs to somebody who was erased meanwhile, and can't be stored again."""


class LegalHoldError(AccessError):
    """Somebody's data is under a legal hold, for ``reason``: it isn't erased before that is released."""

    def __init__(self, message: str, *, reason: str, since_us: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.since_us = since_us


class UsageError(EverthreadError):
    """The call itself must change."""


class InvalidStateError(UsageError):
    """This makes no sense in the present state."""


class EffectsDeniedError(InvalidStateError):
    """The effect ``key`` was not called: ``thread`` is a fork that makes none (``effects="deny"``)."""

    def __init__(self, message: str, *, key: str, thread: str) -> None:
        super().__init__(message)
        self.key = key
        self.thread = thread


class MaxTurnsError(InvalidStateError):
    """The run has used up its ``max_turns``. Leaving the session's block with this, the run is recorded as
    ended for that reason."""

    def __init__(self, message: str, *, max_turns: int) -> None:
        super().__init__(message)
        self.max_turns = max_turns


class ToolVetoError(InvalidStateError):
    """Raised by a hook of ``on_tool_use`` before a tool runs: the tool isn't run, and whoever called it gets
    this."""


class StoreClosedError(InvalidStateError):
    """The store was closed; open it again."""


class InvalidNameError(UsageError, ValueError):
    """A name of a thread, log, key, subject or label breaks the rules for names."""


class InvalidValueError(UsageError, ValueError):
    """A value can't be stored; ``path`` says where it is (``state.todos[3].content``)."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class EffectMismatchError(InvalidValueError):
    """The effect ``key`` was recorded for another function or other arguments; nothing was called."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message, path="key")
        self.key = key


class ResultNotStoredError(InvalidValueError):
    """The effect ``key`` is done and recorded as such, but what it returned can't be stored.

    ``result`` is what the function returned, in the call that ran it; ``None`` in later ones. It is never
    run again. Let the function return plain data, or ``register()`` the type.
    """

    def __init__(self, message: str, *, key: str, result: Any = None) -> None:
        super().__init__(message, path="result")
        self.key = key
        self.result = result


class LimitError(InvalidValueError):
    """A value is larger or deeper than the configured limits allow."""


class ValidationError(InvalidValueError):
    """The document breaks its schema; nothing was committed."""


class UnsupportedError(UsageError):
    """This store or URL scheme can't do that."""


class NotAStoreError(UsageError):
    """The file exists but isn't an Everthread store; it was left as it is."""


class ThreadExistsError(UsageError):
    """A thread of this name exists already."""


class MissingDependencyError(UsageError, ImportError):
    """An optional package isn't installed; the message names the command."""
