"""The agent of ``everthread demo``: pays twelve invoices. A program of its own, so that it can be killed.

    python -m everthread.cli.demo_agent FOLDER

With EVERTHREAD_DEMO_FATAL=invoice-807 in the environment it is killed in the middle of paying that one. It
doesn't know whether it is the first run: it does what isn't done.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everthread.sessions.effects import Done
    from everthread.sessions.sync.session import AgentSession

THREAD = "payments"
STORE = "agent.db"
LEDGER = "ledger.tsv"
PRICES = "prices.txt"
FATAL_VARIABLE = "EVERTHREAD_DEMO_FATAL"
#: Number of the payment → invoice.
INVOICES = {number: f"invoice-{800 + number}" for number in range(1, 13)}


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - this program talks to whoever started it


def pay(folder: str, invoice: str, amount: int) -> str:
    """The effect: one line in the bank's ledger, for real, on disk. Doing it twice would pay twice."""
    with (Path(folder) / LEDGER).open("a", encoding="utf-8") as ledger:
        ledger.write(f"{invoice}\t{amount}\n")
        ledger.flush()
        os.fsync(ledger.fileno())
    if invoice == os.environ.get(FATAL_VARIABLE):
        # The money is gone, and nobody has written that down.
        os.kill(os.getpid(), signal.SIGKILL)
    return f"receipt for {invoice}"


def paid(folder: str, invoice: str, amount: int) -> Done | bool:
    """What the bank says when it is asked."""
    from everthread.sessions.effects import Done

    ledger = Path(folder) / LEDGER
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    if f"{invoice}\t{amount}" not in lines:
        return False
    say(f"? {invoice}: in doubt. The ledger says paid, so it is not repeated")
    return Done(f"receipt for {invoice}, found in the ledger")


def work(folder: Path) -> None:
    """Pay what isn't paid, in order."""
    from everthread.store import open as open_store

    with open_store(f"sqlite:///{folder}/{STORE}") as store, store.session(THREAD, agent="payer") as session:
        if session.resumed is None:
            _plan(session, folder)
        else:
            _take_stock(session)
        for todo, (number, invoice) in zip(session.work.todos, INVOICES.items(), strict=True):
            if todo.status == "completed":
                continue
            amount = int(todo.content.split()[-2])
            with session.turn():
                receipt = session.call(f"pay-{invoice}", pay, str(folder), invoice, amount, verify=paid)
                session.work.complete_todo(todo.id)
                session.messages.append({"role": "assistant", "content": receipt})
                session.thread.commit(label=f"step {number}")
            say(f"✓ step {number}: {receipt}")


def _plan(session: AgentSession, folder: Path) -> None:
    from everthread.verifiers.builtin import file_hash

    session.work.set_intention("pay the twelve invoices of March")
    session.work.add_constraint("Never pay an invoice twice.")
    session.work.set_context("price list", str(folder / PRICES), verify=file_hash())
    prices = (folder / PRICES).read_text(encoding="utf-8").split()
    for number, invoice in INVOICES.items():
        session.work.add_todo(f"pay {invoice}: {prices[number % len(prices)]} EUR")


def _take_stock(session: AgentSession) -> None:
    """What this run finds, before it acts."""
    from everthread.verifiers.builtin import file_hash

    found = session.resumed
    assert found is not None, "asked before"
    done = len(found.todos.get("completed", ()))
    say(f"found: {done} done, {len(found.in_doubt)} in doubt, {len(found.contradicted)} file drifted")
    for fact in found.contradicted:
        say(f"! {fact.key} changed: keeps the amounts that were agreed, and leaves a note to ask")
        session.work.add_open_loop(f"the {fact.key} changed while I was away: ask whether that matters")
        session.work.set_context(fact.key, session.work.context[fact.key].value, verify=file_hash())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    work(parser.parse_args().folder)


if __name__ == "__main__":
    main()
