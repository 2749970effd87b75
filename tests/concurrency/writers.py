"""Writers that append to the lists of a few threads, in many tasks and processes, and note what they saw."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import time
from typing import Any

import everthread
from everthread import ConflictError, StorageWriteError, StoreBusyError, StoreUnavailableError
from tests.concurrency.histories import OK, REFUSED, UNKNOWN, Transaction

LISTS = ("a", "b", "c")


async def write(url: str, tasks: int, operations: int, threads: int, seed: int) -> list[Transaction]:
    """``operations`` transactions by so many tasks on one store object."""
    history: list[Transaction] = []
    async with everthread.open_async(url, durability="process") as store:
        numbers = iter(range(operations))

        async def session(number: int) -> None:
            draw = random.Random(seed * 10_007 + number)
            handles: dict[str, Any] = {}
            for each in numbers:
                name = f"t{draw.randrange(threads)}"
                handle = handles.get(name)
                if handle is None:
                    handle = handles[name] = await store.thread(name)
                element = seed * 10_000_000 + each
                history.append(await _transact(handle, name, element, draw))

        await asyncio.gather(*(session(number) for number in range(tasks)))
    return history


async def _transact(handle: Any, name: str, element: int, draw: random.Random) -> Transaction:
    began = time.monotonic()
    try:
        # Some read anew, some write on what they know: those lose if somebody else was there.
        if draw.random() < 0.7:
            await handle.refresh()
    except (StoreUnavailableError, StoreBusyError):
        return Transaction(name, began, time.monotonic(), REFUSED, {}, {})
    read = {each: tuple(handle.state.get(each, ())) for each in draw.sample(LISTS, draw.randint(1, 3))}
    appended = dict.fromkeys(draw.sample(LISTS, draw.randint(0, 2)), element)
    for each in appended:
        handle.state.setdefault(each, []).append(element)
    if appended:
        # One that writes nothing may be older than it seems: it stands where its handle stands.
        try:
            await handle.commit()
            return Transaction(name, began, time.monotonic(), OK, read, appended)
        except ConflictError:
            await handle.discard()
            await handle.refresh()
            return Transaction(name, began, time.monotonic(), REFUSED, read, appended)
        except (StoreUnavailableError, StoreBusyError, StorageWriteError):
            await handle.discard()
            return Transaction(name, began, time.monotonic(), UNKNOWN, read, appended)
    return Transaction(name, float("-inf"), time.monotonic(), OK, read, {})


def _process(url: str, tasks: int, operations: int, threads: int, seed: int, out: Any) -> None:
    out.send(asyncio.run(write(url, tasks, operations, threads, seed)))
    out.close()


def write_in_processes(
    url: str, processes: int, tasks: int, operations: int, threads: int, seed: int
) -> list[Transaction]:
    """The same by several processes; ``operations`` is what each does."""
    context = multiprocessing.get_context("spawn")
    started = []
    for number in range(processes):
        receiving, sending = context.Pipe(duplex=False)
        arguments = (url, tasks, operations, threads, seed + 1 + number, sending)
        process = context.Process(target=_process, args=arguments)
        process.start()
        sending.close()
        started.append((process, receiving))
    history: list[Transaction] = []
    for process, receiving in started:
        history += receiving.recv()
        process.join()
        assert process.exitcode == 0
    return history


def final_lists(url: str, threads: int) -> dict[str, dict[str, tuple[int, ...]]]:
    """What the lists hold, read by somebody who wrote nothing."""
    with everthread.open(url, durability="process") as store:
        names = [f"t{number}" for number in range(threads)]
        return {
            name: {each: tuple(elements) for each, elements in store.thread(name).state.plain().items()}
            for name in names
        }
