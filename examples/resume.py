"""An agent is killed between a payment and its receipt, a file changes behind its back, and it resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import everthread
from everthread import verifiers


class Bank:
    """The world outside: a ledger that only grows."""

    def __init__(self, folder: Path) -> None:
        self.ledger = folder / "ledger.txt"

    def pay(self, invoice: int) -> str:
        with self.ledger.open("a", encoding="utf-8") as ledger:
            ledger.write(f"{invoice}\n")
        if invoice == 2 and "--die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)  # paid, and nobody has heard of it
        return f"receipt {invoice}"

    def has_paid(self, invoice: int) -> bool:
        return self.ledger.exists() and str(invoice) in self.ledger.read_text(encoding="utf-8").split()


def run(folder: Path) -> None:
    """One run of the agent. It doesn't know whether it is the first."""
    bank = Bank(folder)
    store = everthread.open(f"sqlite:///{folder}/agent.db")
    with store, store.session("payer", agent="weaver") as session:
        if session.resumed is None:
            session.work.set_intention("pay the invoices of March")
            session.work.add_constraint("Never pay more than 500 EUR without asking")
            session.work.set_context("rates", str(folder / "rates.csv"), verify=verifiers.file_hash())
            session.work.start_todo(session.work.add_todo("pay invoices 1 to 3", priority="high").id)
            session.work.add_todo("write the report")
        else:
            print(session.resumed, end="\n\n")
            print(session.briefing(max_tokens=800), end="\n\n")
        for invoice in (1, 2, 3):
            print(session.call(f"pay-{invoice}", bank.pay, invoice, verify=bank.has_paid))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rates.csv").write_text("EUR,1.00\n", encoding="utf-8")
        child = subprocess.run([sys.executable, __file__, "--die", name], check=False)
        assert child.returncode == -signal.SIGKILL
        print("killed\n")
        (folder / "rates.csv").write_text("EUR,1.01\n", encoding="utf-8")
        run(folder)
        payments = (folder / "ledger.txt").read_text(encoding="utf-8").split()
        print(f"\n{len(payments)} payments, {len(payments) - len(set(payments))} made twice")


if __name__ == "__main__":
    if "--die" in sys.argv:
        run(Path(sys.argv[-1]))
    else:
        main()
