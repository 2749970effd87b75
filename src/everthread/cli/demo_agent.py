"""The agent of ``everthread demo``: pays twelve invoices. Run as a program of its own, so that it can be killed.

    python -m everthread.cli.demo_agent FOLDER

With EVERTHREAD_DEMO_FATAL=invoice-807 in the environment it is killed in the middle of paying that one.
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from everthread.verifiers import file_hash
from everthread.opening import open as open_store

THREAD = "payments"
FATAL_VARIABLE = "EVERTHREAD_DEMO_FATAL"
INVOICES = {n: f"invoice-{800 + n}" for n in range(1, 13)}


def price(folder: Path, number: int) -> int:
    """What an invoice costs, by the price list."""
    return int((folder / "prices.txt").read_text(encoding="utf-8").split()[number % 4])


def pay(folder: str, invoice: str, amount: int) -> str:
    """The effect: one line in the bank's ledger, for real, on disk. Sending it twice would pay twice."""
    with (Path(folder) / "ledger.tsv").open("a", encoding="utf-8") as ledger:
        ledger.write(f"{invoice}\t{amount}\n")
        ledger.flush()
        os.fsync(ledger.fileno())
    if invoice == os.environ.get(FATAL_VARIABLE):
        # The money is gone and nobody has written that down yet.
        os.kill(os.getpid(), signal.SIGKILL)
    return f"receipt for {invoice}"


def paid(folder: str, invoice: str, amount: int) -> bool:
    """What the bank says when it is asked."""
    ledger = Path(folder) / "ledger.tsv"
    lines = ledger.read_text(encoding="utf-8").splitlines() if ledger.exists() else []
    return f"{invoice}\t{amount}" in lines


def work(folder: Path) -> None:
    """Pay what isn't paid, in order."""
    with (
        open_store(f"sqlite:///{folder}/agent.db") as store,
        store.session(THREAD, agent="payer") as session,
    ):
        if session.work.get_intention() is None:
            session.work.set_intention("pay the twelve invoices of March")
            session.work.add_constraint("Never pay an invoice twice.")
            prices = file_hash(str(folder / "prices.txt"))
            session.work.set_context("price list", str(folder / "prices.txt"), verify=prices)
            for number, invoice in INVOICES.items():
                session.work.add_todo(f"pay {invoice} ({price(folder, number)} €)")
        for todo, (number, invoice) in zip(session.work.todos, INVOICES.items(), strict=True):
            if todo.status == "completed":
                continue
            amount = int(todo.content.rpartition("(")[2].split()[0])
            receipt = session.call(f"pay-{invoice}", pay, str(folder), invoice, amount, verify=paid)
            session.work.complete_todo(todo.id)
            session.messages.append({"role": "assistant", "content": receipt or f"{invoice} was paid before"})
            session.thread.commit(label=f"step {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    work(parser.parse_args().folder)


if __name__ == "__main__":
    main()
