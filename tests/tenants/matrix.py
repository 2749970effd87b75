"""Every call of the API, as one tenant, with the ids of another and with ids that are meant to break out.

Each entry says what is called; whatever it answers or raises must not hold the other's canary. The names of
the classes' members are compared with the entries, so that a new call can't be forgotten.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import everthread
from everthread import EverthreadError, Store

#: What the other called things; and what it put into them, which nobody else may see.
NAME = "vault"
CANARY = "c4nary"

#: Namespaces of the two that are chosen to be taken for each other.
NAMESPACES = [
    ("a", "b"),
    ("", "b"),
    ("b", ""),
    ("a", "aa"),
    ("a", "a/b"),
    ("a:b", "a"),
    ("%", "b"),
    ("a{b}", "a"),
    ("A", "a"),
    ("ns", "ns\u0301"),
]

#: Besides the other's own names.
HOSTILE = [
    "../../b",
    "..",
    "b/" + NAME,
    f"b\x1f{NAME}",
    f"b:{NAME}",
    f"{{b}}:{NAME}",
    f"b\x01{NAME}",
    "' OR 1=1 --",
    "'; DROP TABLE line; --",
    '"; SELECT * FROM everthread.line; --',
    "%",
    "_",
    "*",
    "?",
    "[a-z]*",
    "\\",
    "$1",
    "{}",
    "\u202e" + NAME,
    "\uffff",
    "\U0010ffff",
    "redis.call('keys','*')",
]


def live(store: Store) -> dict[str, Any]:
    """Fill a tenant's store, with a word that nobody else may see; its ids, for the other to try."""
    thread = store.thread(NAME)
    for number in range(12):
        thread.messages.append({"id": f"{NAME} {number}", "content": CANARY})
        thread.state[NAME] = {"value": f"{CANARY} {number}"}
        thread.commit(label=CANARY, key=f"{NAME} {number}", metadata={"tag": CANARY})
    with thread.step(NAME) as step:
        step.result = CANARY
    with tempfile.TemporaryDirectory(prefix=CANARY) as folder:
        Path(folder, NAME).write_text(CANARY)
        thread.attach_workspace(folder)
    head = thread.head
    assert head is not None
    fork = thread.fork(f"{NAME} fork")
    fork.state["forked"] = CANARY
    fork.commit()
    with store.session(f"{NAME} bot", user_id=NAME) as session:
        session.work.add_todo(CANARY)
        session.decide(CANARY, rationale=CANARY, planned_action=CANARY)
        session.messages.append({"role": "user", "content": CANARY})
    store.events(NAME).append(NAME, {"value": CANARY}, agent=NAME)
    store.users.set(NAME, "email", CANARY)
    store.constraints.add(CANARY, author=NAME)
    return {"head": head, "uid": thread.uid, "names": [NAME, f"{NAME} fork", f"{NAME} bot"]}


def names(known: dict[str, Any]) -> list[str]:
    return [*known["names"], known["head"].id, str(known["uid"]), *HOSTILE]


Call = Callable[[Store, str, dict[str, Any], str], Any]


def _drain(items: Any, limit: int = 50) -> list[Any]:
    return list(itertools.islice(items, limit))


def _shown(thread: Any) -> list[Any]:
    return [thread.state.plain(), _drain(thread.messages), thread.head, _drain(thread.history())]


STORE: dict[str, Call] = {
    "thread": lambda s, n, k, f: _shown(s.thread(n)),
    "threads": lambda s, n, k, f: [_drain(s.threads(prefix=n)), _drain(s.threads()), _by_tag(s)],
    "events": lambda s, n, k, f: _drain(s.events(n).replay()),
    "users": lambda s, n, k, f: [s.users.get(n, "email"), s.users.keys(n)],
    "session_records": lambda s, n, k, f: s.session_records(n).decisions,
    "resume": lambda s, n, k, f: s.resume(n),
    "briefing": lambda s, n, k, f: str(s.briefing(n)),
    "accept_loss": lambda s, n, k, f: s.accept_loss(n),
    "search": lambda s, n, k, f: [list(s.search(CANARY)), list(s.search(n))],
    "scan": lambda s, n, k, f: [_drain(s.scan(CANARY)), _drain(s.scan(n))],
    "redact": lambda s, n, k, f: str(s.redact(CANARY)),
    "erase": lambda s, n, k, f: [str(report := s.erase(NAME)), str(report.unreached)],
    "erasure_reports": lambda s, n, k, f: str(_drain(s.erasure_reports())),
    "stats": lambda s, n, k, f: str(s.stats()),
    "verify": lambda s, n, k, f: str(s.verify()),
    "gc": lambda s, n, k, f: [str(report := s.gc()), str(report.pins)],
    "export": lambda s, n, k, f: _exported(s, f),
    "copy_to": lambda s, n, k, f: _copied(s),
    "constraints": lambda s, n, k, f: str(s.constraints.all()),
    "send": lambda s, n, k, f: s.send(n, {"content": "hello"}),
}
#: What concerns the store as a whole, or has no answer that could tell anything.
STORE_APART = {
    *("backup", "restore", "close", "capabilities", "namespace", "url", "session", "import_from", "cool"),
    # About the whole store by design, and about times alone.
    *("doubt", "doubts", "end_doubt"),
    # About keys in the keyring, not about what a store holds.
    *("hold", "holds", "release_hold", "rotate_keys"),
    # On PostgreSQL alone, and tested there.
    *("knowledge", "refresh_documents"),
}

