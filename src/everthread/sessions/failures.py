"""What went wrong in a session, and what was done about it. Never rewound: it is why one rewinds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everthread.errors import AccessError, NotFoundError
from everthread.sessions import journal as j
from everthread.sessions.entries import ErrorRecord, error_of
from everthread.values import Personal, check_text

if TYPE_CHECKING:
    from everthread.sessions.held import HeldThread
    from everthread.threads.sync.thread import Thread

MESSAGE_MAX = 2_000
#: How many errors are looked through for the one that something was done about.
_RECENT = 1_000
#: An attribute of errors that were recorded.
_NOTED = "_everthread_noted"


class Failures:
    """The error history, as the run under way writes it. The text of an error may hold anything: if the
    session has a user, it is sealed as that person's."""

    def __init__(self, journal: HeldThread, run_id: str, user_id: str | None) -> None:
        self._journal = journal
        self._run_id = run_id
        self._user_id = user_id

    def note(self, error: BaseException, where: str) -> None:
        """Record an error on its way out, once, however many blocks it leaves."""
        if not self._is_noted(error):
            with self._journal.writing():
                self.put(error, where)

    def _is_noted(self, error: BaseException) -> bool:
        return getattr(error, _NOTED, None) == self._run_id

    def record(self, error: BaseException | str, *, where: str, handled: str | None = None) -> ErrorRecord:
        with self._journal.writing():
            return self.put(error, where, handled)

    def put(self, error: BaseException | str, where: str, handled: str | None = None) -> ErrorRecord:
        """Record an error within a write of the caller's."""
        kind, message = ("error", error) if isinstance(error, str) else (type(error).__name__, str(error))
        stored: dict[str, Any] = {
            "error_id": self._journal.new_id(),
            "kind": kind,
            "where": where,
            "at_us": self._journal.now_us(),
            "run": self._run_id,
            "handled": handled,
        }
        text = message[:MESSAGE_MAX].encode("utf-8", "replace").decode()
        stored["turn"] = self._journal.state[j.RUN]["turn"]
        log = self._journal.log(j.ERROR_LOG)
        try:
            log.append({**stored, "message": self._sealed(text)})
        except AccessError:
            # Without the keyring it is still worth knowing that something failed.
            log.append({**stored, "message": ""})
        if isinstance(error, BaseException):
            setattr(error, _NOTED, self._run_id)
        return error_of({**stored, "message": self._sealed(text)})

    def _sealed(self, text: str) -> Any:
        return text if self._user_id is None else Personal(self._user_id, text)

    def handled(self, error_id: str, what: str) -> None:
        """Say what was done about an error. Raises :class:`NotFoundError` for an unknown id."""
        check_text(what, "what was done about an error", "handled")
        with self._journal.writing():
            if not any(error.id == error_id for error in read_errors(self._journal, _RECENT)):
                raise NotFoundError(f"there is no error {error_id!r} among the last {_RECENT:,}")
            self._journal.log(j.ERROR_LOG).append({"about": error_id, "handled": str(what)})


def read_errors(journal: Thread, limit: int) -> list[ErrorRecord]:
    """The newest errors, newest first, with what was done about each."""
    handled: dict[str, str] = {}
    found: list[ErrorRecord] = []
    if limit <= 0:
        return found
    for item in reversed(journal.log(j.ERROR_LOG)):
        if not isinstance(item, Mapping):
            continue
        if "about" in item:
            handled.setdefault(item["about"], str(item.get("handled")))
            continue
        record = error_of(item)
        found.append(error_of(item, handled.get(record.id)))
        if len(found) == limit:
            break
    return found
