"""process_alive, on real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from everthread import verifiers


def verdict(stored: dict[str, object]) -> tuple[str, str]:
    found = verifiers.check(stored, None)
    return found.status.value, found.reason


def test_a_process_until_it_is_killed() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        stored = verifiers.capture(verifiers.process_alive(child.pid), "the server")
        by_value = verifiers.capture(verifiers.process_alive(), child.pid)
        assert stored["expected"] == by_value["expected"]
        assert verdict(stored) == ("fresh", f"process {child.pid} is alive")
        os.kill(child.pid, signal.SIGKILL)
        # Dead at once, even while its parent has not looked: wait without collecting it.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert verdict(stored) == ("contradicted", f"process {child.pid} is gone")
    finally:
        child.kill()
        child.wait()
        assert child.stdin is not None
        child.stdin.close()
    assert verdict(stored)[0] == "contradicted"


def test_another_process_with_the_same_number_does_not_pass() -> None:
    stored = verifiers.capture(verifiers.process_alive(os.getpid()), None)
    assert verdict(stored)[0] == "fresh"
    stored["expected"]["started"] = "long ago"
    status, reason = verdict(stored)
    assert (status, "another one" in reason) == ("contradicted", True)


def test_a_process_of_another_host_can_not_be_seen() -> None:
    stored = verifiers.capture(verifiers.process_alive(os.getpid()), None)
    stored["expected"]["host"] = "elsewhere"
    assert verdict(stored)[0] == "unverifiable"


def test_what_is_no_process() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for pid in (ended.pid, 0, -1, "12", None, True):
        stored = verifiers.capture(verifiers.process_alive(), pid)
        assert stored["problem"], pid
        assert verdict(stored)[0] == "unverifiable"
    host = os.uname().nodename
    for pid in (-1, 0, "1", 10**30):
        hostile = {
            "name": "process_alive",
            "args": {},
            "expected": {"pid": pid, "started": "x", "host": host},
        }
        assert verdict(hostile)[0] in ("unverifiable", "contradicted")
