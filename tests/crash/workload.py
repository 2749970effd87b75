"""A seeded sequence of operations on a store, and a model of what the store must hold after each of them.

The model knows no store and no file: given a seed, operation number ``n`` on a given content is always the
same, so that a process which was killed can be followed by another one, and by its observer.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import everthread

Kind = Literal["commit", "keyed", "step", "truncate", "fork", "rewind", "delete"]

THREADS_MAX = 5
MESSAGES_MAX = 60
PAST_MAX = 16
#: Messages whose id begins so are stored apart from the record of their version, being that large.
LARGE = "large"
LARGE_BYTES = 300_000


@dataclasses.dataclass(frozen=True)
class Content:
    """What a thread holds: its document, and the ids of its messages (an id implies the message)."""

    document: Mapping[str, Any]
    messages: tuple[str, ...]

    def digest(self) -> bytes:
        text = json.dumps([self.document, self.messages], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def torn(self) -> str | None:
        """Say where document and messages, always committed together, contradict each other."""
        count, last = self.document.get("count"), self.document.get("last")
        if count != len(self.messages):
            return f"the document counts {count} messages, the log has {len(self.messages)}"
        if self.messages and last != self.messages[-1]:
            return f"the document says that {last} is the last message, the log ends with {self.messages[-1]}"
        return None


Contents = dict[str, Content]


@dataclasses.dataclass(frozen=True)
class Operation:
    number: int
    kind: Kind
    thread: str
    document: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    messages: tuple[str, ...] = ()
    cut: str | None = None
    #: The number of the operation whose version is gone back to.
    target: int | None = None
    #: The name of the fork.
    other: str = ""

    @property
    def label(self) -> str:
        return label(self.number)

    @property
    def repeatable(self) -> bool:
        """Whether doing it twice must be the same as doing it once."""
        return self.kind in ("keyed", "step")


def label(number: int) -> str:
    return f"operation {number}"


@functools.lru_cache(maxsize=2_000)
def message(identity: str) -> dict[str, Any]:
    """The message with this id. Some are long, and half of a text compresses badly."""
    rng = random.Random(identity)
    words = " ".join(rng.choice(("resume", "thread", "agent", "todo")) for _ in range(rng.randrange(40)))
    noise = rng.randbytes(20_000 if identity.startswith(LARGE) else rng.choice((4, 20, 60, 800))).hex()
    padding = "." * LARGE_BYTES if identity.startswith(LARGE) else ""
    return {"id": identity, "role": rng.choice(("user", "assistant")), "content": f"{words} {noise}{padding}"}


@dataclasses.dataclass
class _Thread:
    content: Content
    #: Labelled versions that can be gone back to, oldest first.
    past: list[tuple[int, Content]] = dataclasses.field(default_factory=list)


class Model:
    """What the store holds after ``number`` operations, and which operation comes next.

    The names of its threads begin with ``prefix``, so that several models can share a store.
    """

    def __init__(self, seed: int, prefix: str = "") -> None:
        self.seed = seed
        self.prefix = prefix
        self._main = f"{prefix}main"
        self.number = 0
        self._threads: dict[str, _Thread] = {}

    def contents(self) -> Contents:
        return {name: thread.content for name, thread in self._threads.items()}

    def past(self, name: str) -> dict[int, Content]:
        return dict(self._threads[name].past)

    def after(self, operation: Operation) -> Contents:
        """What the store would hold after this operation."""
        copy = self.copy()
        copy.apply(operation)
        return copy.contents()

    def copy(self) -> Model:
        copy = Model(self.seed, self.prefix)
        copy.number = self.number
        copy._threads = {name: _Thread(t.content, list(t.past)) for name, t in self._threads.items()}
        return copy

    def plan(self) -> Operation:
        """The next operation. Asking twice gives the same one."""
        rng = random.Random(self.seed * 1_000_003 + self.number)
        if self._main not in self._threads:
            return self._edit(rng, "commit", self._main)
        forks = [name for name in self._threads if name != self._main]
        name = rng.choice(forks) if forks and rng.random() < 0.2 else self._main
        thread = self._threads[name]
        if len(thread.content.messages) > MESSAGES_MAX:
            return self._edit(rng, "truncate", name)
        if self.number % 150 == 75:
            return self._edit(rng, "commit", name, (f"{LARGE}{self.number}",))
        chance = rng.random()
        if chance < 0.10:
            return self._edit(rng, "keyed", name)
        if chance < 0.20:
            return self._edit(rng, "step", name)
        if chance < 0.23 and len(thread.content.messages) > 3:
            return self._edit(rng, "truncate", name)
        if chance < 0.27 and len(forks) < THREADS_MAX - 1:
            target = rng.choice(thread.past)[0]
            other = f"{self.prefix}fork {self.number}"
            return Operation(self.number, "fork", name, target=target, other=other)
        if chance < 0.29 and forks:
            return Operation(self.number, "delete", rng.choice(forks))
        # The main thread is left to grow for a while, so that its versions are folded into packs.
        calm = name == self._main and self.number % 200 < 120
        earlier = [number for number, content in thread.past if content != thread.content]
        if chance < 0.35 and earlier and not calm:
            return Operation(self.number, "rewind", name, target=rng.choice(earlier[-8:]))
        return self._edit(rng, "commit", name)

    def _edit(
        self, rng: random.Random, kind: Kind, name: str, added: tuple[str, ...] | None = None
    ) -> Operation:
        thread = self._threads.get(name)
        old = thread.content if thread else Content({}, ())
        kept = old.messages
        if kind == "truncate":
            longest = min(len(kept), max(8, len(kept) - MESSAGES_MAX // 2))
            kept = kept[: len(kept) - rng.randint(1, longest)]
        if added is None:
            added = tuple(f"m{self.number}-{slot}" for slot in range(rng.choice((0, 1, 1, 1, 2, 3))))
        messages = kept + added
        document: dict[str, Any] = {
            "count": len(messages),
            "last": messages[-1] if messages else None,
            "operation": self.number,
            f"note {rng.randrange(6)}": rng.randbytes(rng.choice((2, 30, 300))).hex(),
        }
        return Operation(
            self.number,
            kind,
            name,
            document=document,
            messages=added,
            cut=old.messages[len(kept)] if kind == "truncate" else None,
        )

    def apply(self, operation: Operation) -> None:
        assert operation.number == self.number, "operations are applied in their order"
        self.number += 1
        name = operation.thread
        if operation.kind == "delete":
            del self._threads[name]
            return
        if operation.kind in ("fork", "rewind"):
            source = self._threads[name]
            position = next(i for i, (number, _) in enumerate(source.past) if number == operation.target)
            moved = _Thread(source.past[position][1], source.past[: position + 1])
            self._threads[operation.other or name] = moved
            return
        thread = self._threads.setdefault(name, _Thread(Content({}, ())))
        old = thread.content
        kept = old.messages[: old.messages.index(operation.cut)] if operation.cut else old.messages
        thread.content = Content({**old.document, **operation.document}, kept + operation.messages)
        if operation.kind != "step":
            thread.past.append((operation.number, thread.content))
            del thread.past[:-PAST_MAX]


class Executor:
    """Carries operations out on a store, through handles that stay open."""

    def __init__(self, store: everthread.Store) -> None:
        self._store = store
        self._handles: dict[str, Any] = {}

    def perform(self, operation: Operation, *, again: bool = False) -> int:
        """Carry it out and return the number of the newest version of its thread (0 if there is none).

        ``again`` says that an earlier process may have got through with it already.
        """
        name = operation.thread
        handle: Any = self._handles.get(name)
        if handle is None:
            handle = self._handles[name] = self._store.thread(name)
        match operation.kind:
            case "fork":
                fork: Any = handle.fork(operation.other, at=_version(handle, operation.target))
                return int(fork.head.seq)
            case "rewind":
                handle.rewind(_version(handle, operation.target))
            case "delete":
                handle.delete()
                del self._handles[name]
                return 0
            case "step":
                self._step(handle, operation, attempt=2 if again else 1)
            case "keyed":
                version = self._edit(handle, operation, key=operation.label)
                # Another handle, knowing nothing of the first commit, must not commit it twice.
                repeated = self._edit(self._store.thread(name), operation, key=operation.label)
                assert repeated.id == version.id, "a commit with the same key made another version"
            case _:
                self._edit(handle, operation)
        return int(handle.head.seq)

    def _edit(self, handle: Any, operation: Operation, key: str | None = None) -> Any:
        if operation.cut is not None:
            handle.messages.truncate_from(operation.cut)
        for identity in operation.messages:
            handle.messages.append(message(identity))
        for name, value in operation.document.items():
            handle.state[name] = value
        return handle.commit(label=operation.label, metadata={"number": operation.number}, key=key)

    def _step(self, handle: Any, operation: Operation, attempt: int) -> None:
        with handle.step(operation.label, attempt=attempt) as step:
            if step.done:
                assert step.result == operation.number, "a step came back with the result of another"
                return
            for identity in operation.messages:
                step.messages.append(message(identity))
            for name, value in operation.document.items():
                step.state[name] = value
            step.result = operation.number


def _version(handle: Any, number: int | None) -> Any:
    assert number is not None
    wanted = label(number)
    return next(version for version in handle.history(limit=None) if version.label == wanted)


def memory_directory() -> str | None:
    """Where files live in memory, if there is such a place: for stores whose durability isn't at stake."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class DamagedError(AssertionError):
    """What the store shows was never committed."""


