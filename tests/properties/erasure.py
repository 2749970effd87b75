"""Random histories with people in them, what can be read of a store, and what can be found on its disk."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import everthread
from everthread import Erased, Personal
from everthread.errors import ConflictError, EverthreadError

#: Who is erased, and others.
ANN, OTHERS = "ann", ("bob", "cat", "dan")
_THREADS = ("main", "side", "notes")


class Counter(everthread.Checkpointable):
    """An object whose state holds something of somebody."""

    def __init__(self) -> None:
        self.count = 0
        self.owner: Any = None


def canary(subject: str, rng: random.Random) -> str:
    """A text that is nowhere else, with a letter that every encoding writes in its own way."""
    return f"canary-{subject}-{rng.getrandbits(96):024x}-\u00e9"


def encodings(text: str) -> dict[str, bytes]:
    """How a text may lie on a disk."""
    return {
        "utf-8": text.encode(),
        "utf-16": text.encode("utf-16-le"),
        "json": json.dumps(text).encode()[1:-1],
        "base64": base64.b64encode(text.encode()),
        "hex": text.encode().hex().encode(),
    }


class History:
    """Works on a store at random, and remembers which canaries it wrote of whom."""

    def __init__(self, store: everthread.Store, rng: random.Random, *, seal: bool = True) -> None:
        self.store = store
        self.rng = rng
        self._seal = seal
        self.canaries: list[str] = []
        self._number = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            verb = self.rng.choice(self._verbs)
            try:
                verb(self)
            except ConflictError:
                continue
        # Whatever the dice said, there is something of everybody, and of two together.
        for subjects in ((ANN,), *((other,) for other in OTHERS), (ANN, "bob")):
            self._commit(subjects)

    # ── values ───────────────────────────────────────────────────────────────────────────────

    def _subjects(self) -> tuple[str, ...]:
        return tuple(self.rng.sample((ANN, ANN, *OTHERS), self.rng.choice((1, 1, 1, 2))))

    def personal(self, subjects: tuple[str, ...] | None = None) -> Any:
        subjects = tuple(dict.fromkeys(subjects or self._subjects()))
        text = canary("+".join(subjects), self.rng)
        if ANN in subjects:
            self.canaries.append(text)
        text += " lorem" * self.rng.choice((0, 3, 40, 1500))
        value: Any = self.rng.choice((text, {"text": text, "n": 1}, [text, 2.5]))
        return Personal(subjects, value) if self._seal else value

    def _thread(self) -> Any:
        return self.store.thread(self.rng.choice([*_THREADS, *(info.name for info in self.store.threads())]))

    # ── verbs ────────────────────────────────────────────────────────────────────────────────

    def _commit(self, subjects: tuple[str, ...] | None = None) -> None:
        thread = self._thread()
        self._number += 1
        place = thread.state.setdefault("places", {})
        place[f"p{self.rng.randrange(6)}"] = self.personal(subjects)
        thread.state["plain"] = f"plain {self._number}"
        if self.rng.random() < 0.5:
            whole = self.rng.random() < 0.5
            content = self.personal() if whole else {"who": self.personal(), "text": "plain"}
            thread.messages.append({"id": f"m{self._number}", "role": "user", "content": content})
        thread.commit(label=f"v{self._number}")

    def _plain(self) -> None:
        thread = self._thread()
        self._number += 1
        thread.state["plain"] = self._number
        thread.commit()

    def _fork(self) -> None:
        thread = self._thread()
        if thread.head is not None and len(list(self.store.threads())) < 8:
            self._number += 1
            at = self.rng.choice(list(thread.history(limit=10)))
            try:
                thread.fork(f"fork {self._number}", at=at)
            except everthread.VersionPrunedError:
                return

    def _rewind(self) -> None:
        thread = self._thread()
        if thread.head is not None:
            try:
                thread.rewind(self.rng.choice(list(thread.history(limit=10))))
            except everthread.VersionPrunedError:
                return

    def _merge(self) -> None:
        names = [info.name for info in self.store.threads()]
        if len(names) > 1:
            ours, theirs = self.rng.sample(names, 2)
            try:
                self.store.thread(ours).merge(self.store.thread(theirs), resolve="ours", unrelated=True)
            except EverthreadError:
                # No common past, or a pruned one.
                return

    def _copy(self) -> None:
        """A value that was read keeps its seal elsewhere; a truncated message and a removed value don't."""
        thread = self._thread()
        places = thread.state.get("places", {})
        if places:
            thread.state["copied"] = self.rng.choice(list(places.values()))
            if len(thread.messages) > 3:
                thread.messages.truncate_from(thread.messages[-1]["id"])
            thread.commit()

    def _step(self) -> None:
        thread = self._thread()
        self._number += 1
        with thread.step(("turn", self._number)) as step:
            step.messages.append({"role": "tool", "content": self.personal()})
            step.result = {"of": self.personal()}

    def _event(self) -> None:
        stream = self.store.events("stream")
        for _ in range(self.rng.randrange(1, 4)):
            stream.append("told", {"who": self.personal(), "n": self._number})
        stream.projection("last", lambda state, event: {"last": event.data["who"], "n": event.data["n"]})

    def _user(self) -> None:
        subject = self.rng.choice((ANN, *OTHERS))
        text = canary(subject, self.rng)
        if subject == ANN:
            self.canaries.append(text)
        self.store.users.set(subject, f"key {self.rng.randrange(3)}", text)

    def _checkpoint(self) -> None:
        with everthread.CheckpointManager(self.store) as manager:
            thing = Counter()
            thing.count, thing.owner = self._number, self.personal()
            manager.save("thing", thing)

    def _session(self) -> None:
        with self.store.session("session", user_id=self.rng.choice((ANN, "bob"))) as session:
            session.work.set_context("who", self.personal())
            session.messages.append({"role": "user", "content": self.personal()})

    def _many(self) -> None:
        """Enough versions to be folded, and a keyframe."""
        thread = self._thread()
        for _ in range(self.rng.randrange(4, 12)):
            self._number += 1
            thread.state["count"] = self._number
            thread.messages.append({"id": f"many {self._number}", "content": self.personal()})
            thread.commit()

    def _gc(self) -> None:
        self.store.gc(everthread.Retention(keep_last=self.rng.randrange(3, 9), keep_labelled=False))

    def _rotate(self) -> None:
        if self._seal:
            self.store.rotate_keys(self.rng.choice((ANN, "bob", None)))

    def _search(self) -> None:
        list(self.store.search("plain"))

    _verbs = (
        *(_commit,) * 6,
        *(_plain, _fork, _fork, _rewind, _merge, _copy, _copy, _step, _event, _event, _user, _user),
        *(_checkpoint, _session, _many, _gc, _rotate, _search),
    )


