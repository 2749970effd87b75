"""Strands Agents: sessions, their agents and messages, on threads.

``EverthreadSessionRepository``: a session is a thread. The messages of its first agent are the log
``messages``, which every other framework reads and continues; those of further agents have logs of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everthread.adapters.bridge import framework, own_records, sealed
from everthread.arguments import check_name
from everthread.errors import UsageError
from everthread.messages.shapes import STRANDS
from everthread.messages.view import view
from everthread.store import Store
from everthread.threads.sync.thread import MESSAGES, Thread

with framework("strands"):
    from strands.session.repository_session_manager import RepositorySessionManager
    from strands.session.session_repository import SessionRepository
    from strands.types.exceptions import SessionException
    from strands.types.session import Session, SessionAgent, SessionMessage

__all__ = ["EverthreadSessionManager", "EverthreadSessionRepository"]

#: Where the document keeps what belongs to this adapter.
PART = "strands"

_own = own_records(STRANDS)


class EverthreadSessionRepository(SessionRepository):  # type: ignore[misc]
    """Sessions of Strands in an open store of ``everthread.open()``.

    Every change is one durable version. A thread that another framework began is a session whose first
    agent has its messages, converted. With a ``subject`` messages are sealed under that person's key.
    """

    def __init__(self, store: Store, *, subject: str | None = None) -> None:
        if not isinstance(store, Store):
            raise UsageError("Strands calls without await: give it a store of everthread.open()")
        self._store = store
        self._subject = subject

    def _thread(self, session_id: str) -> Thread:
        return self._store.thread(check_name(session_id, "session id"))

    def _part(self, session_id: str) -> dict[str, Any]:
        thread = self._thread(session_id)
        if thread.head is None:
            return {}
        begun = {"session": Session(session_id=session_id, session_type="AGENT").to_dict()}
        part: dict[str, Any] = thread.state.plain().get(PART, begun)
        return part

    def _change(self, session_id: str, change: Callable[[Any, Any], None]) -> None:
        if not self._part(session_id):
            raise SessionException(f"Session {session_id} does not exist")

        def apply(draft: Any) -> None:
            part = draft.state.setdefault(PART, {})
            for name in ("agents", "multi_agents"):
                part.setdefault(name, {})
            part.setdefault("session", Session(session_id=session_id, session_type="AGENT").to_dict())
            change(draft, part)

        self._thread(session_id).update(apply)

    # ── sessions and agents ──────────────────────────────────────────────────────────────────

    def create_session(self, session: Session, **kwargs: Any) -> Session:
        """Raises ``SessionException`` if there is one of this id, or a thread that others began."""
        thread = self._thread(session.session_id)
        if thread.head is not None:
            raise SessionException(f"Session {session.session_id} already exists")
        thread.state[PART] = {"session": session.to_dict(), "agents": {}, "multi_agents": {}}
        thread.commit()
        return session

    def read_session(self, session_id: str, **kwargs: Any) -> Session | None:
        part = self._part(session_id)
        return Session.from_dict(part["session"]) if part else None

    def create_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        def change(draft: Any, part: Any) -> None:
            if session_agent.agent_id in part["agents"]:
                raise SessionException(f"Agent {session_agent.agent_id} already exists in {session_id}")
            first = not part["agents"].plain()
            log = MESSAGES if first else f"agent/{session_agent.agent_id}"
            part["agents"][session_agent.agent_id] = {"agent": session_agent.to_dict(), "log": log}

        self._change(session_id, change)

    def read_agent(self, session_id: str, agent_id: str, **kwargs: Any) -> SessionAgent | None:
        part = self._part(session_id)
        found = part.get("agents", {}).get(agent_id)
        return None if found is None else SessionAgent.from_dict(found["agent"])

    def is_begun_elsewhere(self, session_id: str) -> bool:
        """Whether other frameworks began the thread, and no agent of Strands has gone on with it yet."""
        return not self._part(session_id).get("agents") and len(self._thread(session_id).messages) > 0

    def update_agent(self, session_id: str, session_agent: SessionAgent, **kwargs: Any) -> None:
        def change(draft: Any, part: Any) -> None:
            known = part["agents"].get(session_agent.agent_id)
            if known is None:
                raise SessionException(f"Agent {session_agent.agent_id} does not exist in {session_id}")
            made = {**session_agent.to_dict(), "created_at": known.plain()["agent"]["created_at"]}
            known["agent"] = made

        self._change(session_id, change)

    # ── messages ─────────────────────────────────────────────────────────────────────────────

    def _log_name(self, session_id: str, agent_id: str) -> str:
        found = self._part(session_id).get("agents", {}).get(agent_id)
        if found is None:
            raise SessionException(f"Agent {agent_id} does not exist in session {session_id}")
        return str(found["log"])

    def create_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        log = self._log_name(session_id, agent_id)
        item = self._item(session_message)
        self._change(session_id, lambda draft, part: draft.log(log).append(item))

    def read_message(
        self, session_id: str, agent_id: str, message_id: int, **kwargs: Any
    ) -> SessionMessage | None:
        found = self.list_messages(session_id, agent_id)
        return next((each for each in found if each.message_id == message_id), None)

    def update_message(
        self, session_id: str, agent_id: str, session_message: SessionMessage, **kwargs: Any
    ) -> None:
        """Put another message in the place of one; what comes after it stays."""
        log_name = self._log_name(session_id, agent_id)

        def change(draft: Any, part: Any) -> None:
            log = draft.log(log_name)
            items = list(log)
            for at, item in enumerate(items):
                if (_own(item) or [{}])[0].get("message_id") == session_message.message_id:
                    log.truncate_from(item["id"])
                    log.extend([self._item(session_message), *items[at + 1 :]])
                    return
            raise SessionException(f"Message {session_message.message_id} does not exist in {session_id}")

        self._change(session_id, change)

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **kwargs: Any
    ) -> list[SessionMessage]:
        """The messages, oldest first. What others wrote is numbered after what was before it."""
        log = self._thread(session_id).log(self._log_name(session_id, agent_id))
        found: list[SessionMessage] = []
        for each in view(log, STRANDS, _message, reveal=self._subject is not None):
            if each.own:
                found += [SessionMessage.from_dict(record) for record in _own(each.item) or []]
                continue
            for message in each.messages:
                number = found[-1].message_id + 1 if found else 0
                found.append(SessionMessage(message=message, message_id=number))
        return found[offset : None if limit is None else offset + limit]

    def _item(self, message: SessionMessage) -> dict[str, Any]:
        record = message.to_dict()
        # As everybody else reads it: the message, and beside it what Strands says of it.
        return {"shape": STRANDS, "message": sealed(self._subject, {**record, **record["message"]})}

    # ── several agents ───────────────────────────────────────────────────────────────────────

    def create_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:
        state = multi_agent.serialize_state()
        self._change(session_id, lambda draft, part: part["multi_agents"].update({multi_agent.id: state}))

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **kwargs: Any) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._part(session_id).get("multi_agents", {}).get(multi_agent_id)
        return found

    def update_multi_agent(self, session_id: str, multi_agent: Any, **kwargs: Any) -> None:
        if self.read_multi_agent(session_id, multi_agent.id) is None:
            raise SessionException(f"MultiAgent {multi_agent.id} does not exist in session {session_id}")
        self.create_multi_agent(session_id, multi_agent)


def _message(item: Any) -> list[Any] | None:
    records = _own(item)
    return None if records is None else [record["message"] for record in records]


class EverthreadSessionManager(RepositorySessionManager):  # type: ignore[misc]
    """``Agent(session_manager=EverthreadSessionManager("trip", store))``: the session is the thread ``trip``.

    If other frameworks began it, the first agent goes on with what they wrote.
    """

    def __init__(self, session_id: str, store: Store, *, subject: str | None = None) -> None:
        self._sessions = EverthreadSessionRepository(store, subject=subject)
        super().__init__(session_id, self._sessions)

    def initialize(self, agent: Any, **kwargs: Any) -> None:
        """Give an agent its messages and its state."""
        if self._sessions.is_begun_elsewhere(self.session_id):
            self._sessions.create_agent(self.session_id, SessionAgent.from_agent(agent))
        super().initialize(agent, **kwargs)
