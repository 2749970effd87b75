"""An agent that can be killed anywhere: run it, kill it, run it again. The README shows this program."""

import time

import everthread


def pay(invoice: str) -> str:
    print("paying", invoice)  # the effect: your bank, your mail, your deployment
    return f"receipt for {invoice}"


with everthread.open("sqlite:///agent.db") as store, store.session("invoice-bot") as s:
    for invoice in ("817", "818", "819", "820", "821"):
        receipt = s.call(f"pay {invoice}", pay, invoice)  # recorded before and after it happens
        s.work.set_context("last receipt", receipt)  # durable when it returns
        time.sleep(2)  # kill it here
    print(s.briefing(max_tokens=500))  # what the next run needs to know
