"""Many writers of one stream: threads and processes, never a conflict, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import everthread

#: Appends, and says of each event when it is acknowledged: its seq and its number.
WRITER = """
import sys
import everthread

url, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
events = everthread.open(url, durability="process").events("s")
print("ready", flush=True)
sys.stdin.readline()
number = 0
while number < count:
    size = 1 + number % 3
    made = events.extend([("t", {"writer": writer, "n": number + part}, writer) for part in range(size)])
    for event in made:
        print(event.seq, event.data["n"], flush=True)
    number += size
"""


@contextlib.contextmanager
def writing(url: str, names: list[str], count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that write at once; none is left behind, however the test ends."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for name in names:
            command = [sys.executable, "-c", WRITER, url, name, str(count)]
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for each in (process.stdin, process.stdout):
                assert each is not None
                each.close()


def acknowledged(process: subprocess.Popen[str], lines: int | None = None) -> list[tuple[int, int]]:
    """What the process says, up to a number of lines, or to its end."""
    assert process.stdout is not None
    found: list[tuple[int, int]] = []
    while lines is None or len(found) < lines:
        line = process.stdout.readline()
        # What a killed process was writing may be cut.
        if not line.endswith("\n"):
            break
        seq, number = line.split()
        found.append((int(seq), int(number)))
    return found


def test_eight_threads_never_conflict(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/store.db", durability="process") as store:
        problems: list[BaseException] = []
        made: list[tuple[int, int, int]] = []

        def write(writer: int) -> None:
            try:
                events = store.events("s")
                for number in range(25):
                    event = events.append("t", {"n": number}, agent=f"writer {writer}")
                    made.append((event.seq, writer, number))
            except BaseException as error:
                problems.append(error)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        stored = list(store.events("s"))
        assert [event.seq for event in stored] == list(range(1, 201))
        assert [(e.seq, int((e.agent or "")[7:]), e.data["n"]) for e in stored] == sorted(made)


def test_four_processes_never_conflict_and_a_reader_sees_no_gap(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    names = [f"writer {number}" for number in range(4)]
    with everthread.open(url, durability="process") as store, writing(url, names, 60) as processes:
        consumer = store.events("s").consumer("reader")
        seen: list[int] = []
        page: list[everthread.Event] = []
        over = False
        while page or not over:
            over = all(process.poll() is not None for process in processes)
            page = consumer.poll(limit=50)
            if page:
                seen += [event.seq for event in page]
                consumer.commit(page[-1])
        assert [process.returncode for process in processes] == [0, 0, 0, 0]
        assert seen == list(range(1, 241))
        stored = list(store.events("s"))
        for name, process in zip(names, processes, strict=True):
            mine = [(event.seq, event.data["n"]) for event in stored if event.agent == name]
            assert acknowledged(process) == mine
            assert [number for _, number in mine] == list(range(60)), "each writer's in its order"
        assert store.verify()


def test_killed_writers_lose_no_acknowledged_event(tmp_path: Path, seed: int) -> None:
    """kill -9 while two write at once, again and again; a batch is there whole or not at all."""
    rng = random.Random(seed)
    url = f"sqlite:///{tmp_path}/store.db"
    promised: list[tuple[int, str, int]] = []
    for turn in range(4):
        names = [f"{turn} a", f"{turn} b"]
        with writing(url, names, 1_000_000) as processes:
            for name, process in zip(names, processes, strict=True):
                found = acknowledged(process, rng.randint(1, 60))
                process.send_signal(signal.SIGKILL)
                found += acknowledged(process)
                promised += [(seq, name, number) for seq, number in found]
                assert process.wait() == -signal.SIGKILL
    # The next one goes on as if nothing had been.
    with everthread.open(url) as store:
        events = store.events("s")
        stored = {event.seq: (event.agent, event.data["n"]) for event in events}
        assert list(stored) == list(range(1, len(stored) + 1))
        for seq, name, number in promised:
            assert stored[seq] == (name, number)
        for name in {name for _, name, _ in promised}:
            numbers = [number for agent, number in stored.values() if agent == name]
            assert numbers == list(range(len(numbers)))
            whole = {0}
            while max(whole) < len(numbers):
                whole.add(max(whole) + 1 + max(whole) % 3)
            assert len(numbers) in whole, "half a batch"
        assert events.append("on").seq == len(stored) + 1
        report = store.verify()
        assert report, "\n".join(map(str, report.damage))
