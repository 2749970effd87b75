"""Three agents write to one stream at once; a board and a mailer follow it."""

import pathlib
import tempfile
import threading

import everthread


def board(state: dict, event: everthread.Event) -> dict:
    """Who does what: the projection."""
    task = event.data["task"]
    if event.type == "claimed":
        state[task] = event.agent
    elif event.type == "done":
        state[task] = "done"
    return state


def work(url: str, agent: str, tasks: range) -> None:
    with everthread.open(url) as store:
        events = store.events("tasks")
        for task in tasks:
            events.append("claimed", {"task": task}, agent=agent)
            events.append("done", {"task": task, "by": agent}, agent=agent)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{pathlib.Path(folder)}/agents.db"
        store = everthread.open(url)
        events = store.events("tasks")
        events.extend([("created", {"task": task}) for task in range(9)])

        agents = [
            threading.Thread(target=work, args=(url, f"agent {number}", range(number, 9, 3)))
            for number in range(3)
        ]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join()
        print(f"{len(events)} events, numbered without gaps up to {events.last.seq}")

        projection = events.projection("board", board)
        print("done:", [task for task, status in sorted(projection.state.items()) if status == "done"])

        # Later, or in another process: only what is new is read.
        events.append("claimed", {"task": 9}, agent="agent 0")
        projection = events.projection("board", board)
        print("task 9:", projection.state[9], "at event", projection.position)

        mailer = events.consumer("mailer")
        for event in mailer.poll(limit=4):
            mailer.commit(event)
        print("the mailer goes on with event", mailer.poll(limit=1)[0].seq)
        store.close()


if __name__ == "__main__":
    main()
