"""``everthread demo``: an agent that pays invoices is killed between a payment and its receipt, and resumes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everthread.cli.demo_agent import FATAL_VARIABLE, INVOICES, THREAD
from everthread.cli.failing import FAILURE

if TYPE_CHECKING:
    from everthread.opening import Store

_FATAL = 7


@click.command()
@click.option("--keep", is_flag=True, help="Keep the folder, to look around in.")
def demo(keep: bool) -> None:
    """Twelve payments, a real kill -9 between the seventh and its receipt, a file changed behind the agent's back.

    Needs no key and no network, takes a few seconds, and ends with 1 if anything isn't as it should be.
    """
    folder = Path(tempfile.mkdtemp(prefix="everthread-demo-"))
    try:
        fine = _play(folder)
    finally:
        if keep:
            say(f"\nLook around: everthread --store sqlite:///{folder}/agent.db log {THREAD}", dim=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    raise click.exceptions.Exit(0 if fine else FAILURE)


def say(text: str, *, dim: bool = False, bold: bool = False, fg: str | None = None) -> None:
    click.secho(text, dim=dim, bold=bold, fg=fg)


def _play(folder: Path) -> bool:
    from everthread.opening import open as open_store

    (folder / "prices.txt").write_text("120 80 45 300\n", encoding="utf-8")
    say("1  An agent pays twelve invoices. A payment is a line in the bank's ledger, a file.", bold=True)
    killed = _run(folder, fatal=INVOICES[_FATAL])
    say(f"   {_ledger(folder).total()} lines are in the ledger when the process is gone (signal {-killed}):")
    say("   killed after the bank had booked payment 7, before the agent could write that down.", fg="red")
    (folder / "prices.txt").write_text("120 80 45 310\n", encoding="utf-8")
    say("   Meanwhile somebody edits the price list.", dim=True)

    say("\n2  What a new run finds, before it acts:", bold=True)
    with open_store(f"sqlite:///{folder}/agent.db") as store:
        told = _tell_resume(store)

    say("\n3  The agent is started again.", bold=True)
    ended = _run(folder)
    ledger = _ledger(folder)
    twice = sum(count - 1 for count in ledger.values())
    say(
        f"   It asked the bank about payment {_FATAL}: booked. Not paid again. Then it went on with {_FATAL + 1}."
    )
    say(f"   {len(ledger)} invoices paid, {twice} paid twice.", fg="green" if not twice else "red")

    say("\n4  Any moment of it is still there.", bold=True)
    with open_store(f"sqlite:///{folder}/agent.db") as store:
        forked = _tell_fork(store)
        sound = bool(store.verify())
    fine = killed == -signal.SIGKILL and ended == 0 and ledger == Counter(INVOICES.values())
    return fine and told and forked and sound


def _run(folder: Path, fatal: str = "") -> int:
    """Run the agent in a process of its own; its exit status, negative for a signal."""
    command = [sys.executable, "-m", "everthread.cli.demo_agent", str(folder)]
    environment = {**os.environ, FATAL_VARIABLE: fatal}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - our own program


def _ledger(folder: Path) -> Counter[str]:
    lines = (folder / "ledger.tsv").read_text(encoding="utf-8").splitlines()
    return Counter(line.partition("\t")[0] for line in lines)


def _tell_resume(store: Store) -> bool:
    report = store.resume(THREAD)
    done = len(report.todos.get("completed", ()))
    left = len(INVOICES) - done - len(report.in_doubt)
    drifted = report.contradicted
    say(f"   The last run {report.status}. {done} done, {len(report.in_doubt)} in doubt, {left} not begun.")
    for effect in report.in_doubt:
        say(f"   ? {effect.key}: begun, no result recorded. Ask the bank first.", fg="yellow")
    for fact in drifted:
        say(f"   ! {fact.key}: {fact.reason}", fg="yellow")
    briefing = store.briefing(THREAD, max_tokens=300)
    say(f"   The briefing for the model has {len(briefing)} characters; it begins:", dim=True)
    for line in str(briefing).splitlines()[:9]:
        say(f"     │ {line[:96]}", dim=True)
    return report.crashed and done == _FATAL - 1 and len(report.in_doubt) == 1 and len(drifted) == 1


def _tell_fork(store: Store) -> bool:
    thread = store.thread(THREAD)
    fourth = next(v for v in thread.history(limit=None) if v.label == "step 4")
    other = thread.fork("what-if", at=fourth)
    other.state["context"] = {}
    other.messages.append({"role": "user", "content": "What if we had stopped here?"})
    other.commit()
    change = thread.diff(fourth)
    say(f"   Forked at step 4 (version {fourth.seq}) as 'what-if'; the original goes on unharmed.")
    say(f"   From there to the end: {change.summary()}")
    return bool(change) and len(other.messages) == 5