def observe(store: everthread.Store, unread: Mapping[str, Content] = MappingProxyType({})) -> Contents:
    """What the store holds. Of the threads in ``unread`` only that they are there is looked at."""
    found: Contents = {}
    for info in store.threads():
        if info.name in unread:
            found[info.name] = unread[info.name]
            continue
        thread = store.thread(info.name)
        head = thread.head
        if head is None or head.seq != info.seq:
            raise DamagedError(f"{info.name!r} is listed with version {info.seq}, but stands at {head}")
        found[info.name] = _content(info.name, thread)
    return found


def _content(name: str, view: Any) -> Content:
    messages = list(view.messages)
    for item in messages:
        if item != message(item["id"]):
            raise DamagedError(f"{name!r}: message {item['id']} isn't what was appended: {item!r}")
    content = Content(view.state.plain(), tuple(item["id"] for item in messages))
    torn = content.torn()
    if torn is not None:
        raise DamagedError(f"{name!r}: {torn}")
    return content


def check_past(store: everthread.Store, model: Model) -> None:
    """Compare every version that can be gone back to with what was committed then, then verify the store."""
    for name in model.contents():
        thread = store.thread(name)
        wanted = {label(number): content for number, content in model.past(name).items()}
        for version in thread.history(limit=None):
            content = wanted.pop(version.label, None) if version.label else None
            if content is not None and _content(name, thread.at(version)) != content:
                raise DamagedError(f"{name!r}: {version} isn't what was committed")
        if wanted:
            raise DamagedError(f"{name!r}: the history misses {sorted(wanted)}")
    report = store.verify()
    if not report.ok:
        raise DamagedError(f"verify: {'; '.join(map(str, report.damage))}")


def difference(found: Contents, wanted: Contents) -> str | None:
    """The first thread in which the two differ, in words; ``None`` if they are equal."""
    for name in sorted(found.keys() | wanted.keys()):
        have, want = found.get(name), wanted.get(name)
        if have == want:
            continue
        if have is None or want is None:
            return f"{name!r} {'is missing' if have is None else 'should not be there'}"
        return (
            f"{name!r} stands at operation {have.document.get('operation')} with {len(have.messages)} "
            f"messages, expected operation {want.document.get('operation')} with {len(want.messages)}"
        )
    return None
