"""Exit codes, pipes, signals and encodings, of the program as it is started."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from contextlib import suppress

import pytest

import everthread
from everthread.cli.commands import COMMANDS, DESTRUCTIVE
from tests.unit.cli.calling import Committer, Program


def test_exit_codes(program: Program, commits: Committer, store: everthread.Store) -> None:
    assert program.start("status").code == 0
    assert program.start("resume").code == 3
    commits("bot", 2)
    with store.session("stale") as s:
        s.work.set_context("fact", "value")
        assert program.start("resume", "stale").code == 5
    codes = {
        0: ["show", "bot"],
        1: ["rewind", "bot", "1"],
        2: ["show"],
        3: ["show", "nobody"],
        4: ["resume", "stale", "--max-age", "0"],
    }
    for code, arguments in codes.items():
        answer = program.start(*arguments, input="n\n")
        assert answer.code == code, (arguments, answer)
        assert "Traceback" not in answer.err
    for arguments in (
        ["nosuch"],
        ["status", "--nosuch"],
        ["status", "--limit", "0"],
        ["show", "a", "b", "c"],
    ):
        answer = program.start(*arguments)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.splitlines()[-1].startswith("everthread: ")
    assert "did you mean 'stats' or 'status'?" in program.start("stauts").err


def test_a_mistyped_command_is_never_answered_with_a_destructive_one(program: Program) -> None:
    assert set(DESTRUCTIVE) < set(COMMANDS)
    for name in DESTRUCTIVE:
        for mistyped in (name[:-1], name + "e", name[1:], name[0] + name, "mrege", "ersae"):
            if mistyped not in COMMANDS:
                told = program(mistyped, code=2).err
                assert not [each for each in DESTRUCTIVE if repr(each) in told.partition(";")[2]], told


def test_answers_go_to_stdout_and_words_to_stderr(program: Program, commits: Committer) -> None:
    commits("bot", 3)
    answer = program.start("log", "bot", "--limit", "1", "--json")
    assert (answer.err, answer.data["command"]) == ("", "log")
    answer = program.start("log", "bot", "--limit", "1")
    assert "older ones" in answer.err
    assert "older ones" not in answer.out


def test_help_and_version(program: Program) -> None:
    assert program.start("--version").out == f"everthread {everthread.__version__}\n"
    assert program.start("--json", "--version").out == f"everthread {everthread.__version__}\n"
    bare, asked = program.start(), program.start("--help")
    assert (bare.code, bare.out) == (asked.code, asked.out)
    assert "Examples:" in bare.out
    assert not (program.folder / "agent.db").exists()


def test_whoever_has_seen_enough_may_stop_reading(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    thread.state["text"] = "x" * 3_000_000
    thread.commit()
    for arguments in (["show", "bot", "--json"], ["show", "bot", "--format", "tsv"]):
        writer = subprocess.Popen(
            program.command(*arguments),
            env=program.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with writer:
            assert writer.stdout is not None
            assert writer.stderr is not None
            assert writer.stdout.read(10)
            writer.stdout.close()
            assert writer.stderr.read() == b""
        assert writer.returncode == 0


@pytest.mark.parametrize("command", [["show", "bot"], ["log", "bot"], ["status"], ["show", "bot", "--json"]])
def test_a_full_disk_behind_stdout_is_a_failure(
    program: Program, commits: Committer, command: list[str]
) -> None:
    commits("bot", 1)
    with open("/dev/full", "wb") as full:
        found = subprocess.run(
            program.command(*command),
            env=program.environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (found.returncode, found.stderr) == (1, "everthread: No space left on device\n")


def test_without_stdout_there_is_still_the_exit_code(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    for command, code in ((["status"], 0), (["show", "bot"], 0), (["show", "nobody"], 3)):
        line = " ".join(program.command(*command)) + " >&-"
        assert subprocess.run(["bash", "-c", line], env=program.environment()).returncode == code
        line = " ".join(program.command(*command)) + " >&- 2>&-"
        assert subprocess.run(["bash", "-c", line], env=program.environment()).returncode == code


def test_an_interrupt_ends_it_in_one_line(program: Program, commits: Committer) -> None:
    thread = commits("bot", 2)
    head = thread.head
    asking = subprocess.Popen(
        program.command("rewind", "bot", "1"),
        env=program.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests may ignore it, and a child would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    with asking:
        assert asking.stderr is not None
        while (shown := asking.stderr.read(1)) not in ("?", ""):
            pass
        assert shown == "?"
        # One that comes just before it begins to wait is seen by Python only with the next one.
        while asking.poll() is None:
            asking.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                asking.wait(1)
        told = asking.stderr.read()
    assert asking.returncode == 130
    assert told.endswith("everthread: stopped; nothing is half done\n")
    assert "Traceback" not in told
    assert thread.refresh() == head


def test_a_terminal_that_lacks_letters_gets_escapes(program: Program, store: everthread.Store) -> None:
    thread = store.thread("漢字")
    thread.state["é"] = "ü → 漢"
    thread.commit()
    for encoding in ("ascii", "latin-1"):
        for command in (["status"], ["show", "漢字"], ["show", "漢字", "--json"]):
            found = subprocess.run(
                program.command(*command),
                env=program.environment(PYTHONIOENCODING=encoding, PYTHONUTF8="0"),
                capture_output=True,
            )
            assert (found.returncode, b"Traceback" in found.stderr) == (0, False), found.stderr
            # Nobody means it who says ascii: click then writes UTF-8.
            assert b"\\u6f22" in found.stdout or (encoding == "ascii" and "漢" in found.stdout.decode())


def test_colours_only_on_a_terminal(program: Program, commits: Committer) -> None:
    commits("bot", 2)
    for command in (["status"], ["log", "bot"]):
        assert "\x1b" not in program.start(*command).out
        assert "\x1b[" in on_terminal(program, command)
        assert "\x1b" not in on_terminal(program, command, NO_COLOR="1")
        assert "\x1b" not in on_terminal(program, command, TERM="dumb")
        assert "\x1b[" in program.start(*command, FORCE_COLOR="1").out


def on_terminal(program: Program, command: list[str], **environment: str) -> str:
    """What the program writes to a terminal of eighty columns."""
    ours, theirs = pty.openpty()
    more = {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **environment}
    running = subprocess.Popen(
        program.command(*command), env=program.environment(**more), stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:
            # How Linux says that nobody has the other end any more.
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert running.wait(60) == 0
    return written.decode()


def test_lines_keep_to_a_terminal(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    thread.state["wide"] = {"漢" * 30: "字" * 300, "plain": "x" * 500}
    thread.commit(label="l" * 200)
    shown = on_terminal(program, ["show", "bot"], NO_COLOR="1")
    from everthread.cli.output import cells

    assert max(cells(line) for line in shown.split("\r\n")) <= 80
