"""command: what is stored runs only if the reader allows it, within bounds, and never through a shell."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from everthread import InvalidValueError, verifiers


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def verdict(stored: dict[str, object], allow: object = True, timeout_s: float = 5.0) -> tuple[str, str]:
    found = verifiers.check(stored, None, allow_commands=allow, timeout_s=timeout_s)  # type: ignore[arg-type]
    return found.status.value, found.reason


def test_the_reader_decides(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    argv = python(f"open({str(ran)!r}, 'w')")
    stored = verifiers.capture(verifiers.command(argv), None)
    assert not ran.exists()
    status, reason = verdict(stored, False)
    assert (status, "allow_commands" in reason) == ("unverifiable", True)
    assert verdict(stored, [])[0] == "unverifiable"
    # An allowed command is compared whole: neither its beginning nor a longer one is enough.
    assert verdict(stored, [argv[:1], [*argv, "x"], [sys.executable]])[0] == "unverifiable"
    assert not ran.exists()
    assert verdict(stored, [argv])[0] == "fresh"
    assert ran.exists()
    assert verdict(stored, True)[0] == "fresh"


def test_exit_status_and_output(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("1")
    code = f"print(open({str(file)!r}).read()); raise SystemExit(3)"
    same = verifiers.capture(verifiers.command(python(code), exit_status=3, same_output=True), None)
    status_only = verifiers.capture(verifiers.command(python(code), exit_status=3), None)
    zero = verifiers.capture(verifiers.command(python(code)), None)
    assert verdict(same)[0] == verdict(status_only)[0] == "fresh"
    assert verdict(zero)[0] == "contradicted"
    file.write_text("2")
    assert verdict(same)[0] == "contradicted"
    assert verdict(status_only)[0] == "fresh"


def test_it_runs_where_the_fact_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").touch()
    code = "import os; raise SystemExit(0 if os.path.exists('here') else 1)"
    monkeypatch.chdir(tmp_path)
    stored = verifiers.capture(verifiers.command(python(code)), None)
    monkeypatch.chdir("/")
    assert verdict(stored)[0] == "fresh"


def test_no_shell(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    stored = verifiers.capture(verifiers.command(f"echo x; touch {ran}"), None)
    assert stored["args"]["argv"] == ["echo", "x;", "touch", str(ran)]
    assert verdict(stored)[0] == "fresh"
    assert not ran.exists()


def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    # Parent and child write their ids, then neither ever ends.
    code = (
        "import os, time\n"
        "child = os.fork()\n"
        f"path = {str(tmp_path)!r} + ('/parent' if child else '/child')\n"
        "open(path, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)"
    )
    stored = verifiers.capture(verifiers.command(python(code)), None)
    # Long enough for both to begin, on a busy machine too.
    status, reason = verdict(stored, timeout_s=5.0)
    assert (status, "stopped" in reason or "in time" in reason) == ("unverifiable", True), reason
    pids = [int((tmp_path / name).read_text()) for name in ("parent", "child")]
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "still there"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_one_that_writes_without_end_is_ended() -> None:
    stored = verifiers.capture(verifiers.command(["yes"]), None)
    status, reason = verdict(stored)
    assert (status, "wrote more than" in reason) == ("unverifiable", True)


def test_what_can_not_be_started() -> None:
    for argv in (["/no/such/program"], ["/etc/hostname"], ["x" * 200_000]):
        stored = {"name": "command", "args": {"argv": argv}, "expected": {"cwd": "/"}}
        status, reason = verdict(stored)
        assert (status, len(reason) <= 300) == ("unverifiable", True)
    gone = {"name": "command", "args": {"argv": ["true"]}, "expected": {"cwd": "/no/such/folder"}}
    assert verdict(gone)[0] == "unverifiable"


@pytest.mark.parametrize("argv", [None, [], "rm", [1], [""], ["a\0b"], [["a"]], {"a": 1}])
def test_hostile_arguments_run_nothing(argv: object) -> None:
    stored = {"name": "command", "args": {"argv": argv}, "expected": {"cwd": os.getcwd()}}
    assert verdict(stored) == ("unverifiable", "the stored command is not understood")


def test_what_a_caller_gets_wrong() -> None:
    for argv in ([], "", [""]):
        with pytest.raises(InvalidValueError, match="program and its arguments"):
            verifiers.command(argv)
    stored = verifiers.capture(verifiers.command("true"), None)
    for allow in ("true", ["true"], [b"x"], 7):
        with pytest.raises(InvalidValueError, match="allow_commands"):
            verdict(stored, allow)