THREAD: dict[str, Call] = {
    "attach_schema": lambda s, n, k, f: str(s.thread(n).attach_schema({"type": "object"})),
    "attach_workspace": lambda s, n, k, f: _recorded(s, n, f),
    "at": lambda s, n, k, f: _shown_past(s.thread(n).at(k["head"])),
    "diff": lambda s, n, k, f: str(s.thread(n).diff(k["head"], k["head"])),
    "rewind": lambda s, n, k, f: s.thread(n).rewind(k["head"]),
    "fork": lambda s, n, k, f: _shown(s.thread(n).fork(f"mine {os.urandom(4).hex()}", at=k["head"])),
    "delete": lambda s, n, k, f: s.thread(n).delete(),
    "step": lambda s, n, k, f: _stepped(s, n),
    "steps": lambda s, n, k, f: str(_drain(s.thread(n).steps())),
    "step_result": lambda s, n, k, f: s.thread(n).step_result(NAME),
    "contains": lambda s, n, k, f: CANARY if s.thread(n).contains(k["head"]) else None,
    "pin": lambda s, n, k, f: str(s.thread(n).pin(k["head"])),
    "unpin": lambda s, n, k, f: CANARY if s.thread(n).unpin(k["head"]) else None,
    "pins": lambda s, n, k, f: str(s.thread(n).pins()),
    "log": lambda s, n, k, f: _drain(s.thread(n).log(n)),
    "watch": lambda s, n, k, f: _drain(s.thread(n).watch(after=k["head"], timeout=0)),
    "merge": lambda s, n, k, f: s.thread("mine").merge(s.thread(n), unrelated=True),
    "expire": lambda s, n, k, f: s.thread(n).expire(60),
    "lock": lambda s, n, k, f: _locked(s, n),
    "sign": lambda s, n, k, f: s.thread(n).sign(None),
}
#: Shown by other entries, or about what is uncommitted.
THREAD_APART = {
    *("commit", "dirty", "discard", "head", "history", "logs", "messages", "rebase", "recovered"),
    *("refresh", "state", "uid", "update", "name", "effects"),
}

EVENTS: dict[str, Call] = {
    "replay": lambda s, n, k, f: [
        _drain(s.events(n).replay(type=n)),
        _drain(s.events(NAME).replay(agent=n)),
    ],
    "watch": lambda s, n, k, f: _drain(s.events(n).watch(after=0, timeout=0)),
    "last": lambda s, n, k, f: s.events(n).last,
    "project": lambda s, n, k, f: s.events(n).project(lambda state, event: [*(state or []), event.data]),
    "consumer": lambda s, n, k, f: _drain(s.events(n).consumer(NAME)),
    "projection": lambda s, n, k, f: s.events(n).projection(NAME, lambda a, e: [*(a or []), e.data]).state,
    "trim": lambda s, n, k, f: s.events(n).trim(keep=0),
    "retain": lambda s, n, k, f: s.events(n).retain(keep=1),
    "retention": lambda s, n, k, f: str(s.events(n).retention),
    "delete": lambda s, n, k, f: s.events(n).delete(),
}
EVENTS_APART = {"append", "extend", "group", "name"}


def _by_tag(store: Store) -> Any:
    return _drain(store.threads(metadata={"tag": CANARY}))


def _shown_past(past: Any) -> list[Any]:
    return [past.state.plain() if hasattr(past.state, "plain") else past.state, _drain(past.messages)]


def _stepped(store: Store, name: str) -> Any:
    with store.thread(name).step(NAME) as step:
        return step.result if step.done else None


def _recorded(store: Store, name: str, folder: str) -> str:
    path = os.path.join(folder, f"folder-{os.urandom(4).hex()}")
    os.mkdir(path)
    thread = store.thread(name)
    thread.attach_workspace(path)
    return str(thread.diff(None, files=True).files)


def _locked(store: Store, name: str) -> Any:
    with store.thread(name).lock(timeout_s=60) as draft:
        return [dict(draft), _drain(draft.log("messages"))]


def _exported(store: Store, folder: str) -> str:
    path = os.path.join(folder, f"export-{os.urandom(4).hex()}")
    store.export(path)
    with open(path, "rb") as file:
        return file.read().decode("utf-8", "replace")


def _copied(store: Store) -> Any:
    with everthread.open("memory:") as other:
        store.copy_to(other)
        return [_shown(other.thread(found.name)) for found in other.threads()]


def calls() -> Iterator[tuple[str, Call]]:
    """Every call by its name, those last that leave nothing to be seen by the others."""
    found = [
        (f"{kind}.{name}", call)
        for kind, entries in (("store", STORE), ("thread", THREAD), ("events", EVENTS))
        for name, call in entries.items()
    ]
    yield from sorted(found, key=lambda each: each[0] in ("store.redact", "store.erase"))


def leaks(store: Store, known: dict[str, Any], folder: str) -> list[str]:
    """What this tenant got to see of the other's. An id that it asked with itself doesn't count."""
    found = []
    for title, call in calls():
        once = title in {
            "store.stats",
            "store.redact",
            "store.erase",
            "store.erasure_reports",
            "store.verify",
            "store.gc",
            "store.export",
            "store.copy_to",
        }
        for name in names(known)[:1] if once else names(known):
            try:
                answer = repr(call(store, name, known, folder))
            except EverthreadError as error:
                answer = str(error)
            except (TypeError, ValueError) as error:
                answer = f"{title} {error}"
            if CANARY in answer:
                found.append(f"{title}({name!r}): {answer[:300]}")
    return found
