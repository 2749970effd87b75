"""An agent that can be killed anywhere: run it twice. The README shows this program."""

import everthread


def pay(invoice: str) -> str:
    return f"receipt for {invoice}"  # the effect: your bank, your mail, your deployment


with everthread.open("sqlite:///agent.db") as store, store.session("invoice-bot") as s:
    for invoice in ("817", "818", "819"):
        receipt = s.call(f"pay {invoice}", pay, invoice)  # recorded before and after it happens
        s.work.set_context("last receipt", receipt)  # durable when it returns
    print(s.briefing(max_tokens=500))  # what the next run needs to know
