"""Three payments, the second one in doubt: killed between the payment and its receipt."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import everthread


def run(url: str, bank: pathlib.Path, dying: bool) -> list[str]:
    """Pay three invoices, each at most once, whatever happened before."""

    def pay(invoice: int) -> str:
        with bank.open("a") as book:
            book.write(f"{invoice}\n")
        if dying and invoice == 2:
            os.kill(os.getpid(), signal.SIGKILL)  # paid, but nobody was told
        return f"receipt {invoice}"

    def is_paid(invoice: int) -> everthread.Done | bool:
        booked = bank.read_text().split() if bank.exists() else []
        return everthread.Done(f"receipt {invoice}, found at the bank") if str(invoice) in booked else False

    with everthread.open(url) as store, store.session("invoice-bot") as s:
        for effect in s.in_doubt():
            print(f"in doubt: {effect.key}")
        return [s.call(f"pay-{invoice}", pay, invoice, verify=is_paid) for invoice in (1, 2, 3)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url, bank = f"sqlite:///{folder}/agent.db", pathlib.Path(folder) / "bank.txt"
        subprocess.run([sys.executable, __file__, url, str(bank)], check=False)
        print(*run(url, bank, dying=False), sep="\n")
        # Back to the beginning, and all of it once more: nothing is paid twice.
        with everthread.open(url) as store, store.session("invoice-bot") as s:
            s.rewind(1)
        run(url, bank, dying=False)
        print(f"at the bank: {bank.read_text().split()}")


if __name__ == "__main__":
    run(sys.argv[1], pathlib.Path(sys.argv[2]), dying=True) if len(sys.argv) > 2 else main()
