"""One turn of an agent server, as each contender does it.

A turn reads the state and the last 20 messages, appends two, changes the state a little and makes it durable.
Contenders marked *anew* open and close their store or connection within the turn. A peer that has no document
beside its messages does less than the others, and the report says so.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

import apsw
import msgspec

import everthread

from .messages import Message
from .savers import connect, first_document, url

SESSION = "conversation"
TAIL = 20
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Peer(Protocol):
    """One contender of the turn benchmark."""

    def turn(self, number: int, question: Message, answer: Message) -> None: ...

    def close(self) -> None: ...


class EverthreadTurns:
    """A new thread handle in each turn, on an open store or on one opened for the turn."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        self.path = path
        self.store: Any = None if anew else everthread.open(url(path))

    def turn(self, number: int, question: Message, answer: Message) -> None:
        store = self.store or everthread.open(url(self.path))
        thread = store.thread(SESSION)
        state = thread.state.plain()
        tail = thread.messages[-TAIL:]
        check(len(tail), number)
        if not state:
            thread.state.update(first_document())
        thread.messages.append(question)
        thread.messages.append(answer)
        thread.state["step"] = number
        thread.commit()
        if self.store is None:
            store.close()

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


class HandWrittenSession:
    """What a careful engineer writes: prepared statements, one read and one write transaction, no history."""

    def __init__(self, connection: apsw.Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.last = 0

    def load(self) -> tuple[dict[str, Any], list[Message]]:
        """The document and the last messages, oldest first, as of one moment."""
        run = self.connection.execute
        with self.connection:
            row = run("SELECT body FROM state WHERE session = ?", (self.name,)).fetchone()
            rows: list[Any] = run(
                "SELECT n, body FROM messages WHERE session = ? ORDER BY n DESC LIMIT ?", (self.name, TAIL)
            ).fetchall()
        self.last = rows[0][0] if rows else 0
        return (_decode(row[0]) if row else {}), [_decode(body) for _, body in reversed(rows)]

    def save(self, messages: list[Message], state: dict[str, Any]) -> None:
        """Append and replace the document; a writer that came in between violates the primary key."""
        run = self.connection.execute
        run("BEGIN IMMEDIATE")
        try:
            for n, message in enumerate(messages, self.last + 1):
                run("INSERT INTO messages VALUES (?, ?, ?)", (self.name, n, _encode(message).decode()))
            run("INSERT OR REPLACE INTO state VALUES (?, ?)", (self.name, _encode(state).decode()))
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")


class HandWrittenTurns:
    """A new session object in each turn, on an open connection or on one opened for the turn."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        self.path = path
        self.connection: apsw.Connection | None = None if anew else self._open()

    def _open(self) -> apsw.Connection:
        connection = connect(self.path)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS messages(session TEXT, n INTEGER, body TEXT, PRIMARY KEY(session, n))"
        )
        connection.execute("CREATE TABLE IF NOT EXISTS state(session TEXT PRIMARY KEY, body TEXT)")
        return connection

    def turn(self, number: int, question: Message, answer: Message) -> None:
        connection = self.connection or self._open()
        session = HandWrittenSession(connection, SESSION)
        state, tail = session.load()
        check(len(tail), number)
        if not state:
            state = first_document()
        state["step"] = number
        session.save([question, answer], state)
        if self.connection is None:
            connection.close()

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


class OpenAITurns:
    """OpenAI Agents' SQLiteSession, reused or made for the turn; it keeps messages only, no document."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        from agents import SQLiteSession

        self.make: Any = SQLiteSession
        self.path = path
        self.loop = asyncio.new_event_loop()
        self.session: Any = None if anew else self.make(SESSION, path)

    def turn(self, number: int, question: Message, answer: Message) -> None:
        self.loop.run_until_complete(self._turn(number, question, answer))

    async def _turn(self, number: int, question: Message, answer: Message) -> None:
        session = self.session or self.make(SESSION, self.path)
        check(len(await session.get_items(limit=TAIL)), number)
        await session.add_items([question, answer])
        if self.session is None:
            session.close()

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class EventSourcingTurns:
    """An eventsourcing aggregate, rebuilt in each turn from its last snapshot; a snapshot every 50 events."""

    def __init__(self, path: Path) -> None:
        from .turn_aggregate import Conversation, Conversations

        self.app = Conversations(
            env={"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": str(path)}
        )
        conversation = Conversation(state=first_document())
        self.app.save(conversation)
        self.id: UUID = conversation.id

    def turn(self, number: int, question: Message, answer: Message) -> None:
        conversation: Any = self.app.repository.get(self.id)
        check(len(conversation.messages[-TAIL:]), number)
        conversation.exchange(question=question, answer=answer, step=number)
        self.app.save(conversation)

    def close(self) -> None:
        self.app.close()


def check(found: int, number: int) -> None:
    """Refuse to time a contender that lost messages."""
    if found != min(TAIL, 2 * (number - 1)):
        raise AssertionError(f"turn {number} found {found} messages")
