"""Real stores against the model: any sequence of operations, on any number of handles.

Folds, keyframes and detached commits are forced early, so that a few dozen operations go through all of
them. ``EVERTHREAD_EXAMPLES=2000`` looks harder.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import everthread
from everthread.errors import ConflictError, EverthreadError, FencedError, KeyReusedError, ThreadDeletedError
from everthread.history import packs, snapshots
from everthread.testing.driver import open_driven
from everthread.threads.aio import fold as folding_async
from everthread.threads.sync import fold
from everthread.threads.sync.step import Step
from tests.kit.model import Ambiguous, ModelStep, ModelStore, ModelThread, ModelVersion, same
from tests.servers.postgres import empty

EXAMPLES = int(os.environ.get("EVERTHREAD_EXAMPLES", "60"))
STEPS = 50
HANDLES_MAX = 6
LOGS = ("messages", "other")
PATHS: list[tuple[str, ...]] = [("a",), ("n",), ("list",), ("deep",), ("deep", "x"), ("deep", "n")]

scalars = st.sampled_from([0, 1, 2, True, None, "text", 1.5, "long " * 60])
values = st.one_of(
    scalars,
    scalars,
    st.lists(scalars, max_size=3),
    st.dictionaries(st.sampled_from("nxyz"), scalars, max_size=3),
)
#: Which of what is there: taken modulo their number, so that every example is valid and shrinks well.
which = st.integers(0, 11)
keys = st.sampled_from([None, None, None, "k1", "k2", "k3"])
paths = st.sampled_from(PATHS)
logs = st.sampled_from(LOGS)
edit = st.one_of(
    st.tuples(st.just("put"), paths, values),
    st.tuples(st.just("remove"), paths),
    st.tuples(
        st.just("increment"), st.sampled_from([("n",), ("deep", "n")]), st.sampled_from([1, 5, -1, 0.5])
    ),
    st.tuples(st.just("splice"), which, st.integers(0, 1), scalars),
    st.tuples(st.just("append"), logs, st.integers(1, 4), st.sampled_from([1, 40])),
    st.tuples(st.just("append"), logs, st.integers(1, 4), st.sampled_from([1, 40])),
    st.tuples(st.just("append_known"), logs, which, st.sampled_from(["same", "same", "other"])),
    st.tuples(st.just("append_again"), logs, which),
    st.tuples(st.just("truncate"), logs, which),
)
several = st.lists(edit, min_size=1, max_size=3)
Edits = list[tuple[Any, ...]]
#: What becomes of changes that stand in the way of a verb. Left there, they make it raise.
first = st.sampled_from(["commit", "commit", "discard", "leave"])


@dataclasses.dataclass(eq=False)
class Pair:
    """The same handle on both sides, and the step that is open on it."""

    real: everthread.Thread
    model: ModelThread
    step: tuple[Step, ModelStep] | None = None


class StoreMachine(RuleBasedStateMachine):
    """Every operation is done on both sides and must have the same outcome."""

    stores_count = 1
    #: What opens a store: a blocking one, or an async one that looks like it.
    open_store = staticmethod(everthread.open)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="everthread-machine-")
        self.model = ModelStore()
        self.stores: list[everthread.Store] = []
        self.pairs: list[Pair] = []
        #: What the real store made of each version of the model, and its document as text, in key order.
        self.versions: dict[ModelVersion, everthread.Version] = {}
        self.texts: dict[ModelVersion, str] = {}
        self.counter = 0

    # ── set-up ───────────────────────────────────────────────────────────────────────────────

    def url(self) -> str:
        raise NotImplementedError

    @initialize(records_max=st.integers(2, 6), fold_bytes=st.sampled_from([250, 1500, 256 * 1024]))
    def start(self, records_max: int, fold_bytes: int) -> None:
        self.records_max = records_max
        packs.FOLD_BYTES = fold.FOLD_BYTES = folding_async.FOLD_BYTES = fold_bytes
        self.open()
        for name in ("one", "one", "two"):
            self.add(name, 0)

    def open(self) -> None:
        self.stores = [self.open_store(self.url(), durability="process") for _ in range(self.stores_count)]
        for store in self.stores:
            store.core.folder.records_max = self.records_max

    def add(self, name: str, store: int) -> None:
        real = self.stores[store % len(self.stores)].thread(name)
        pair = Pair(real, self.model.thread(name))
        self.agree(pair)
        self.pairs.append(pair)
        if len(self.pairs) > HANDLES_MAX:
            del self.pairs[0]

    def teardown(self) -> None:
        try:
            if self.stores:
                self.check_everything()
        finally:
            for store in self.stores:
                store.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # ── comparing ────────────────────────────────────────────────────────────────────────────

    def pick(self, index: int, *, idle: bool = True, alive: bool = False) -> Pair | None:
        found = [
            pair for pair in self.pairs if not (idle and pair.step) and not (alive and pair.model.deleted)
        ]
        return found[index % len(found)] if found else None

    def fresh(self, text: str) -> str:
        self.counter += 1
        return f"{text} {self.counter}"

    def settle(self, pair: Pair, pending: str = "leave") -> bool:
        """Get pending changes out of the way if asked to. False if the handle is of no more use.

        Changes that cancelled each other out count as none in the model; the store may still see them.
        """
        if pair.model.dirty:
            assert pair.real.dirty
            if pending == "commit":
                self.both(pair, pair.real.commit, pair.model.commit)
        if pending == "discard" or not pair.model.dirty:
            pair.real.discard()
            pair.model.discard()
        return pair in self.pairs

    def both(self, pair: Pair, real: Callable[[], Any], model: Callable[[], Any]) -> tuple[bool, Any, Any]:
        """Do the same on both sides: both succeed, or both raise the same. False if they raised."""
        failed: Exception | None = None
        expected = found = None
        try:
            expected = model()
        except EverthreadError as error:
            failed = error
        if failed is None:
            found = real()
            self.agree(pair)
            return True, found, expected
        with pytest.raises(type(failed)) as caught:
            real()
        assert type(caught.value) is type(failed)
        self.agree_on_error(caught.value, failed)
        if isinstance(failed, ThreadDeletedError):
            self.pairs.remove(pair)
        else:
            self.agree(pair)
        return False, caught.value, failed

    def agree_on_error(self, real: Any, model: Any) -> None:
        if isinstance(model, FencedError):
            assert (real.attempt, real.newest) == (model.attempt, model.newest)
        if isinstance(model, KeyReusedError):
            assert real.version == self.versions[model.version]
            assert real.rewind.kind == "rewind"
        if isinstance(model, ConflictError):
            for side in ("expected", "actual"):
                assert getattr(real, side) == self.real_version(getattr(model, side))
        if hasattr(model, "conflicts"):
            assert sorted(map(repr, model.conflicts)) == sorted(repr(c.path) for c in real.conflicts)

    def real_version(self, version: ModelVersion | None) -> everthread.Version | None:
        return None if version is None else self.versions[version]

    def agree(self, pair: Pair) -> None:
        """The handle stands at the same version with the same content, committed or not."""
        real, model = pair.real, pair.model
        head = model.head
        if head is None:
            assert real.head is None
        else:
            found = real.head
            assert found is not None
            assert found == self.versions.setdefault(head, found)
            assert (found.seq, found.kind, found.label) == (head.seq, head.kind, head.label)
            assert (found.key, dict(found.metadata)) == (head.key, head.metadata)
        document = real.state.plain()
        assert same(document, model.state), (document, model.state)
        if head is not None and not real.dirty:
            text = json.dumps(document)
            if head.kind == "rewind" and head.origin is not None:
                text = self.texts.get(head.origin, text)
            assert json.dumps(document) == self.texts.setdefault(head, text), "the order of keys"
        if not model.deleted:
            for name in LOGS:
                assert len(real.log(name)) == len(model.log(name))
                assert real.log(name)[:] == model.log(name)

    def agree_on_past(self, real: everthread.Thread, version: ModelVersion) -> None:
        past = real.at(self.versions[version])
        assert json.dumps(past.state.plain()) == self.texts[version]
        assert same(past.state.plain(), version.document)
        for name in LOGS:
            assert past.log(name)[:] == version.logs.get(name, [])

    def check_everything(self) -> None:
        self.reopen_stores()
        store = self.stores[-1]
        assert [found.name for found in store.threads()] == sorted(self.model.lines)
        for name, line in self.model.lines.items():
            pair = Pair(store.thread(name), self.model.thread(name))
            self.agree(pair)
            history = list(line.newest.history())
            assert list(pair.real.history(limit=None)) == [self.versions[version] for version in history]
            for version in history[:: 1 + len(history) // 40]:
                self.agree_on_past(pair.real, version)
        for each in self.stores:
            report = each.verify()
            assert report, "\n".join(map(str, report.damage))

    def reopen_stores(self) -> None:
        raise NotImplementedError

    # ── handles ──────────────────────────────────────────────────────────────────────────────

    @rule(number=which, store=which, cold=st.booleans())
    def new_handle(self, number: int, store: int, cold: bool) -> None:
        names = sorted({"one", "two", *self.model.lines})
        if cold:
            self.stores[store % len(self.stores)].core.head_cache.clear()
        self.add(names[number % len(names)], store)

    @rule()
    def reopen(self) -> None:
        names = [pair.real.name for pair in self.pairs]
        self.pairs.clear()
        self.reopen_stores()
        for number, name in enumerate(names):
            self.add(name, number)

    @rule(number=which)
    def discard(self, number: int) -> None:
        if pair := self.pick(number):
            self.both(pair, pair.real.discard, pair.model.discard)

    @rule(number=which, pending=first)
    def refresh(self, number: int, pending: str) -> None:
        pair = self.pick(number)
        if pair and self.settle(pair, pending):
            self.both(pair, pair.real.refresh, pair.model.refresh)

    @rule(number=which)
    def rebase(self, number: int) -> None:
        pair = self.pick(number)
        if pair and self.settle(pair):
            self.both(pair, pair.real.rebase, pair.model.rebase)

    # ── changes ──────────────────────────────────────────────────────────────────────────────

    @rule(number=which, edits=several)
    def change(self, number: int, edits: Edits) -> None:
        if pair := self.pick(number, alive=True):
            self.make(pair, edits)

    def make(self, pair: Pair, edits: Edits) -> None:
        for how, *what in edits:
            getattr(self, how)(pair, *what)
        self.agree(pair)

    def put(self, pair: Pair, path: tuple[str, ...], value: Any) -> None:
        state = pair.model.state
        if _reachable(state, path) and not same(_at(state, path), value):
            _node(pair.real.state, path)[path[-1]] = value
            pair.model.put(path, value)

    def remove(self, pair: Pair, path: tuple[str, ...]) -> None:
        state = pair.model.state
        if _reachable(state, path) and path[-1] in _node(state, path):
            del _node(pair.real.state, path)[path[-1]]
            pair.model.remove(path)

    def increment(self, pair: Pair, path: tuple[str, ...], by: Any) -> None:
        state = pair.model.state
        if _reachable(state, path) and type(_at(state, path, 0)) in (int, float):
            _node(pair.real.state, path).increment(path[-1], by)
            pair.model.increment(path, by)

    def splice(self, pair: Pair, at: int, remove: int, value: Any) -> None:
        if isinstance(pair.model.state.get("list"), list):
            items = list(pair.model.state["list"])
            at %= len(items) + 1
            items[at : at + remove] = [value]
            pair.real.state["list"][at : at + remove] = [value]
            pair.model.put(("list",), items)

    def append(self, pair: Pair, log: str, count: int, size: int) -> None:
        items = [{"id": self.fresh("id"), "content": "x" * size} for _ in range(count)]
        pair.real.log(log).extend(items)
        for item in items:
            pair.model.append(log, item)

    def append_known(self, pair: Pair, log: str, number: int, content: str) -> None:
        """Ids that come again and again: no-op, error, or new, as the log stands."""
        item = {"id": f"known {number % 4}", "content": content}
        self.both(pair, lambda: pair.real.log(log).append(item), lambda: pair.model.append(log, item))

    def append_again(self, pair: Pair, log: str, at: int) -> None:
        if items := pair.model.log(log):
            pair.real.log(log).append(items[-1 - at % len(items)])

    def truncate(self, pair: Pair, log: str, at: int) -> None:
        if committed := pair.model.head and pair.model.head.logs.get(log):
            item_id = committed[-1 - at % len(committed)]["id"]
            removed = pair.real.log(log).truncate_from(item_id)
            assert removed == pair.model.truncate_from(log, item_id)

    # ── versions ─────────────────────────────────────────────────────────────────────────────

    @rule(
        number=which,
        edits=st.lists(edit, max_size=3),
        label=st.sampled_from([None, None, "label"]),
        metadata=st.sampled_from([None, None, {"run": [1, {"deep": None}]}]),
        key=keys,
    )
    def commit(self, number: int, edits: Edits, label: Any, metadata: Any, key: Any) -> None:
        pair = self.pick(number)
        if pair and not pair.model.deleted:
            self.make(pair, edits)
        if pair and self.settle(pair) and (pair.model.dirty or not pair.model.deleted):
            options = {"label": label, "metadata": metadata, "key": key}
            done, found, expected = self.both(
                pair, lambda: pair.real.commit(**options), lambda: pair.model.commit(**options)
            )
            if done:
                assert found == self.real_version(expected)

    @rule(number=which, ours=several, theirs=several, key=keys, again=st.booleans())
    def collide(self, number: int, ours: Edits, theirs: Edits, key: str | None, again: bool) -> None:
        """Two handles change the same thread; the loser rebases and commits, or tries under its key again."""
        pair = self.pick(number, alive=True)
        if pair and self.settle(pair, "discard"):
            other = Pair(
                self.stores[number % len(self.stores)].thread(pair.real.name),
                self.model.thread(pair.model.name),
            )
            self.both(pair, pair.real.refresh, pair.model.refresh)
            self.make(pair, ours)
            self.make(other, theirs)
            self.settle(other)
            self.both(other, lambda: other.real.commit(key=key), lambda: other.model.commit(key=key))
            self.settle(pair)
            if not again:
                self.both(pair, pair.real.rebase, pair.model.rebase)
            self.both(pair, lambda: pair.real.commit(key=key), lambda: pair.model.commit(key=key))

    @rule(number=which, ours=several, theirs=several, name=which)
    def part_and_merge(self, number: int, ours: Edits, theirs: Edits, name: int) -> None:
        pair = self.pick(number, alive=True)
        if (
            pair
            and pair.model.head
            and f"fork {name}" not in self.model.lines
            and self.settle(pair, "discard")
        ):
            self.both(pair, pair.real.refresh, pair.model.refresh)
            fork = Pair(pair.real.fork(f"fork {name}"), pair.model.fork(f"fork {name}"))
            for each, edits in ((pair, ours), (fork, theirs)):
                self.make(each, edits)
                self.settle(each)
                self.both(each, each.real.commit, each.model.commit)
            self.pairs.append(fork)
            for us, them in ((pair, fork), (fork, pair)):
                self.join(us, them)
            del self.pairs[: max(0, len(self.pairs) - HANDLES_MAX)]

    @rule(number=which, count=st.integers(2, 9))
    def burst(self, number: int, count: int) -> None:
        """Several commits in a row: what makes a thread fold."""
        pair = self.pick(number, alive=True)
        if pair and self.settle(pair, "discard"):
            self.both(pair, pair.real.refresh, pair.model.refresh)
            for _ in range(count):
                item = {"id": self.fresh("burst"), "content": "x" * 20}
                pair.real.messages.append(item)
                pair.model.append("messages", item)
                pair.real.state["burst"] = self.counter
                pair.model.put(("burst",), self.counter)
                self.both(pair, pair.real.commit, pair.model.commit)

    @rule(number=which, pending=first, by=st.integers(1, 3))
    def update(self, number: int, pending: str, by: int) -> None:
        pair = self.pick(number, alive=True)
        if pair and self.settle(pair, pending):

            def change() -> None:
                pair.model.refresh()
                pair.model.put(("updated",), pair.model.state.get("updated", 0) + by)
                pair.model.commit()

            def fn(draft: Any) -> None:
                draft["updated"] = draft.get("updated", 0) + by

            self.both(pair, lambda: pair.real.update(fn), change)

    @rule(number=which, pending=first, back=st.integers(0, 40))
    def rewind(self, number: int, pending: str, back: int) -> None:
        """Also to versions left behind, and to versions of the thread forked from."""
        pair = self.pick(number)
        if pair and self.settle(pair, pending) and (history := pair.model.history()):
            version = history[back % len(history)]
            self.both(
                pair,
                lambda: pair.real.rewind(self.versions[version]),
                lambda: pair.model.rewind(version),
            )

    @rule(number=which, pending=first, name=which, back=st.one_of(st.none(), st.integers(0, 40)))
    def fork(self, number: int, pending: str, name: int, back: int | None) -> None:
        pair = self.pick(number)
        if pair and self.settle(pair, pending) and (history := pair.model.history()):
            version = None if back is None else history[back % len(history)]
            done, real, model = self.both(
                pair,
                lambda: pair.real.fork(f"fork {name}", at=self.real_version(version)),
                lambda: pair.model.fork(f"fork {name}", at=version),
            )
            if done:
                self.pairs.append(Pair(real, model))
                self.agree(self.pairs[-1])
                del self.pairs[: max(0, len(self.pairs) - HANDLES_MAX)]

    @rule(number=which, other=which, pending=first)
    def merge(self, number: int, other: int, pending: str) -> None:
        for index in (number, other):
            pair = self.pick(index, alive=True)
            if not pair or not self.settle(pair, pending):
                return
        ours, theirs = self.pick(number, alive=True), self.pick(other, alive=True)
        if not (ours and theirs and ours.model.head and theirs.model.head):
            return
        if ours.real.core is theirs.real.core:
            self.join(ours, theirs)

    def join(self, ours: Pair, theirs: Pair) -> None:
        with contextlib.suppress(Ambiguous):
            done, found, conflicts = self.both(
                ours,
                lambda: ours.real.merge(theirs.real, unrelated=True),
                lambda: ours.model.merge(theirs.model),
            )
            if done:
                assert sorted(repr(c.path) for c in found.conflicts) == sorted(map(repr, conflicts))
                assert found.version == (None if conflicts else ours.real.head)

    @precondition(lambda self: len(self.model.lines) > 2)
    @rule(number=which)
    def delete(self, number: int) -> None:
        pair = self.pick(number, alive=True)
        if pair and pair.model.head:
            pair.real.delete()
            pair.model.delete()
            self.pairs.remove(pair)

    # ── steps ────────────────────────────────────────────────────────────────────────────────

    @rule(
        number=which,
        pending=first,
        key=st.sampled_from(["s1", ("s", 2)]),
        slot=st.sampled_from([None, 0, 1, 2]),
        attempt=st.sampled_from([1, 1, 1, 2, 3]),
    )
    def enter_step(self, number: int, pending: str, key: Any, slot: int | None, attempt: int) -> None:
        pair = self.pick(number)
        if pair and self.settle(pair, pending):
            step = pair.real.step(key, attempt, slot), pair.model.step(key, attempt, slot)
            done, _, _ = self.both(pair, step[0].__enter__, step[1].enter)
            if done:
                assert (step[0].done, step[0].result) == (step[1].done, step[1].result)
                pair.step = step
                if step[0].done:
                    self.leave(pair)

    @rule(number=which, log=logs, part=st.integers(0, 2), path=paths, value=values)
    def work_in_step(self, number: int, log: str, part: int, path: tuple[str, ...], value: Any) -> None:
        working = [pair for pair in self.pairs if pair.step]
        if working:
            pair = working[number % len(working)]
            assert pair.step is not None
            real, model = pair.step
            item = {"id": f"{real.key}-{real.slot}-{part}", "content": self.fresh("step")}
            if all(item["id"] != known["id"] for _, known in model._items):
                real.log(log).append(item)
                model.append(log, item)
            self.put(pair, path, value)
            self.agree(pair)

    @rule(number=which)
    def finish_step(self, number: int) -> None:
        working = [pair for pair in self.pairs if pair.step]
        if working:
            self.leave(working[number % len(working)])

    def leave(self, pair: Pair) -> None:
        assert pair.step is not None
        (real, model), pair.step = pair.step, None
        result = self.fresh("result")
        if not real.done:
            real.result = result
        done, _, _ = self.both(pair, lambda: real.__exit__(None, None, None), lambda: model.finish(result))
        if done:
            assert real.result == model.result

    @rule(number=which)
    def abandon_step(self, number: int) -> None:
        working = [pair for pair in self.pairs if pair.step]
        if working:
            pair = working[number % len(working)]
            assert pair.step is not None
            (real, _), pair.step = pair.step, None
            error = LookupError()
            real.__exit__(LookupError, error, None)
            pair.model.discard()
            self.agree(pair)

    # ── looking back ─────────────────────────────────────────────────────────────────────────

    @rule(number=which, start=st.integers(-30, 30), stop=st.integers(-30, 30), tail=st.integers(1, 25))
    def look_into_logs(self, number: int, start: int, stop: int, tail: int) -> None:
        if pair := self.pick(number, idle=False, alive=True):
            for name in LOGS:
                real, model = pair.real.log(name), pair.model.log(name)
                assert real[-tail:] == model[-tail:]
                assert real[start:stop] == model[start:stop]
                assert list(real) == model
                for item in model[start : start + 3]:
                    assert real.find(item["id"]) == model.index(item)

    @rule(number=which, back=st.integers(0, 60))
    def look_at_past(self, number: int, back: int) -> None:
        pair = self.pick(number, idle=False, alive=True)
        if pair and (history := pair.model.history()):
            self.agree_on_past(pair.real, history[back % len(history)])
            limit = back % 7
            before = history[back % len(history)]
            found = list(pair.real.history(limit=limit, before=self.versions[before]))
            older = [version for version in history if version.seq < before.seq]
            assert found == [self.versions[version] for version in older[:limit]]


class MemoryMachine(StoreMachine):
    def url(self) -> str:
        return "memory:"

    def reopen_stores(self) -> None:
        for store in self.stores:
            store.core.head_cache.clear()


class SqliteMachine(StoreMachine):
    #: Two store objects on one file, as two processes would have them.
    stores_count = 2

    def url(self) -> str:
        return f"sqlite:///{self.folder}/store.db"

    def reopen_stores(self) -> None:
        for store in self.stores:
            store.close()
        self.open()


class FileMachine(SqliteMachine):
    def url(self) -> str:
        return f"file://{self.folder}/store"


class PostgresMachine(SqliteMachine):
    #: Set by the test, which has the server.
    server = ""

    def __init__(self) -> None:
        super().__init__()
        empty(self.server)

    def url(self) -> str:
        return self.server


class AsyncPostgresMachine(PostgresMachine):
    open_store = staticmethod(open_driven)


class AsyncMemoryMachine(MemoryMachine):
    open_store = staticmethod(open_driven)


class AsyncSqliteMachine(SqliteMachine):
    open_store = staticmethod(open_driven)


class AsyncFileMachine(FileMachine):
    open_store = staticmethod(open_driven)


def _node(state: Any, path: tuple[str, ...]) -> Any:
    for key in path[:-1]:
        state = state[key]
    return state


def _reachable(state: Any, path: tuple[str, ...]) -> bool:
    return len(path) == 1 or isinstance(state.get(path[0]), dict)


def _at(state: Any, path: tuple[str, ...], default: Any = "nothing at all") -> Any:
    return _node(state, path).get(path[-1], default)


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small thresholds for keyframes; the machine chooses those for folds, which are put back afterwards."""
    monkeypatch.setattr(snapshots, "KEYFRAME_PACKS", 2)
    monkeypatch.setattr(snapshots, "KEYFRAME_WASTE_BYTES", 64)
    for module in (snapshots, fold, folding_async):
        monkeypatch.setattr(module, "KEYFRAME_ROWS", 6)
    for module in (packs, fold, folding_async):
        monkeypatch.setattr(module, "FOLD_BYTES", packs.FOLD_BYTES)


@pytest.mark.parametrize(
    ("machine", "examples"),
    [
        (MemoryMachine, EXAMPLES),
        (SqliteMachine, EXAMPLES // 2),
        (FileMachine, EXAMPLES // 6),
        (AsyncMemoryMachine, EXAMPLES // 4),
        (AsyncSqliteMachine, EXAMPLES // 6),
        (AsyncFileMachine, EXAMPLES // 12),
    ],
)
@pytest.mark.usefixtures("early")
def test_any_sequence_of_operations(machine: type[StoreMachine], examples: int) -> None:
    _run(machine, examples)


@pytest.mark.parametrize("machine", [PostgresMachine, AsyncPostgresMachine])
@pytest.mark.usefixtures("early")
def test_any_sequence_of_operations_on_a_server(
    machine: type[PostgresMachine], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everthread.open(postgres_url).close()
    monkeypatch.setattr(machine, "server", postgres_url)
    _run(machine, EXAMPLES // 12)


def _run(machine: type[StoreMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        ),
    )
