"""What a workflow carries instead of messages, and what an engine says of where a step runs. Code of
workflows may import this: it does nothing, and needs nothing that reads a clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everthread.errors import InvalidValueError


@dataclass(frozen=True)
class ThreadRef:
    """A thread at a version: about 150 bytes in an engine's history, whatever the thread holds.

    ``run`` is the run whose code handed it to a step. ``origin`` stays over resets of that run and changes
    with the next one: with it, the keys of steps are unique on a thread that goes on. Engines fill in both.
    ``scope`` is the execution whose effects are counted apart from those of other executions: see
    ``open_thread(effects="execution")``.
    """

    thread: str
    version: str | None = None
    run: str = ""
    origin: str = ""
    scope: str = ""


@dataclass(frozen=True)
class Execution:
    """Where a step runs, as the engine says.

    ``run`` changes when a workflow is reset or forked. ``claim`` is who may write, if that changes more often
    than the run: with a recovery, say. ``orderly`` says that the steps of one run end in the order in which
    they began, so that a later one on the line means that the run was taken back. ``started`` is when the
    engine handed the step out, by its own clock, in seconds: the later run counts. ``scheduler`` and
    ``origin`` are what a :class:`ThreadRef` has as ``run`` and ``origin``, where the engine knows better.
    ``owner`` is what runs of one workflow have in common: it may begin a thread anew that it has begun
    before. ``task`` names the activity that the ``attempt`` is counted for. Engines that go back by numbers
    of steps say which ``number`` this one has, from 1, and which were
    ``recorded`` in the history when this claim began: the others were taken back, or never ended. A run that
    an engine has ``forked_from`` another has threads of its own: their names end with ``~`` and its id.
    ``execution`` is the id that a run shares with its resets and with the runs that it continues as new.
    ``guest_of`` is the run on whose thread this one works for a while, as a child workflow does.
    """

    run: str
    attempt: int = 1
    claim: str = ""
    orderly: bool = False
    started: float = 0.0
    scheduler: str = ""
    origin: str = ""
    owner: str = ""
    task: str = ""
    number: int = 0
    recorded: frozenset[int] = frozenset()
    forked_from: str = ""
    execution: str = ""
    guest_of: str = ""

    @property
    def execution_id(self) -> str:
        """Return the id of the execution; an engine that names none has one execution per origin."""
        return self.execution or self.origin or self.run


def named(error: BaseException | None) -> tuple[str, str] | None:
    """An exception as an end records it: its name, and the first line of what it says."""
    if error is None:
        return None
    return type(error).__name__, str(error).strip().partition("\n")[0]


def latest(refs: Iterable[ThreadRef]) -> ThreadRef:
    """After parallel steps of one key: where the workflow stands. Raises :class:`InvalidValueError` without
    any."""
    found = max(refs, key=lambda ref: number_of(ref.version), default=None)
    if found is None:
        raise InvalidValueError("latest() takes the pointers of at least one step", path="refs")
    return found


def number_of(version: str | None) -> int:
    """The number of a version, which its id begins with; 0 for none."""
    number = (version or "").partition("-")[0]
    return int(number) if number.isdecimal() else 0
