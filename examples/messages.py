"""One thread, several providers: kept as each wrote it, read as each wants it."""

import everthread

asked = {"role": "user", "content": "Is March reconciled?"}
looked = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "The ledger will know.", "signature": "c2lnbmVk"},
        {"type": "tool_use", "id": "toolu_1", "name": "ledger", "input": {"month": "March"}},
    ],
}

with everthread.open("memory:") as store, store.session("invoice-bot", system="Be brief.") as session:
    session.messages.append(asked)
    session.messages.append(looked, shape="anthropic")
    # Here the run dies: the tool's result was never written.

    request = session.messages.for_anthropic()
    print("Anthropic:", [message["role"] for message in request["messages"]])
    print("  signed thinking unchanged:", request["messages"][1]["content"][0] == looked["content"][0])
    print(" ", request.report)

    request = session.messages.for_openai_chat(orphans="cut")
    print("OpenAI:", [message["role"] for message in request["messages"]])
    print(" ", request.report.summary())
