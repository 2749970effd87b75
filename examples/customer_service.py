"""A customer-service desk: three lifetimes of state, a lost connection, a new field, two agents at once, and
a customer who asks to be forgotten.

- Profile and tickets live as long as the customer does: the profile sealed under the customer's own key, the
  tickets in a thread of their own that all agents share.
- A conversation is a session: it can be cut off at any moment and goes on where it was.
- What a tool holds in its hands is scratch: memory only, gone with the process.
- What the customer said, and what was said about them, is marked as theirs. When they ask, it is erased,
  unless it must be kept for now, which is recorded. The tickets stay.

Run it: it starts itself as the agents, one of which is killed in the middle of a conversation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from typing import Any

import everthread

CUSTOMER = "c-17"
TICKETS = f"customer/{CUSTOMER}/tickets"
TALK = f"customer/{CUSTOMER}/conversation/1"


def desk(url: str) -> everthread.Store:
    """The store. The keys are beside it here so that the example cleans up; keep yours elsewhere."""
    return everthread.open(url, keyring=url.removeprefix("sqlite:///") + "-keyring")


# ── tickets: shared by all agents of a customer ──────────────────────────────────────────────────


def open_ticket(store: everthread.Store, ticket: str, text: str, **more: Any) -> None:
    """Read, modify, write; if another agent was first, again from what it wrote."""

    def add(draft: Any) -> None:
        draft.state.setdefault("tickets", {})[ticket] = {"text": text, "status": "open", **more}
        draft.state["opened"] = draft.state.get("opened", 0) + 1

    store.thread(TICKETS).update(add)


def close_ticket_v1(store: everthread.Store, ticket: str) -> None:
    """Code of version 1: it has never heard of a sentiment, and leaves alone what it doesn't know."""

    def close(draft: Any) -> None:
        draft.state["tickets"][ticket]["status"] = "closed"

    store.thread(TICKETS).update(close)


def sentiments_v2(store: everthread.Store) -> dict[str, str]:
    """Code of version 2: a ticket may have a sentiment. Old ones are as they were."""
    tickets = store.thread(TICKETS).state.get("tickets", {})
    return {name: ticket.get("sentiment", "unknown") for name, ticket in tickets.items()}


# ── a conversation ───────────────────────────────────────────────────────────────────────────────

QUESTIONS = ("Where is my parcel?", "It says delivered.", "Please look again.")


def converse(url: str, cut_off_in: int) -> None:
    """Answer every question that has no answer yet. The line may go dead in any turn."""
    with desk(url) as store, store.session(TALK, user_id=CUSTOMER, agent="desk") as s:
        for number in range(1 + sum(m["role"] == "assistant" for m in s.messages), len(QUESTIONS) + 1):
            with s.turn() as turn:
                question = everthread.Personal(CUSTOMER, QUESTIONS[number - 1])
                turn.messages.append({"id": f"q{number}", "role": "user", "content": question})
                s.scratch["lookup"] = {"tracking": "in hand", "turn": number}
                if number == cut_off_in:
                    os.kill(os.getpid(), signal.SIGKILL)
                name = store.users.get(CUSTOMER, "name")
                answer = everthread.Personal(CUSTOMER, f"{name}, answer {number}")
                turn.messages.append({"id": f"a{number}", "role": "assistant", "content": answer})
        if s.get_checkpoint("answered") is None:
            s.checkpoint("answered", include_keys=["lookup"])


def agent(url: str, name: str) -> None:
    """One of two agents that open tickets for the same customer at the same time."""
    with desk(url) as store:
        for number in range(10):
            open_ticket(store, f"{name}-{number}", f"opened by {name}", sentiment="calm")


# ── to be forgotten ──────────────────────────────────────────────────────────────────────────────


def forget(store: everthread.Store) -> None:
    """The customer asks to be forgotten while a dispute is open, and again when it is settled."""
    store.hold(CUSTOMER, "dispute 4711 about t-2")
    try:
        store.erase(CUSTOMER)
    except everthread.LegalHoldError as error:
        print("not yet:", error.reason)
    print("still there:", store.users.get(CUSTOMER, "email"))
    store.release_hold(CUSTOMER, "settled")
    report = store.erase(CUSTOMER)
    print("forgotten:", bool(report), "signed:", report.is_signed(), "left behind:", report.residues)


# ── the story ────────────────────────────────────────────────────────────────────────────────────


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *arguments])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/desk.db"
        with desk(url) as store:
            store.users.set(CUSTOMER, "name", "Ann")
            store.users.set(CUSTOMER, "email", "ann@example.org")
            open_ticket(store, "t-1", "parcel is late")

        assert start("converse", url, "2").wait() == -signal.SIGKILL
        with desk(url) as store:
            found = store.session_records(TALK)
            print(f"the line went dead: {found.status}, {len(found.thread.messages)} messages kept")
        assert start("converse", url, "0").wait() == 0
        with desk(url) as store:
            print("resumed:", [message["id"] for message in store.thread(TALK).messages])
            print("runs:", [run.status for run in store.session_records(TALK).runs()])

            open_ticket(store, "t-2", "parcel is broken", sentiment="angry")
            close_ticket_v1(store, "t-2")
            print("sentiments:", sentiments_v2(store))
            print("closed by old code:", store.thread(TICKETS).state["tickets"]["t-2"].plain())

        agents = [start("agent", url, name) for name in ("ada", "bob")]
        assert [each.wait() for each in agents] == [0, 0]
        with desk(url) as store:
            state = store.thread(TICKETS).state
            print(f"two agents: {len(state['tickets'])} tickets, {state['opened']} counted")
            print("profile:", store.users.get(CUSTOMER, "name"), store.users.get(CUSTOMER, "email"))
        with open(f"{folder}/desk.db", "rb") as file:
            print("in clear on disk:", b"ann@example.org" in file.read())

        with desk(url) as store:
            forget(store)
        with desk(url) as store:
            contents = {repr(message["content"]) for message in store.thread(TALK).messages}
            print("profile:", store.users.get(CUSTOMER, "name"), "conversation:", contents)
            print(f"the desk goes on: {len(store.thread(TICKETS).state['tickets'])} tickets")
            store.users.set(CUSTOMER, "name", "Ann, who came back")
            print("welcome:", store.users.get(CUSTOMER, "name"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["converse", url, turn]:
            converse(url, int(turn))
        case ["agent", url, name]:
            agent(url, name)
        case _:
            main()