# ── what can be read ─────────────────────────────────────────────────────────────────────────────


def revealed(value: Any) -> Any:
    """A value with everything that it hides; what was erased is a mark."""
    if isinstance(value, Erased):
        return "ERASED"
    if isinstance(value, Personal):
        return revealed(value.value)
    if isinstance(value, dict):
        return {key: revealed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [revealed(item) for item in value]
    return value


def whole(store: everthread.Store) -> Iterator[tuple[str, Any]]:
    """Everything that can be read of a store: each version of each thread, events, user data, objects."""
    for info in store.threads():
        thread = store.thread(info.name)
        for version in thread.history(limit=None):
            try:
                past = thread.at(version)
                yield f"{info.name} {version.id}", [past.state.plain(), past.messages[:]]
            except everthread.VersionPrunedError:
                continue
    for event in store.events("stream").replay():
        yield f"event {event.seq}", event.data
    last = store.events("stream").projection(
        "last", lambda state, event: {"last": event.data["who"], "n": event.data["n"]}
    )
    yield "projection", last.state
    for subject in (ANN, *OTHERS):
        for key in store.users.keys(subject):
            yield f"user {subject} {key}", store.users.get(subject, key)


def read_all(store: everthread.Store) -> dict[str, Any]:
    return {name: revealed(value) for name, value in whole(store)}


def without_ann(value: Any) -> Any:
    """What must be read once she is erased: her values carry her name."""
    if isinstance(value, dict):
        if "text" in value and _is_hers(value["text"]):
            return "ERASED"
        return {key: without_ann(item) for key, item in value.items()}
    if isinstance(value, list):
        return "ERASED" if value and _is_hers(value[0]) else [without_ann(item) for item in value]
    return "ERASED" if _is_hers(value) else value


def _is_hers(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("canary-") and ANN in value.split("-")[1].split("+")


# ── what can be found ────────────────────────────────────────────────────────────────────────────


def files_in(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()]


def found_in(needles: dict[str, bytes], *folders: Path) -> dict[str, list[str]]:
    """Which needles are in which files, byte for byte."""
    found: dict[str, list[str]] = {}
    for path in files_in(*folders):
        try:
            data = _bytes_of(path)
        except FileNotFoundError:
            # A server puts its caches in place anew while this looks: what isn't there holds nothing.
            continue
        for name, needle in needles.items():
            if needle in data:
                found.setdefault(name, []).append(path.name)
    return found


def _bytes_of(path: Path) -> bytes:
    if ".db" in path.name:
        # Another process: closing the file in this one would free the locks of the stores that it has open.
        shown = subprocess.run(["cat", "--", str(path)], capture_output=True, check=False)
        if shown.returncode == 0:
            return shown.stdout
    return path.read_bytes()


def belongings(store: everthread.Store, subject: str) -> dict[str, bytes]:
    """The sealed bytes, wrapped keys and tokens of somebody, as their disk shows them."""
    core = store.core
    keyring = core.vault.keyring
    key_ids = keyring.key_ids(subject)
    found: dict[str, bytes] = {}
    driver = getattr(core.backend, "blocking", core.backend)
    for value_id, _, data in driver.sealed_under(key_ids, b"", 1_000_000):
        # Not across pages: a piece of the middle, which is base64 in a file store.
        middle = data[1:25]
        found[f"sealed {value_id.hex()}"] = (
            base64.b64encode(data)[:32] if store.url.startswith("file:") else middle
        )
    for number, trace in enumerate(keyring.traces(key_ids)):
        found[f"key {number}"] = trace
    return found
