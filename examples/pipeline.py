"""A pipeline of steps that is killed with SIGKILL and goes on at the next step, however often.

    python examples/pipeline.py                         five tasks, killed after every possible one
    python examples/pipeline.py --steps 500             five hundred, killed after every one of them
    python examples/pipeline.py --steps 50000 --kills 3 --durability process
    python examples/pipeline.py --store file:///tmp/pipeline

Each step is one version: its line in the log, and the place to go on from.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile

import everthread

TASKS = ("fetch", "parse", "check", "book", "report")


def run(url: str, steps: int, durability: str, die_after: int | None) -> None:
    """Work until all steps are done, or until the process dies after step ``die_after``. It never asks
    whether it is the first run."""
    with everthread.open(url, durability=durability) as store:
        thread = store.thread("pipeline")
        for number in range(thread.state.get("done", 0) + 1, steps + 1):
            thread.messages.append({"task": TASKS[(number - 1) % len(TASKS)], "step": number})
            thread.state["done"] = number
            thread.commit()
            if number == die_after:
                os.kill(os.getpid(), signal.SIGKILL)


def start(*arguments: object) -> int:
    """Run it in a process of its own; the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(*arguments)  # type: ignore[arg-type]
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the pipeline failed"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def check(url: str, done: int) -> None:
    """Exactly the steps up to ``done`` are there, each once, in order."""
    with everthread.open(url) as store:
        thread = store.thread("pipeline")
        assert thread.state.get("done", 0) == done, (thread.state.get("done"), done)
        assert len(thread.messages) == done
        # The end is enough while it grows; all of it is looked at in the end.
        assert [item["step"] for item in thread.messages[-5:]] == list(range(1, done + 1))[-5:]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--kills", type=int, help="how often, evenly spread; without it after every step")
    parser.add_argument("--store", help="a store of its own; without it a temporary SQLite file")
    parser.add_argument("--durability", default="full", choices=["full", "process"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.store or f"sqlite:///{folder}/agent.db"
        kills = options.kills or options.steps
        for number in range(1, kills + 1):
            last = options.steps * number // kills
            assert start(url, options.steps, options.durability, last) == signal.SIGKILL
            check(url, last)
        assert start(url, options.steps, options.durability, None) == 0
        with everthread.open(url) as store:
            found = [item["step"] for item in store.thread("pipeline").messages]
        assert found == list(range(1, options.steps + 1))
    print(f"{options.steps} steps, killed {kills} times, every step done once")


if __name__ == "__main__":
    sys.exit(main())
