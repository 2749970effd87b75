"""Letting functions that may hang or raise work side by side, and not waiting for them for ever."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

import msgspec

Answer = TypeVar("Answer")
AT_ONCE_MAX = 8
_OWN_SHARE = 0.8


class Outcome(msgspec.Struct, Generic[Answer], frozen=True):
    """What came of a job: its answer, or why there is none."""

    answer: Answer | None = None
    problem: str = ""


def run_all(
    jobs: Sequence[Callable[[float], Answer]], *, each_s: float, total_s: float
) -> list[Outcome[Answer]]:
    """Run the jobs in daemon threads, a few at once; one outcome per job, in order.

    A job that has not answered after ``each_s`` is left behind: nothing can end a thread from outside, but
    nobody waits for it, not even the end of the process. What has not begun after ``total_s`` isn't begun.
    A job is told in how many seconds it should end by itself, and clear up, a little before it is left.
    """
    found: dict[int, Outcome[Answer]] = {}
    running: dict[int, float] = {}
    answers: queue.SimpleQueue[tuple[int, Outcome[Answer]]] = queue.SimpleQueue()
    end = time.monotonic() + total_s
    waiting = list(range(len(jobs)))[::-1]
    while waiting or running:
        now = time.monotonic()
        if waiting and now >= end:
            for number in waiting:
                found[number] = Outcome(problem=f"not checked: the {total_s:g} s for all checks were used up")
            waiting.clear()
            continue
        while waiting and len(running) < AT_ONCE_MAX:
            number = waiting.pop()
            limit_s = min(each_s, end - now)
            running[number] = now + limit_s
            _start(number, partial(jobs[number], limit_s * _OWN_SHARE), answers)
        try:
            number, outcome = answers.get(timeout=max(0.0, min(running.values()) - time.monotonic()))
        except queue.Empty:
            _give_up(running, found, each_s)
            continue
        # An answer may still come from a job that was given up.
        if running.pop(number, None) is not None:
            found[number] = outcome
    return [found[number] for number in range(len(jobs))]


def _give_up(running: dict[int, float], found: dict[int, Outcome[Answer]], each_s: float) -> None:
    now = time.monotonic()
    for number in [number for number, until in running.items() if until <= now]:
        del running[number]
        found[number] = Outcome(problem=f"it gave no answer in time (at most {each_s:g} s)")


def _start(
    number: int,
    job: Callable[[], Answer],
    answers: queue.SimpleQueue[tuple[int, Outcome[Answer]]],
) -> None:
    def work() -> None:
        try:
            outcome = Outcome(answer=job())
        # Also SystemExit and KeyboardInterrupt: a verifier must not end the process that asks it.
        except BaseException as error:
            outcome = Outcome(problem=_told(error))
        answers.put((number, outcome))

    try:
        threading.Thread(target=work, name="everthread-verifier", daemon=True).start()
    except RuntimeError as error:
        answers.put((number, Outcome(problem=f"no thread could be started: {error}")))


def _told(error: BaseException) -> str:
    """The error in words; an error whose text can't be had is named by its class."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
