"""CrewAI flows: the state of a flow on a thread, a version for each method that has ended.

``EverthreadFlowPersistence``: a flow is the thread ``crewai/<its id>``."""

from __future__ import annotations

from typing import Any

from everthread.adapters.bridge import framework, named
from everthread.errors import ConflictError, UsageError
from everthread.store import Store

with framework("crewai"):
    from crewai.flow.async_feedback.types import PendingFeedbackContext
    from crewai.flow.persistence.base import FlowPersistence
    from pydantic import BaseModel, PrivateAttr

__all__ = ["EverthreadFlowPersistence"]

#: What names of threads begin with, and where documents keep what belongs to this adapter.
PART = "crewai"


class EverthreadFlowPersistence(FlowPersistence):  # type: ignore[misc]
    """``@persist(EverthreadFlowPersistence(store))`` on a flow.

    ``store`` is one of ``everthread.open()``. Each save is one durable version, labelled with the method that
    has ended: history, diff, rewind and forks of the thread are those of the flow.
    """

    persistence_type: str = "EverthreadFlowPersistence"
    _store: Any = PrivateAttr()
    _prefix: str = PrivateAttr()

    def __init__(self, store: Store, *, prefix: str = f"{PART}/") -> None:
        super().__init__()
        if not isinstance(store, Store):
            raise UsageError("flows are saved without await: give them a store of everthread.open()")
        self._store = store
        self._prefix = prefix

    def init_db(self) -> None:
        """Nothing is to be prepared."""

    def thread_name(self, flow_uuid: str) -> str:
        """The thread of a flow, for everything else that a thread can do."""
        return named(self._prefix, flow_uuid)

    def _save(self, flow_uuid: str, label: str, **values: Any) -> None:
        while True:
            thread = self._store.thread(self.thread_name(flow_uuid))
            thread.state.setdefault(PART, {}).update(values)
            try:
                thread.commit(label=label)
                return
            except ConflictError:
                # Somebody else wrote to the thread; what it holds of the flow is this flow's.
                continue

    def save_state(self, flow_uuid: str, method_name: str, state_data: dict[str, Any] | BaseModel) -> None:
        """Keep the state after a method; durable when this returns."""
        self._save(flow_uuid, method_name, state=_plain(state_data), method=method_name)

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        """The state that was kept last; ``None`` if there is none."""
        return self._part(flow_uuid).get("state")

    def _part(self, flow_uuid: str) -> dict[str, Any]:
        part: dict[str, Any] = self._store.thread(self.thread_name(flow_uuid)).state.plain().get(PART, {})
        return part

    # ── flows that wait for a person ─────────────────────────────────────────────────────────

    def save_pending_feedback(
        self, flow_uuid: str, context: PendingFeedbackContext, state_data: dict[str, Any] | BaseModel
    ) -> None:
        """Keep the state together with what the flow waits for."""
        state = _plain(state_data)
        self._save(
            flow_uuid, context.method_name, state=state, method=context.method_name, waits=context.to_dict()
        )

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], PendingFeedbackContext] | None:
        """The state and what the flow waits for; ``None`` if it doesn't."""
        part = self._part(flow_uuid)
        if part.get("waits") is None:
            return None
        return part["state"], PendingFeedbackContext.from_dict(part["waits"])

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        """The flow goes on."""
        if self._part(flow_uuid).get("waits") is not None:
            self._save(flow_uuid, "feedback", waits=None)


def _plain(state: dict[str, Any] | BaseModel) -> dict[str, Any]:
    return state.model_dump(mode="json") if isinstance(state, BaseModel) else dict(state)
