"""What is said when a command is stopped in the middle is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import everthread
from everthread.testing.faults import Call, wrap_every_backend, wrapped
from tests.unit.cli.calling import Answer, Committer, Program, here, interrupted_apart
from tests.unit.cli.test_streams import on_terminal


def interrupted(verb: str, number: int, *arguments: str) -> Answer:
    """The program, with a Ctrl-C just before a verb of a store is called for the so-many-th time."""

    def hook(call: Call) -> None:
        if (call.verb, call.moment, call.number) == (verb, "before", number):
            raise KeyboardInterrupt

    with wrap_every_backend(lambda backend: wrapped(backend, hook)):
        return here(*arguments, code=130)


def prunable(store: everthread.Store, name: str) -> everthread.Thread:
    """A thread of thirty versions without labels, which would be kept."""
    thread = store.thread(name)
    for number in range(30):
        thread.state["n"] = f"message {number}"
        thread.commit()
    return thread


def test_a_copy_says_how_far_it_came(
    program: Program, commits: Committer, store: everthread.Store, tmp_path: Path
) -> None:
    for number in range(10):
        commits(f"bot {number}", 3)
    target = f"sqlite:///{tmp_path}/target.db"
    told = interrupted("create", 5, "copy", program.url, target).err
    assert told == (
        "everthread: stopped after 12 of 30 versions and events: what was brought over stays; "
        "run it again to go on\n"
    )
    with everthread.open(target) as copied:
        assert len(list(copied.threads())) == 4
    here("copy", program.url, target)
    with everthread.open(target) as copied:
        assert len(list(copied.threads())) == 10


def test_an_import_says_how_far_it_came(program: Program, commits: Committer, tmp_path: Path) -> None:
    for number in range(4):
        commits(f"bot {number}", 3)
    archive = str(tmp_path / "archive")
    program("export", archive)
    target = f"sqlite:///{tmp_path}/target.db"
    told = interrupted("create", 3, "import", archive, "--store", target).err
    assert "stopped after 6 of 12 versions and events" in told
    here("import", archive, "--store", target)


def test_gc_says_what_was_done(program: Program, store: everthread.Store) -> None:
    for number in range(4):
        prunable(store, f"bot {number}")
    gone = interrupted("prune", 3, "gc", "--keep-last", "1", "--yes", "--store", program.url).err
    assert gone == (
        "everthread: stopped after 2 of 4 threads and journals: what was removed is gone, all else is as it "
        "was; run it again to go on\n"
    )
    left = [sum(1 for _ in store.thread(f"bot {number}").history(limit=None)) for number in range(4)]
    assert sorted(left)[2:] == [30, 30]
    assert sorted(left)[1] < 30


def test_an_erasure_goes_on(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    thread.state["mail"] = everthread.Personal("ann", "ann@example.org")
    thread.commit()
    told = interrupted("drop_sealed", 1, "erase", "--subject", "ann", "--yes", "--store", program.url).err
    assert "an erasure that has begun goes on when the store is next opened" in told
    assert "nothing is half done" not in told
    with everthread.open(program.url) as again:
        assert isinstance(again.thread("bot").state["mail"], everthread.Erased)


@pytest.mark.parametrize("command", [["status"], ["show", "bot"], ["gc", "--yes"]], ids=lambda each: each[0])
def test_what_opening_goes_on_with_is_not_called_whole(program: Program, command: list[str]) -> None:
    with everthread.open(program.url) as store:
        store.thread("bot").update(lambda draft: draft.state.update(x=everthread.Personal("ann", "a@b")))
    interrupted_apart(program, "drop_sealed", 1, "erase", "--subject", "ann", "--yes")
    # Once more, while the store is opened: that goes on with it.
    told = interrupted_apart(program, "drop_sealed", 1, *command).err
    assert "nothing is half done" not in told
    assert "an erasure or a redaction that has begun goes on when the store is next opened" in told
    with everthread.open(program.url) as again:
        assert again.core.backend.erasures(True) == []


def test_a_second_stop_while_everything_is_closed_says_what_the_first_did(
    program: Program, store: everthread.Store
) -> None:
    thread = store.thread("bot")
    thread.state["mail"] = everthread.Personal("ann", "ann@example.org")
    thread.commit()

    def hook(call: Call) -> None:
        if (call.verb, call.moment) in (("drop_sealed", "before"), ("close", "before")):
            raise KeyboardInterrupt

    with wrap_every_backend(lambda backend: wrapped(backend, hook)):
        told = here("erase", "--subject", "ann", "--yes", "--store", program.url, code=130).err
    assert "an erasure that has begun goes on" in told
    assert "nothing is half done" not in told


#: The program, with one SIGINT while it reads the store, and another at the moment that is named.
_TWICE = """if True:
    import atexit, os, signal, sys
    from everthread.cli.main import main
    from everthread.testing.faults import wrap_every_backend, wrapped

    moment, sys.argv = sys.argv[1], sys.argv[1:]

    def stop():
        os.kill(os.getpid(), signal.SIGINT)

    class Stopping:
        def __init__(self, stream):
            self._stream = stream

        def __getattr__(self, name):
            return getattr(self._stream, name)

        def write(self, text):
            if "stopped" in text:
                stop()
            return self._stream.write(text)

    def hook(call):
        if (call.verb, call.moment) == ("lines", "before"):
            stop()
        if (call.verb, call.moment, moment) == ("close", "before", "closing"):
            stop()

    if moment == "answering":
        sys.stderr = Stopping(sys.stderr)
    if moment == "exiting":
        atexit.register(stop)
    with wrap_every_backend(lambda backend: wrapped(backend, hook)):
        main()
