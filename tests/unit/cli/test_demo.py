"""The demonstration does what it says, and says what it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import everthread
from everthread.cli.demo import EXPECTED
from tests.unit.cli.calling import Program


def test_the_facts(program: Program) -> None:
    answer = program.start("demo", TMPDIR=str(program.folder))
    assert (answer.code, answer.err) == (0, "")
    for words in (
        "SIGKILL: killed after payment 7, before its receipt",
        "6 done, 1 in doubt, 5 not begun",
        "found: 6 done, 1 in doubt, 1 file drifted",
        "? invoice-807: in doubt. The ledger says paid, so it is not repeated",
        "12 payments, 0 duplicates",
        "step 4 → what-if  ",
        '~ todos “pay invoice-806: 45 EUR”.status  "pending" → "cancelled"',
        "Nothing was lost, nothing was done twice.",
    ):
        assert words in answer.out, words
    # It cleans up after itself, and leaves the user's own store alone.
    assert list(program.folder.iterdir()) == []


def test_the_facts_as_data_and_the_folder_kept(program: Program) -> None:
    answer = program.start("demo", "--json", "--keep", TMPDIR=str(program.folder))
    assert (answer.code, answer.err) == (0, "")
    data = answer.data
    folder = Path(data["folder"])
    assert {name: data[name] for name in EXPECTED} == EXPECTED
    assert data["ok"] is True
    ledger = [line.split("\t")[0] for line in (folder / "ledger.tsv").read_text().splitlines()]
    assert ledger == [f"invoice-{number}" for number in range(801, 813)]
    with everthread.open(f"sqlite:///{folder}/agent.db") as store:
        runs = store.session_records("payments").runs()
        assert [run.status for run in runs] == ["completed", "crashed"]
        labels = [version.label for version in store.thread("payments").history(limit=None) if version.label]
        assert labels == [f"step {number}" for number in range(12, 0, -1)]
        report = store.resume("payments")
        assert (len(report.todos["completed"]), report.in_doubt, len(report.open_loops)) == (12, (), 1)


def test_a_file_that_is_called_like_the_package_does_no_harm(program: Program) -> None:
    trap = program.folder / "trap"
    trap.mkdir()
    (trap / "everthread.py").write_text("raise SystemExit('trapped')")
    code = "from everthread.cli.main import main; main(['demo', '--json'])"
    found = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=trap,
        env=program.environment(TMPDIR=str(program.folder)),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert os.listdir(trap) == ["everthread.py"]


def test_a_fact_that_fails_is_a_failure(program: Program) -> None:
    code = (
        "import everthread.cli.demo as demo, everthread.cli.main as main\n"
        "demo.EXPECTED['payments'] = 13\n"
        "main.main(['demo'])\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=program.environment(TMPDIR=str(program.folder)),
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "✗ payments is 12, and should be 13" in found.stdout
    assert "Nothing was lost" not in found.stdout
