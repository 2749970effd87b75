"""Judges a history of transactions on lists: is there an order of them that explains what everybody saw?

Each transaction reads some lists of one thread and appends an element, unique in the history, to some of
them. Since elements are unique and lists only grow, what somebody read says which transactions came before.
That gives edges between transactions; real time gives more (what was over before another began comes first).
A cycle means that no order explains it: a lost update, a stale read, a skewed write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

#: It was acknowledged; it was refused, so must have had no effect; nobody knows.
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"


class Transaction(NamedTuple):
    """``read`` is what each list held when it began, ``appended`` what it put at its end."""

    thread: str
    began: float
    ended: float
    outcome: str
    read: dict[str, tuple[int, ...]]
    appended: dict[str, int]


def anomalies(history: Sequence[Transaction], final: dict[str, dict[str, tuple[int, ...]]]) -> list[str]:
    """What can't be explained; ``final`` is what the lists of each thread hold in the end."""
    found: list[str] = []
    by_thread: dict[str, list[Transaction]] = defaultdict(list)
    for transaction in history:
        by_thread[transaction.thread].append(transaction)
    for thread, transactions in by_thread.items():
        found += (f"{thread}: {problem}" for problem in _judge(transactions, final.get(thread, {})))
    return found


def _judge(transactions: list[Transaction], final: dict[str, tuple[int, ...]]) -> Iterable[str]:
    writer: dict[tuple[str, int], int] = {}
    for number, transaction in enumerate(transactions):
        for name, element in transaction.appended.items():
            writer[name, element] = number
    seen = {name: set(elements) for name, elements in final.items()}
    for name, elements in final.items():
        if len(seen[name]) != len(elements):
            yield f"{name} holds an element twice"
        for element in elements:
            if (name, element) not in writer:
                yield f"{name} holds {element}, which nobody appended"
            elif transactions[writer[name, element]].outcome == REFUSED:
                yield f"{name} holds {element}, which was refused"
    for transaction in transactions:
        there = [element in seen.get(name, ()) for name, element in transaction.appended.items()]
        if transaction.outcome == OK and not all(there):
            yield f"an acknowledged append is lost: {transaction.appended}"
        if any(there) and not all(there):
            yield f"half of a transaction is there: {transaction.appended}"
        for name, elements in transaction.read.items():
            if elements != final.get(name, ())[: len(elements)]:
                yield f"{name} was read as {elements[-3:]} (of {len(elements)}), which it never was"
    yield from _cycles(transactions, final, writer)


def _cycles(
    transactions: list[Transaction], final: dict[str, tuple[int, ...]], writer: dict[tuple[str, int], int]
) -> Iterable[str]:
    counted = [number for number, each in enumerate(transactions) if each.outcome != REFUSED]
    before: dict[int, set[int]] = {number: set() for number in counted}

    def edge(first: int | None, second: int | None) -> None:
        if first is not None and first != second and first in before and second in before:
            before[second].add(first)

    for name, elements in final.items():
        for one, two in pairwise(elements):
            edge(writer.get((name, one)), writer.get((name, two)))
    for number in counted:
        transaction = transactions[number]
        effective = all(element in final.get(name, ()) for name, element in transaction.appended.items())
        if transaction.outcome == UNKNOWN and not effective:
            del before[number]
            continue
        for name, elements in transaction.read.items():
            if elements:
                # Who wrote the last element that was read came before; who wrote the next one after.
                edge(writer.get((name, elements[-1])), number)
            following = final.get(name, ())[len(elements) : len(elements) + 1]
            for element in following:
                edge(number, writer.get((name, element)))
    _add_real_time(transactions, before)
    left = _unordered(before)
    if left:
        yield f"no order explains {len(left)} transactions: {[transactions[n] for n in sorted(left)[:4]]}"


def _add_real_time(transactions: list[Transaction], before: dict[int, set[int]]) -> None:
    """What was over before another began comes first; of those only the latest ones, the rest follows."""
    over = sorted(before, key=lambda n: transactions[n].ended)
    for number in sorted(before, key=lambda n: transactions[n].began):
        began = transactions[number].began
        latest = float("-inf")
        for other in reversed(over[: _count_before(over, transactions, began)]):
            if transactions[other].ended <= latest:
                break
            if transactions[other].outcome != UNKNOWN and other != number:
                before[number].add(other)
                # Whoever ended before this one began is before it already.
                latest = max(latest, transactions[other].began)


def _count_before(over: list[int], transactions: list[Transaction], began: float) -> int:
    low, high = 0, len(over)
    while low < high:
        middle = (low + high) // 2
        if transactions[over[middle]].ended < began:
            low = middle + 1
        else:
            high = middle
    return low


def _unordered(before: dict[int, set[int]]) -> set[int]:
    """What is left when everything that has nothing before it was taken away, again and again."""
    after: dict[int, set[int]] = defaultdict(set)
    waiting = {}
    for number, earlier in before.items():
        earlier = {each for each in earlier if each in before}
        waiting[number] = len(earlier)
        for each in earlier:
            after[each].add(number)
    ready = [number for number, count in waiting.items() if not count]
    while ready:
        number = ready.pop()
        del waiting[number]
        for each in after[number]:
            waiting[each] -= 1
            if not waiting[each]:
                ready.append(each)
    return set(waiting)
