"""A session, killed in its second turn, and the one that goes on.

Run it: it starts itself as the agent that dies, then looks at what that one left.
"""

import os
import signal
import subprocess
import sys
import tempfile

import everthread


def agent(url: str) -> None:
    """Works through its tasks, one per turn; the first time it is killed in the middle."""
    with everthread.open(url) as store, store.session("invoice-bot", agent="weaver") as s:
        if not s.tasks:
            fetch = s.tasks.add("fetch invoices")
            book = s.tasks.add("book them", blocked_by=[fetch.id])
            s.tasks.add("report", blocked_by=[book.id])
        while ready := s.tasks.ready() or [task for task in s.tasks if task.status == "in_progress"]:
            task = ready[0]
            with s.turn() as t:
                s.tasks.start(task.id)
                decision = s.decide(task.subject, planned_action=task.subject)
                if t.number == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                t.messages.append({"role": "assistant", "content": f"{task.subject}: done"})
                t.add_usage(output_tokens=10)
                s.record_outcome(decision.id, "done")
                s.tasks.complete(task.id)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/agent.db"
        killed = subprocess.run([sys.executable, __file__, url], check=False)
        print(f"the agent died: {signal.Signals(-killed.returncode).name}")
        with everthread.open(url) as store:
            found = store.session_records("invoice-bot")
            print(f"status: {found.status}, in turn {found.last_run.turn}")
            print("undecided:", [decision.decision for decision in found.open_decisions()])
            with store.session("invoice-bot") as s:
                for decision in s.incomplete_decisions():
                    s.record_outcome(decision.id, "taken up again")
        subprocess.run([sys.executable, __file__, url], check=True)
        with everthread.open(url) as store:
            now = store.session_records("invoice-bot")
            print([message["content"] for message in now.thread.messages])
            print(f"runs: {[run.status for run in now.runs()]}, turns: {now.turns}, usage: {dict(now.usage)}")


if __name__ == "__main__":
    agent(sys.argv[1]) if len(sys.argv) > 1 else main()
