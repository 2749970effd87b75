"""Threads: continue, fork with hooks, append by id, truncate, rewind of a whole turn."""

import tempfile

import everthread


def shortened(messages: list) -> list:
    """Prepare: the fork begins with the first and the last message only."""
    return [messages[0], messages[-1]]


def loud(message: dict) -> dict:
    """Transform: one to one."""
    return {**message, "content": message["content"].upper()}


with tempfile.TemporaryDirectory() as folder, everthread.open(f"sqlite:///{folder}/agent.db") as store:
    thread = store.thread("chat")
    for number in range(1, 5):
        thread.messages.append({"id": f"m{number}", "role": "user", "content": f"message {number}"})
        thread.state["turn"] = number
        thread.commit(label=f"turn {number}")
    thread.messages.append({"id": "m4", "role": "user", "content": "message 4"})
    print("appended again:", thread.dirty, len(thread.messages))

    fork = thread.fork("chat, shorter", prepare=shortened, transform=loud)
    print("fork:", [message["content"] for message in fork.messages], fork.state["turn"])
    print("source:", len(thread.messages), "messages")

    thread.messages.truncate_from("m3")
    thread.commit()
    print("truncated:", [message["id"] for message in thread.messages])
    thread.rewind(2)
    print("rewound:", [message["id"] for message in thread.messages], thread.state["turn"])

    fork.state["note"] = "from the fork"
    fork.commit()
    print("merged:", thread.merge(fork, resolve="ours").conflicts, thread.state["note"])
