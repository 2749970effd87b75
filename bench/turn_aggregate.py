"""The conversation as an event-sourced aggregate, for the turn benchmark; needs eventsourcing."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event


class Conversation(Aggregate):
    """Messages and a document; each turn is one event."""

    @event("Started")
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.messages: list[dict[str, Any]] = []

    @event("Exchanged")
    def exchange(self, question: dict[str, Any], answer: dict[str, Any], step: int) -> None:
        self.messages.append(question)
        self.messages.append(answer)
        self.state["step"] = step


class Conversations(Application[UUID]):
    """The application around it, with a snapshot every 50 events."""

    snapshotting_intervals: ClassVar[Any] = {Conversation: 50}
