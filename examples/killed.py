"""A program that is killed again and again, and loses nothing.

It works in a temporary folder of its own, needs no network and takes a few seconds.
An agent (a child process) books invoices. This process kills it with SIGKILL: between two steps, in the
middle of one, then eight times at random moments while it commits as fast as it can. Then it looks back.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import everthread

INVOICES = 8
RANDOM_KILLS = 8


# ── the agent: runs as a process of its own ──────────────────────────────────────────────────────


def book_invoices(store: everthread.Store) -> None:
    """Book every invoice once. Each step is one transaction: messages, document and result together."""
    thread = store.thread("invoice-bot")
    found = thread.refresh()
    tell(f"found {found}" if found else "found nothing: this is the first run")
    for number in range(1, INVOICES + 1):
        with thread.step(("book", number)) as step:
            if step.done:
                tell(f"invoice {number}: booked already, result {step.result!r}")
                continue
            step.messages.append({"role": "assistant", "content": f"Booking invoice {number}."})
            step.state["total"] = step.state.get("total", 0) + number * 100
            tell(f"invoice {number}: working")  # nothing is committed yet
            step.state["booked"] = number
            step.result = f"B-{number:03}"
        tell(f"invoice {number}: committed as {thread.head.seq if thread.head else 0}")
    tell("all invoices are booked")


def count_up(store: everthread.Store) -> None:
    """Commit without a pause; say each number only once it is committed."""
    thread = store.thread("counter")
    number = thread.state.get("number", 0)
    print(number, flush=True)
    while True:
        number += 1
        thread.state["number"] = number
        thread.messages.append({"id": f"n{number}", "content": "x" * 200})
        thread.commit()
        print(number, flush=True)


def tell(line: str) -> None:
    """Say what happened and wait until the other process has heard it, so that it can kill right here."""
    print(line, flush=True)
    sys.stdin.readline()


# ── the one who kills ────────────────────────────────────────────────────────────────────────────


def start(what: str, url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--agent", what, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run_agent(url: str, kill_at: str | None) -> bool:
    """Let the agent work; kill it when it says ``kill_at``. True if it came to its end."""
    with start("book", url) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        for line in agent.stdout:
            print(f"    agent {agent.pid}: {line}", end="")
            if line.strip() == kill_at:
                agent.send_signal(signal.SIGKILL)
                print(f"  → kill -9 {agent.pid}")
                break
            agent.stdin.write("\n")
            agent.stdin.flush()
    return agent.returncode == 0


def kill_at_random(url: str, rng: random.Random) -> tuple[int, int]:
    """Kill a process that commits without a pause; the last number it found, and the last it said."""
    with start("count", url) as agent:
        assert agent.stdout is not None
        said = found = int(agent.stdout.readline())
        time.sleep(rng.uniform(0.0, 0.12))
        agent.send_signal(signal.SIGKILL)
        for line in agent.stdout:
            if line.endswith("\n"):
                said = int(line)
    return found, said


def check(condition: bool, text: str) -> None:
    print(f"    {'yes' if condition else 'NO'}: {text}")
    if not condition:
        sys.exit("The demonstration failed.")


def killing(url: str, seed: int) -> None:
    print("1. An agent books invoices, one step each. It is killed between two steps.")
    run_agent(url, kill_at="invoice 3: committed as 3")
    print("\n2. It is started again and killed in the middle of a step.")
    run_agent(url, kill_at="invoice 6: working")
    print("\n3. It is started again and may come to its end.")
    check(run_agent(url, kill_at=None), "the agent came to its end")
    with everthread.open(url) as store:
        thread = store.thread("invoice-bot")
        texts = [message["content"] for message in thread.messages]
        expected = [f"Booking invoice {number}." for number in range(1, INVOICES + 1)]
        check(texts == expected, "every invoice is in the log, none of them twice")
        check(thread.state["total"] == 100 * sum(range(1, INVOICES + 1)), "the total is right")

    print(f"\n4. Another program commits as fast as it can and is killed {RANDOM_KILLS} times (seed {seed}).")
    print(
        "   A commit that was cut off before its answer is found whole or not at all: one more may be there."
    )
    rng = random.Random(seed)
    before = 0
    for _ in range(RANDOM_KILLS):
        found, said = kill_at_random(url, rng)
        if found < before:
            check(False, f"{before} had been acknowledged, {found} was found")
        print(f"    found {found:>5}, acknowledged up to {said:>5}, killed")
        before = said
    with everthread.open(url) as store:
        thread = store.thread("counter")
        number = thread.state["number"]
        ids = [message["id"] for message in thread.messages]
        check(number >= before, f"all {before} acknowledged commits are there")
        check(
            ids == [f"n{n}" for n in range(1, number + 1)],
            "document and log agree, nothing is torn or doubled",
        )


def looking_back(url: str) -> None:
    with everthread.open(url) as store:
        thread = store.thread("invoice-bot")
        total = thread.state["total"]
        print("\n5. Every step is still there as a version.")
        for version in thread.history(limit=4):
            past = thread.at(version)
            print(f"    {version}: total {past.state['total']:>4}, {len(past.messages)} messages")

        print("\n6. A fork at an earlier step goes its own way; the thread it came from stays as it is.")
        fork = thread.fork("invoice-bot-what-if", at=5)
        fork.state["total"] -= 300
        fork.state["note"] = "invoice 3 is disputed"
        fork.commit(label="without invoice 3")
        difference = thread.diff(5, fork.at(fork.head))
        print(f"    from version 5 to the fork: {difference.summary()}")
        print(f"    changed: {dict(difference.changed)}, added: {dict(difference.added)}")
        check(thread.state["total"] == total, "the thread that was forked is as it was")

        print(
            "\n7. A rewind takes document and log back together. It is itself a version, so it can be undone."
        )
        newest = thread.head
        assert newest is not None
        for target, what in ((2, "rewound to version 2"), (newest, "the rewind undone")):
            thread.rewind(target)
            print(
                f"    {what}: {thread.head}: total {thread.state['total']}, {len(thread.messages)} messages"
            )
        check(thread.state["total"] == total and len(thread.messages) == INVOICES, "everything is back")

        print("\n8. The store checks itself: checksums, the chain of hashes, packs, keyframes.")
        report = store.verify()
        check(report.ok, str(report))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="when to kill; by default another time each run"
    )
    parser.add_argument("--keep", action="store_true", help="leave the store where it is")
    parser.add_argument("--agent", nargs=2, metavar=("WHAT", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.agent:
        what, url = options.agent
        with everthread.open(url) as store:
            {"book": book_invoices, "count": count_up}[what](store)
        return 0
    seed = random.SystemRandom().randrange(10_000) if options.seed is None else options.seed
    folder = tempfile.mkdtemp(prefix="everthread-demo-")
    url = f"sqlite:///{folder}/agent.db"
    try:
        print(f"The store is one SQLite file: {folder}/agent.db\n")
        killing(url, seed)
        looking_back(url)
        print("\nNothing was lost." + (f" The store is kept: {url}" if options.keep else ""))
    finally:
        if not options.keep:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
