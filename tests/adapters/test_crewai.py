"""EverthreadFlowPersistence: a real flow of CrewAI, resumed by its id."""

from __future__ import annotations

from typing import Any

from crewai.flow.async_feedback.types import PendingFeedbackContext
from crewai.flow.flow import Flow, listen, start
from crewai.flow.persistence import persist
from pydantic import BaseModel

from everthread import Store
from everthread.adapters.crewai import EverthreadFlowPersistence


class Trip(BaseModel):
    id: str = "trip"
    steps: list[str] = []


def flow(store: Store) -> Any:
    @persist(EverthreadFlowPersistence(store))
    class Planning(Flow[Trip]):
        @start()
        def look(self) -> None:
            self.state.steps.append("looked")

        @listen(look)
        def book(self) -> None:
            self.state.steps.append("booked")

    return Planning()


def test_a_flow_is_resumed_by_its_id_and_its_versions_are_its_methods(store: Store) -> None:
    flow(store).kickoff(inputs={"id": "trip"})
    again = flow(store)
    again.kickoff(inputs={"id": "trip"})
    assert again.state.steps == ["looked", "booked", "looked", "booked"]
    thread = store.thread("crewai/trip")
    labels = [version.label for version in thread.history(None)]
    assert labels[::-1][:2] == ["look", "book"]
    assert thread.at(1).state["crewai"]["state"]["steps"] == ["looked"]


def test_what_a_flow_waits_for_is_kept_until_it_goes_on(store: Store) -> None:
    kept = EverthreadFlowPersistence(store)
    assert kept.load_state("x") is None
    assert kept.load_pending_feedback("x") is None
    context = PendingFeedbackContext(
        flow_id="x", flow_class="Planning", method_name="look", method_output="?", message="sure?"
    )
    kept.save_pending_feedback("x", context, {"id": "x", "n": 1})
    found = EverthreadFlowPersistence(store).load_pending_feedback("x")
    assert found is not None
    assert found[0] == {"id": "x", "n": 1}
    assert found[1].message == "sure?"
    kept.clear_pending_feedback("x")
    assert kept.load_pending_feedback("x") is None
    assert kept.load_state("x") == {"id": "x", "n": 1}
