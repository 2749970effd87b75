"""scan --redact, and what was redacted before: told whoever finished it."""

from __future__ import annotations

from pathlib import Path

import pytest

import everthread
from everthread.testing.faults import Call, wrap_every_backend, wrapped
from tests.unit.cli.calling import Program, here, interrupted_apart
from tests.unit.cli.test_keeping import contents

SECRET = "sk-live-1234"


@pytest.fixture
def threads(program: Program) -> list[str]:
    """Two threads with three versions that hold a secret, and an event with it."""
    with everthread.open(program.url) as store:
        for name, count in (("one", 2), ("two", 1)):
            for number in range(count):
                store.thread(name).update(lambda draft, n=number: draft.state.update({f"v{n}": SECRET}))
        store.events("tasks").append("made", {"key": SECRET})
    return ["one", "two"]


def redact(program: Program, *more: str, code: int = 0) -> str:
    answer = program("scan", SECRET, "--redact", "--reason", "leaked", *more, code=code)
    return answer.out + answer.err


def test_what_was_redacted_is_listed(program: Program, threads: list[str]) -> None:
    assert "nothing was redacted here yet" in program("scan", "--redactions", code=3).err
    redact(program, "--yes")
    shown = program("scan", "--redactions").out
    assert "3 versions of 2 threads and 1 event: leaked" in shown
    assert SECRET not in shown
    (told,) = program.json("scan", "--redactions")["redactions"]
    assert told.pop("at_us") > 0
    assert len(told.pop("id")) == 16
    assert told == {
        "reason": "leaked",
        "threads": 2,
        "versions": 3,
        "events": 1,
        "summary": "3 versions of 2 threads and 1 event",
    }
    table = program("scan", "--redactions", "--format", "tsv").out.splitlines()
    assert table[0].split("\t") == ["id", "at_us", "threads", "versions", "events", "reason"]
    assert "everthread scan --redactions" in redact(program, "--yes", code=3)


def test_run_again_it_says_what_was_done_before(program: Program, threads: list[str]) -> None:
    # One thread is done, the other isn't.
    told = interrupted_apart(
        program, "prune", 2, "scan", SECRET, "--redact", "--reason", "leaked", "--yes"
    ).err
    assert "everthread scan --redactions tells what was done" in told
    assert "was cut short" in program("scan", "--redactions").err
    again = redact(program, "--yes")
    assert "cut short: 3 versions of 2 threads and 1 event; everthread scan --redactions" in again
    (told,) = program.json("scan", "--redactions")["redactions"]
    assert told["versions"] == 3
    with everthread.open(program.url) as store:
        assert store.verify().ok
        assert store._left_undone() == []


def test_what_another_program_finished_is_told(program: Program, threads: list[str]) -> None:
    interrupted_apart(program, "prune", 2, "scan", SECRET, "--redact", "--reason", "leaked", "--yes")
    program("status")
    assert "everthread scan --redactions" in redact(program, "--yes", code=3)
    assert "3 versions of 2 threads and 1 event: leaked" in program("scan", "--redactions").out


def test_nothing_is_gone_on_with_before_the_answer(program: Program, threads: list[str]) -> None:
    # The text is gone, its old bytes aren't.
    interrupted_apart(program, "purge", 1, "scan", SECRET, "--redact", "--yes")
    (program.folder / "no keys").mkdir()
    before = contents(program.folder, program.folder / "no keys")
    refused = program("scan", SECRET, "--redact", code=1, input="n\n").err
    assert "the redaction that began" in refused
    assert "Go on with it?" in refused
    program("scan", SECRET, "--redact", "--dry-run", code=3)
    assert contents(program.folder, program.folder / "no keys") == before
    program("scan", SECRET, "--redact", "--yes", code=3)
    assert "was cut short" not in program("scan", "--redactions").err


def test_which_text_or_what_was(program: Program, threads: list[str]) -> None:
    for wrong in ([], [SECRET, "--redactions"], ["--redactions", "--redact"]):
        assert "either TEXT" in program("scan", *wrong, code=2).err


@pytest.mark.parametrize("option", ["--replacement", "--reason"])
def test_what_only_a_redaction_needs_is_refused_without_one(
    program: Program, threads: list[str], option: str
) -> None:
    for call in ([SECRET], ["--redactions"], [SECRET, "--dry-run"]):
        assert f"{option} is for --redact" in program("scan", *call, option, "x", code=2).err
    assert program("scan", SECRET, "--redact", option, "x", "--yes").out


def test_what_was_not_reached_is_not_said_to_be_redacted(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/files"
    with everthread.open(url) as store:
        store.thread("one").update(lambda draft: draft.state.update(key=SECRET))
    told = here("scan", SECRET, "--redact", "--yes", "--store", url).out.splitlines()
    at = told.index("not reached:")
    assert told[at - 1].endswith("1 place in 1 version of 1 thread was redacted")
    assert told[at + 1].startswith("  what a version control system or a file system keeps of them")


# ── stopped ──────────────────────────────────────────────────────────────────────────────────────


def stopped(program: Program, verb: str, number: int, *more: str) -> str:
    told = interrupted_apart(program, verb, number, "scan", SECRET, "--redact", *more).err
    assert told.startswith("everthread: stopped")
    return told


def test_stopped_before_it_began_it_does_not_say_that_it_goes_on(
    program: Program, threads: list[str]
) -> None:
    # The mark that it has begun would be the first.
    told = stopped(program, "swap", 1, "--yes")
    assert "in the middle" not in told
    assert "if the redaction had begun, it goes on" in told
    assert "If not, nothing was changed" in told
    assert "was cut short" not in program("scan", "--redactions", code=3).err


def test_stopped_in_the_middle_it_says_so(program: Program, threads: list[str]) -> None:
    told = stopped(program, "prune", 2, "--yes")
    assert "stopped in the middle: the redaction goes on when the store is next opened" in told


def test_a_preview_that_is_stopped_has_begun_nothing(program: Program, threads: list[str]) -> None:
    looked = calls_of(program, "every_line")
    assert (
        stopped(program, "every_line", looked, "--dry-run") == "everthread: stopped; nothing is half done\n"
    )


def calls_of(program: Program, verb: str) -> int:
    """How often a preview calls a verb: at the last time it does what ``store.redact()`` does."""
    numbers: list[int] = []

    def hook(call: Call) -> None:
        if (call.verb, call.moment) == (verb, "before"):
            numbers.append(call.number)

    with wrap_every_backend(lambda backend: wrapped(backend, hook)):
        program("scan", SECRET, "--redact", "--dry-run")
    return max(numbers)
