"""Events in one store, threads in another; then everything in one place, and on to a third through a file."""

from __future__ import annotations

import tempfile
from pathlib import Path

import everthread

folder = Path(tempfile.mkdtemp())
threads = everthread.open(f"sqlite:///{folder}/threads.db")
events = everthread.open(f"file://{folder}/events")

thread = threads.thread("invoice-bot")
thread.state["phase"] = "reconcile"
thread.messages.append({"role": "user", "content": "March, please"})
thread.commit(label="begun")
thread.fork("what-if")
events.events("tasks").append("task_created", {"n": 1}, agent="planner")

together = everthread.open(f"sqlite:///{folder}/together.db")
print("threads:", threads.copy_to(together))
print("events:", events.copy_to(together))

together.export(folder / "all.archive")
elsewhere = everthread.open("memory:")
print("elsewhere:", elsewhere.import_from(folder / "all.archive"))

assert elsewhere.thread("what-if").head == thread.head
assert elsewhere.events("tasks").last == events.events("tasks").last
assert elsewhere.verify()
for store in (threads, events, together, elsewhere):
    store.close()
print("the same ids, the same hashes, all of it verified")