"""


@pytest.mark.parametrize("moment", ["closing", "answering", "exiting"])
def test_ctrl_c_twice_ends_with_one_line(program: Program, commits: Committer, moment: str) -> None:
    commits("bot", 1)
    found = subprocess.run(
        [sys.executable, "-c", _TWICE, moment, "status"],
        env=program.environment(),
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert found.stderr == "everthread: stopped; nothing is half done\n"
    # A shell shows 130 for both: the exit code, and the end by the signal.
    assert found.returncode == (-signal.SIGINT if moment == "exiting" else 130)


def test_a_restore_is_all_or_nothing_and_says_so(program: Program, commits: Committer) -> None:
    commits("bot", 1)
    program("backup", str(program.folder / "copy"))
    copy = str(program.folder / "copy")
    told = interrupted("restore", 1, "restore", copy, "--yes", "--store", program.url).err
    assert "all that it held, or all of the backup" in told


def test_a_look_that_is_stopped_has_changed_nothing(program: Program, commits: Committer) -> None:
    commits("bot", 2)
    told = interrupted("lines", 1, "status", "--store", program.url).err
    assert told == "everthread: stopped; nothing is half done\n"


# ── nobody there to ask, nobody there to read ────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "command",
    [["rewind", "bot", "1"], ["gc", "--keep-last", "1"], ["scan", "message", "--redact"]],
    ids=lambda each: each[0],
)
def test_a_closed_stdin_is_like_an_empty_one(
    program: Program, store: everthread.Store, command: list[str]
) -> None:
    thread = prunable(store, "bot")
    head = thread.head
    line = " ".join(program.command(*command))
    told = [
        subprocess.run(
            ["bash", "-c", f"{line} {stdin}"], env=program.environment(), capture_output=True, text=True
        )
        for stdin in ("</dev/null", "<&-")
    ]
    assert [each.returncode for each in told] == [1, 1]
    assert "Traceback" not in told[1].stderr
    assert all(each.stderr.endswith("everthread: stopped; nothing is half done\n") for each in told)
    assert thread.refresh() == head


@pytest.mark.parametrize("command", [["log", "bot"], ["show", "bot"], ["log", "bot", "--json"]], ids=str)
def test_a_reader_that_left_is_no_failure(
    program: Program, store: everthread.Store, commits: Committer, command: list[str]
) -> None:
    thread = commits("bot", 3)
    for number in range(200):
        thread.state[f"text {number}"] = "x" * 2_000
    thread.commit(label="much", metadata={"why": "x" * 200_000})
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        found = subprocess.run(
            program.command(*command), env=program.environment(), stdout=theirs, stderr=subprocess.PIPE
        )
    finally:
        os.close(theirs)
    assert (found.returncode, found.stderr) == (0, b"")


def test_a_demo_that_nobody_watches_ends_quietly(program: Program) -> None:
    demo = subprocess.Popen(
        program.command("demo"),
        env=program.environment(TMPDIR=str(program.folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        while "✓ step 1" not in demo.stdout.readline():
            pass
        # While the agent still has something to say.
        demo.stdout.close()
        told = demo.stderr.read()
    assert (demo.returncode, told) == (0, "")
    assert list(program.folder.iterdir()) == []


def test_a_demo_that_is_stopped_ends_quietly(program: Program) -> None:
    # With a terminal of its own, as whoever types Ctrl-C has: all of its processes are told.
    demo = subprocess.Popen(
        program.command("demo"),
        env=program.environment(TMPDIR=str(program.folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )
    with demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        while "✓ step 2" not in demo.stdout.readline():
            pass
        os.killpg(demo.pid, signal.SIGINT)
        demo.stdout.read()
        told = demo.stderr.read()
    assert (demo.returncode, told) == (130, "everthread: stopped; nothing is half done\n")
    assert list(program.folder.iterdir()) == []


# ── a store where a name is expected, and a narrow terminal ──────────────────────────────────────


@pytest.mark.parametrize("command", ["status", "log", "show", "resume", "diff"])
def test_a_store_instead_of_a_name_is_recognised(
    command: str, program: Program, commits: Committer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits("bot", 1)
    for named in (program.url, f"{tmp_path}/agent.db"):
        told = here(command, named, code=3).err
        assert f"everthread {command} --store sqlite:///{tmp_path}/agent.db" in told
    with everthread.open(f"file://{tmp_path}/files") as other:
        other.thread("bot").update(lambda draft: draft.state.update(n=1))
    assert f"--store file://{tmp_path}/files" in here(command, f"{tmp_path}/files", code=3).err
    monkeypatch.setenv("EVERTHREAD_URL", program.url)
    assert "--store" in here(command, "valkey://localhost/0", code=3).err
    assert "--store" not in here(command, "nobody", code=3).err


def test_status_keeps_to_a_narrow_terminal(program: Program, store: everthread.Store) -> None:
    for name in ("short", "a name that is much longer than a narrow terminal has room for"):
        thread = store.thread(name)
        thread.state["n"] = 1
        thread.commit(label="a label of some length")
    for columns in ("40", "60", "80"):
        lines = on_terminal(program, ["status"], NO_COLOR="1", COLUMNS=columns).split("\r\n")
        assert max(map(len, lines)) <= int(columns), lines
        assert any(line.startswith("short ") for line in lines)
    assert "a label of some length" in on_terminal(program, ["status"], NO_COLOR="1", COLUMNS="120")


def test_a_pruned_version_is_told_in_the_words_of_commands(program: Program, store: everthread.Store) -> None:
    prunable(store, "bot")
    program("gc", "--keep-last", "1", "--yes")
    told = program("show", "bot", "2", code=3).err
    assert "everthread log shows what is left" in told
    assert "history()" not in told
