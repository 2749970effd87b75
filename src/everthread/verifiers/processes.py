"""Whether a process is still the one that it was, and alive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from everthread.errors import InvalidValueError
from everthread.verifiers.permissions import Permissions
from everthread.verifiers.running import run
from everthread.verifiers.specs import Spec, fields, make_spec
from everthread.verifiers.verdicts import Verdict, contradicted, fresh, unverifiable


def process_alive(pid: int | None = None) -> Spec:
    """Holds while the process lives. Without a pid the value of the fact is the pid.

    Host and start are recorded: another process that got the number later doesn't pass for it.
    """
    return make_spec("process_alive", {"pid": pid})


class ProcessAlive:
    """The verifier behind :func:`process_alive`."""

    def capture(self, value: Any, args: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        pid = args.get("pid", value)
        if type(pid) is not int or pid <= 0:
            raise InvalidValueError("neither an argument nor the value of the fact is a process id")
        started = _started(pid, timeout_s)
        if started is None:
            raise InvalidValueError(f"no process {pid} is alive")
        return {"pid": pid, "started": started, "host": os.uname().nodename}

    def check(
        self, value: Any, args: dict[str, Any], expected: Any, allowed: Permissions, timeout_s: float
    ) -> Verdict:
        pid, started, host = fields(expected, "pid", "started", "host")
        if type(pid) is not int or pid <= 0 or not isinstance(started, str) or not isinstance(host, str):
            return unverifiable("what was recorded of the process is not understood")
        if host != os.uname().nodename:
            return unverifiable(f"process {pid} ran on {host}, this is {os.uname().nodename}")
        now = _started(pid, timeout_s)
        if now is None:
            return contradicted(f"process {pid} is gone")
        if now != started:
            return contradicted(f"process {pid} is another one: the number was given away again")
        return fresh(f"process {pid} is alive")


def _started(pid: int, timeout_s: float) -> str | None:
    """When the process started, as this system tells it; None if it isn't alive."""
    if Path("/proc/self/stat").exists():
        return _started_by_proc(pid)
    ran = run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], timeout_s=timeout_s)
    state, _, started = ran.output.decode(errors="replace").strip().partition(" ")
    return None if ran.status != 0 or not started or state.startswith("Z") else started.strip()


def _started_by_proc(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        _check_hidden(pid)
        return None
    # The name of the program, in brackets, may contain anything; what follows is fixed.
    fields = text.rpartition(")")[2].split()
    state, ticks = fields[0], fields[19]
    # A zombie has ended and only waits for its parent to notice.
    return None if state in "ZXx" else f"{boot}:{ticks}"


def _check_hidden(pid: int) -> None:
    """Raise if there is such a process after all and this system doesn't let us look at it."""
    try:
        # Signal 0 asks and does nothing.
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    raise PermissionError(f"process {pid} exists but can't be looked at")
