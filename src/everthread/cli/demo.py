"""``everthread demo``: an agent that pays invoices is killed between a payment and its receipt, and resumes.

Nothing is staged: the agent is a process, the kill a SIGKILL, the ledger a file; what is said is looked up.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from everthread.cli.context import Invocation
from everthread.cli.demo_agent import FATAL_VARIABLE, INVOICES, LEDGER, PRICES, STORE, THREAD, paid, pay
from everthread.cli.errors import FAILURE, OK
from everthread.cli.options import example, pass_invocation, shared_options
from everthread.cli.output import clean, typed

if TYPE_CHECKING:
    from everthread.store import Store

#: The payment after which the agent dies, the step that is forked, and the fork.
_FATAL, _FORKED = 7, 4
_FORK = "what-if"
#: What must come out; the demo fails if it doesn't.
EXPECTED = {
    "killed_by": "SIGKILL",
    "done": 6,
    "in_doubt": 1,
    "drifted": 1,
    "payments": 12,
    "duplicates": 0,
    "forked_at": "step 4",
    "payments_after_fork": 12,
    "sound": True,
}


@click.command(epilog=example("demo", "demo --keep", "demo --json"))
@click.option("--keep", is_flag=True, help="Keep the folder, to look around in.")
@shared_options
@pass_invocation
def demo(call: Invocation, keep: bool) -> None:
    """Twelve payments; a real kill -9 between the seventh and its receipt; a file changed behind the agent's
    back. Then the agent is started again, and a fork shows what might have been.

    Works in a temporary folder of its own. Needs no key and no network, takes a few seconds, and ends with 1
    if anything isn't as it should be.
    """
    folder = Path(tempfile.mkdtemp(prefix="everthread-demo-"))
    story = Story(folder, quiet=not call.output.for_people)
    try:
        found = story.play()
        fine = found == EXPECTED
        data = {"ok": fine, "folder": str(folder) if keep else None, **found}
        call.output.answer("demo", data, lambda: story.end(found))
    finally:
        if keep:
            url = typed(f"sqlite:///{folder}/{STORE}")
            story.tell(f"Look around:  everthread --store {url} log {THREAD}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    raise click.exceptions.Exit(OK if fine else FAILURE)


class Story:
    """The demonstration, in a folder of its own."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self._folder = folder
        self._quiet = quiet

    # ── telling ──────────────────────────────────────────────────────────────────────────────

    def tell(self, text: str = "", fg: str | None = None, *, bold: bool = False) -> None:
        if not self._quiet:
            click.secho(text, fg=fg, bold=bold)

    def title(self, text: str) -> None:
        self.tell()
        self.tell(text, bold=True)

    # ── what happens ─────────────────────────────────────────────────────────────────────────

    def play(self) -> dict[str, Any]:
        """Play it; what came out."""
        found: dict[str, Any] = {}
        self.tell("Your agent dies. Its work doesn't.", bold=True)
        self._kill(found)
        self._look(found)
        self._resume(found)
        self._fork(found)
        return found

    def end(self, found: dict[str, Any]) -> None:
        self.tell()
        if found == EXPECTED:
            self.tell("Nothing was lost, nothing was done twice.", "green", bold=True)
        for name, wanted in EXPECTED.items():
            if found.get(name) != wanted:
                self.tell(f"✗ {name} is {found.get(name)!r}, and should be {wanted!r}", "red")

    def _kill(self, found: dict[str, Any]) -> None:
        prices = self._folder / PRICES
        prices.write_text("120 80 45 300\n", encoding="utf-8")
        self.title("1  An agent pays twelve invoices. A payment is a line in the bank's ledger, a file.")
        status = self._run(fatal=INVOICES[_FATAL])
        found["killed_by"] = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        self.tell(f"   ✗ {found['killed_by']}: killed after payment {_FATAL}, before its receipt", "red")
        self.tell(f"   The ledger has {self._ledger().total()} lines, the agent has noted {_FATAL - 1}.")
        prices.write_text("120 80 45 310\n", encoding="utf-8")
        self.tell(f"   Meanwhile somebody edits {PRICES}, which the agent relies on.")

    def _look(self, found: dict[str, Any]) -> None:
        self.title("2  What a new run would find, before it acts (everthread resume):")
        with self._store() as store:
            report = store.resume(THREAD)
        found["done"] = len(report.todos.get("completed", ()))
        found["in_doubt"] = len(report.in_doubt)
        found["drifted"] = len(report.contradicted)
        left = len(INVOICES) - found["done"] - found["in_doubt"]
        self.tell(f"   {report.run.text if report.run else 'no run'}")
        self.tell(f"   {found['done']} done, {found['in_doubt']} in doubt, {left} not begun")
        for effect in report.in_doubt:
            self.tell(f"   ? {effect.key}: begun, no receipt. Paid or not? Ask the bank first.", "yellow")
        for fact in report.contradicted:
            self.tell(f"   ! {fact.key}: {clean(fact.reason)}", "yellow")

    def _resume(self, found: dict[str, Any]) -> None:
        self.title("3  The same agent, started again.")
        status = self._run()
        ledger = self._ledger()
        found["payments"] = ledger.total()
        found["duplicates"] = ledger.total() - len(ledger)
        if status:
            self.tell(f"   the agent ended with {status}", "red")
        fine = (found["payments"], found["duplicates"]) == (len(INVOICES), 0)
        self.tell(
            f"   {found['payments']} payments, {found['duplicates']} duplicates", "green" if fine else "red"
        )

    def _fork(self, found: dict[str, Any]) -> None:
        self.title(f"4  Any moment of it is still there: a fork at step {_FORKED}, and what differs in it.")
        with self._store() as store:
            thread = store.thread(THREAD)
            wanted = (v for v in thread.history(limit=None) if v.label == f"step {_FORKED}")
            version = next(wanted, None)
            if version is None:
                return
            found["forked_at"] = version.label
            thread.fork(_FORK, at=version)
            self._go_another_way(store)
            self._show_difference(store, version.seq)
            found["payments_after_fork"] = self._ledger().total()
            self.tell(
                f"   {INVOICES[_FORKED + 1]} was asked for again there: it is paid already, on every fork."
            )
            report = store.verify()
            found["sound"] = report.ok
            self.tell(f"   The store checks itself: {report}.")

    def _go_another_way(self, store: Store) -> None:
        """On the fork: the next invoice is to be paid, the others are given up."""
        invoice = INVOICES[_FORKED + 1]
        with store.session(_FORK, agent="payer") as session:
            left = [todo for todo in session.work.todos if todo.status == "pending"]
            session.work.set_intention("what if we stop after the fifth?")
            amount = int(left[0].content.split()[-2])
            session.call(f"pay-{invoice}", pay, str(self._folder), invoice, amount, verify=paid)
            session.work.complete_todo(left[0].id)
            for todo in left[1:3]:
                session.work.cancel_todo(todo.id)

    def _show_difference(self, store: Store, forked: int) -> None:
        if self._quiet:
            return
        from everthread.cli.diff import show_diff

        fork = store.thread(_FORK)
        head = fork.head
        assert head is not None, "it was just worked on"
        before, after = fork.at(forked), fork.at(head)
        show_diff(f"step {_FORKED} → {_FORK}", fork.diff(before, after), before, after, indent=3)

    # ── the folder ───────────────────────────────────────────────────────────────────────────

    def _store(self) -> Store:
        from everthread.store import open as open_store

        return open_store(f"sqlite:///{self._folder}/{STORE}")

    def _run(self, fatal: str = "") -> int:
        """Run the agent in a process of its own; its exit status, negative for a signal."""
        # -P: a file of the folder we are in must not stand in for the package.
        command = [sys.executable, "-P", "-m", "everthread.cli.demo_agent", str(self._folder)]
        environment = {**os.environ, FATAL_VARIABLE: fatal, "PYTHONIOENCODING": "utf-8"}
        agent = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, env=environment, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True
        )
        with agent:
            assert agent.stdout is not None, "it is a pipe"
            try:
                for line in agent.stdout:
                    self.tell(f"   {line.rstrip()}", "yellow" if line[0] in "?!" else None)
            except BaseException:
                # Interrupted, or nobody reads on: it has nobody left to talk to.
                agent.kill()
                raise
        return agent.returncode

    def _ledger(self) -> Counter[str]:
        path = self._folder / LEDGER
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return Counter(line.partition("\t")[0] for line in lines)
