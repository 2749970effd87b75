"""An agent's working state over several runs: saved, resumed, compared, looked back at.

Run it several times from one folder: it goes on where the last run stopped.
"""

from everthread import StateNotFoundError, WorkingState
from everthread.diff import StateDiffer
from everthread.hooks import SessionLifecycle

URL = "sqlite:///working.db"

hooks = SessionLifecycle()
hooks.register("on_resume", lambda state: print(f"resumed {state.id}, saved {state.updated_at:%H:%M:%S}"))

try:
    state = WorkingState.resume(store=URL, hooks=hooks)
except StateNotFoundError:
    state = WorkingState(store=URL, hooks=hooks)
    for month in ("January", "February", "March"):
        state.add_todo(f"reconcile {month}", priority="high" if month == "March" else "medium")
    state.add_constraint("Never pay more than 10,000 without asking.")
    state.set_context("ledger", {"file": "ledger.csv", "rows": 1204})
    state.save("planned")
    print("planned three months")

with state:
    waiting = [todo for todo in state.todos if todo.open]
    if waiting:
        before = state.snapshot()
        state.set_intention(f"finish {waiting[0].content}")
        state.complete_todo(waiting[0])
        loop = state.add_open_loop("tell Ann", context={"about": waiting[0].content})
        print(StateDiffer.diff(before, state).summary())
        state.save(f"finished {waiting[0].content}")
        state.resolve_open_loop(loop)
    else:
        first = state.at(1)
        print(f"all done; of {len(first.todos)} todos at first: {StateDiffer.diff(first, state).summary()}")
        print(*(f"{version.seq}. {version.label}" for version in state.history() if version.label), sep="\n")
