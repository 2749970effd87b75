"""The example of the README, as a program."""

import everthread

with everthread.open("sqlite:///agent.db") as store:
    thread = store.thread("invoice-bot")
    thread.state["phase"] = "reconcile"
    thread.messages.append({"role": "user", "content": "Reconcile March."})
    before = thread.commit(label="asked")  # durable when it returns
    thread.state["phase"] = "report"
    thread.commit()
    print(thread.diff(before).summary())
    thread.rewind(before)  # itself a version: it can be undone
