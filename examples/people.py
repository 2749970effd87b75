"""A person's values, sealed wherever they stand; what is made of them; and what nobody marked, taken out."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import everthread
from everthread import Personal, derive, reveal
from everthread.detectors import secrets

folder = Path(tempfile.mkdtemp())
store = everthread.open(
    f"sqlite:///{folder}/people.db", keyring=str(folder / "keys"), detectors=secrets("mask")
)

thread = store.thread("support")
thread.messages.append({"role": "user", "content": Personal("ann", "I am Ann, ann@example.org")})
thread.messages.append({"role": "tool", "content": "token: Bearer abcdefghijklmnopqrstuvwxyz"})
thread.messages.append({"role": "assistant", "content": "Thank you, ann@example.org!"})
thread.state["summary"] = derive(lambda messages: f"{len(messages)} messages", thread.messages[:1])
thread.commit(metadata={"customer": Personal("ann", "ann@example.org")})

print("shown:   ", thread.messages[0]["content"], "|", thread.messages[1]["content"])
print("revealed:", reveal(thread.messages[0])["content"])

# Nobody marked the last message.
for place in store.scan("ann@example.org"):
    print("in clear:", place)
print(store.redact("ann@example.org", reason="asked for"))
print("now:     ", store.thread("support").messages[2]["content"])
print(store.verify())

store.users.set("ann", "plan", "gold")
found = store.users.export_user("ann")
print(json.dumps(found["values"]), "and", len(found["found"]), "sealed values elsewhere")
store.close()
