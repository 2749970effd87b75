"""Whether this process is a child that fork(2) has made, whether another process still lives, and whether
this code runs where no store may be used."""

from __future__ import annotations

import os
import sys
import threading
import uuid

import msgspec

from everthread.errors import StoreClosedError, UsageError

#: How many forks lie between this process and the first that loaded this module. Whoever noted another number
#: is in a child now. Asking the kernel for the process id instead would cost a system call each time.
generation = 0


def check_not_forked(opened_in: int) -> None:
    """Raise :class:`StoreClosedError` in a child of the process that opened a store, which noted
    :data:`generation` then."""
    if opened_in != generation:
        raise StoreClosedError("this store was opened before fork(2): open it again in this process")


def check_not_in_workflow() -> None:
    """Raise :class:`UsageError` in the code of a workflow of Temporal or DBOS: that is replayed, and would
    write again; and an event loop of its own runs Temporal's, in which waiting for a store never ends."""
    # Only where it is loaded can this be one: others pay for one look into a dictionary.
    temporal = sys.modules.get("temporalio.workflow")
    if temporal is not None and temporal.in_workflow():
        raise UsageError(
            "a store can't be used in the code of a Temporal workflow, which is replayed: use it in an "
            "activity, and pass the workflow what names the thread and its version"
        )
    dbos = getattr(sys.modules.get("dbos"), "DBOS", None)
    if dbos is not None and dbos.workflow_id is not None and dbos.step_id is None:
        raise UsageError(
            "a store can't be used in the code of a DBOS workflow, which is replayed: use it in a step of "
            "DBOS, and return what names the thread and its version"
        )


class ProcessLock:
    """A lock of this process, which its thread may take again. In a child made by fork(2), where nobody would
    ever give it back, it keeps nobody out: what it guards is the parent's, and says so."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._made_in = generation

    def __enter__(self) -> None:
        if self._made_in == generation:
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        if self._made_in == generation:
            self._lock.release()


def _in_child() -> None:
    global generation  # noqa: PLW0603 - it is this process that has one
    generation += 1


os.register_at_fork(after_in_child=_in_child)


# Which process this is, so that another one on the same machine can tell whether it is still there.


#: In /proc/<pid>/stat: the process has ended, only its exit code waits to be fetched.
_ENDED = frozenset("ZXx")


class Place(msgspec.Struct, frozen=True):
    """A process: its machine (as booted, and the process numbers it sees), its number, when it started.

    ``machine`` or ``started`` is empty where the operating system doesn't tell.
    """

    host: str
    machine: str
    pid: int
    started: str


_here: Place | None = None


def here() -> Place:
    """This process. Looked up again after a fork(2)."""
    global _here  # noqa: PLW0603 - what it holds is checked against the process each time
    pid = os.getpid()
    if _here is None or _here.pid != pid:
        _here = Place(os.uname().nodename, _machine(), pid, _stat(pid)[1])
    return _here


def is_gone(place: Place) -> bool:
    """Whether a process has certainly ended. False for one on another machine: nobody here can know."""
    mine = here()
    if not place.machine or place.machine != mine.machine:
        return False
    if place.pid == mine.pid:
        return place.started != mine.started
    try:
        os.kill(place.pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # It is there, and isn't ours.
    state, started = _stat(place.pid)
    # Without a start time the number may have been given to another process: then only time can tell.
    return state in _ENDED or bool(started and place.started and started != place.started)


def _machine() -> str:
    """One boot of one machine, and the namespace its process numbers are valid in; "" if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        pass
    node = uuid.getnode()
    # A made-up address has this bit set, and is another one in the next process.
    return "" if node >> 40 & 1 else f"{node:012x}"


def _stat(pid: int) -> tuple[str, str]:
    """State and start time of a process as Linux tells them; ("", "") where it doesn't."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in the middle may hold anything, also ")".
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), fields[19].decode()
    except (OSError, IndexError, UnicodeDecodeError):
        return "", ""
