"""The life of a state: what it stands on, what discarding and closing mean, and states that others own."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import (
    Config,
    ConflictError,
    FencedError,
    InvalidStateError,
    InvalidValueError,
    LimitError,
    Personal,
    StateStatus,
    StorageBackend,
    Store,
    ThreadExistsError,
    Todo,
    UsageError,
    WorkingState,
)
from everthread.hooks import SessionLifecycle
from everthread.working.home import place_of
from everthread.working.sync import home


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with everthread.open(f"sqlite:///{tmp_path}/agent.db") as opened:
        yield opened


def contents(state: WorkingState) -> list[Any]:
    return [todo.content for todo in state.todos]


# ── items ────────────────────────────────────────────────────────────────────────────────────


def test_items_are_frozen_hashable_and_shared() -> None:
    state = WorkingState()
    items = [
        state.add_todo("x"),
        state.set_context("k", {"a": 1}, metadata={"m": 1}),
        state.add_open_loop("l"),
        state.set_intention("i"),
        state.add_constraint("c"),
    ]
    assert len(set(items)) == 5
    for item in items:
        with pytest.raises(AttributeError):
            item.updated_at = None  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        items[1].metadata["m"] = 2  # type: ignore[attr-defined]
    seen: list[Any] = []
    workers = [
        threading.Thread(target=lambda: seen.append([(hash(i), i.id, i.text) for i in items])) for _ in "12"
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen[0] == seen[1]


def test_what_was_read_is_not_changed_by_later_changes() -> None:
    state = WorkingState()
    todo = state.add_todo("x")
    value = {"list": [1]}
    item = state.set_context("k", value)
    value["list"].append(2)
    state.get_context("k")["list"].append(3)
    state.complete_todo(todo)
    assert todo.status == "pending"
    assert state.get_context("k") == item.value == {"list": [1]}


def test_time_and_ids_can_be_passed_in() -> None:
    times, ids = itertools.count(1_700_000_000_000_000), itertools.count()
    state = WorkingState(clock=lambda: next(times), ids=lambda: f"id{next(ids)}")
    assert [state.add_todo("x").id for _ in range(3)] == ["id0", "id1", "id2"]
    assert [todo.created_at.microsecond for todo in state.todos if todo.created_at] == [0, 1, 2]


def test_an_id_that_is_taken_is_drawn_again() -> None:
    ids = iter(["a", "a", "a", "b"])
    state = WorkingState(ids=lambda: next(ids))
    assert [state.add_todo("x").id for _ in range(2)] == ["a", "b"]


@pytest.mark.parametrize("content", ["", "  \n", 7, None, ["x"], b"x"])
def test_texts_must_be_texts(content: Any) -> None:
    state = WorkingState()
    for add in (state.add_todo, state.add_open_loop, state.set_intention, state.add_constraint):
        with pytest.raises(InvalidValueError):
            add(content)
    assert state.status is StateStatus.NEW


def test_what_is_refused_changes_nothing(store: Store) -> None:
    state = WorkingState(store=store)
    state.set_context("k", 1, metadata={"m": 1})
    before = state.snapshot()
    for refused in (
        lambda: state.set_context("k", object()),
        lambda: state.set_context("k", 2, metadata={"m": object()}),
        lambda: state.set_context("new", object()),
        lambda: state.set_context("", 1),
        lambda: state.set_context("k", 2, metadata="m"),  # type: ignore[arg-type]
        lambda: state.add_open_loop("x", context=object()),
        lambda: state.add_todo("\ud800"),
        lambda: state.set_context("k", 2, verify=object()),
    ):
        with pytest.raises((InvalidValueError, UsageError)):
            refused()
        assert state.snapshot() == before


def test_items_stand_in_for_their_ids() -> None:
    state = WorkingState()
    todo, loop, order = state.add_todo("x"), state.add_open_loop("l"), state.add_constraint("c")
    assert state.complete_todo(todo).status == "completed"
    assert state.get_todo(todo).status == "completed"
    assert not state.resolve_open_loop(loop).open
    assert state.remove_constraint(order) == order
    assert state.update_todo(todo, content="y", priority="low").content == "y"
    assert state.remove_todo(todo).priority == "low"
    assert state.todos == []


def test_completing_twice_keeps_the_time() -> None:
    state = WorkingState()
    todo = state.add_todo("x")
    first = state.complete_todo(todo).completed_at
    assert state.complete_todo(todo).completed_at == first
    state.reopen_todo(todo)
    again = state.complete_todo(todo).completed_at
    assert again is not None
    assert first is not None
    assert again > first


def test_mark_verified_says_nothing_about_the_value() -> None:
    state = WorkingState()
    item = state.set_context("k", 1)
    verified = state.mark_verified("k")
    assert verified.verified_at is not None
    assert verified.updated_at == item.updated_at
    assert state.set_context("k", 1).verified_at is None, "a new value has not been looked at"


def test_personal_values_are_sealed(store: Store, tmp_path: Path) -> None:
    state = WorkingState(store=store)
    state.add_todo(Personal("ann", "call Ann on 0171"))
    state.set_context("who", Personal("ann", {"phone": "0171"}))
    assert state.get_context("who").value == {"phone": "0171"}
    id = state.save()
    assert "0171" not in repr(state.snapshot())
    loaded = WorkingState.load(id, store=store)
    assert loaded.todos[0].content.value == "call Ann on 0171"
    loaded.complete_todo(loaded.todos[0])
    loaded.save()
    assert b"0171" not in b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())


def test_unknown_fields_and_other_keys_survive(store: Store) -> None:
    thread = store.thread("shared")
    thread.state["plan"] = {"steps": 3}
    thread.state["todos"] = {"t": {"content": "x", "colour": "red"}}
    thread.commit()
    state = WorkingState(store=store, thread="shared")
    state.complete_todo("t")
    state.save()
    document = store.thread("shared").state.plain()
    assert document["plan"] == {"steps": 3}
    assert document["todos"]["t"]["colour"] == "red"
    assert state.snapshot()["plan"] == {"steps": 3}


# ── saving and finding ───────────────────────────────────────────────────────────────────────


def test_an_empty_state_can_be_saved(store: Store) -> None:
    id = WorkingState(store=store).save()
    assert WorkingState.load(id, store=store).snapshot()["todos"] == []
    assert WorkingState.resume(store=store).id == id


def test_labels_and_metadata_go_to_the_version(store: Store) -> None:
    state = WorkingState(store=store)
    state.add_todo("x")
    state.save("first", {"run": "r1"})
    state.save("second")
    assert [version.label for version in state.history()] == ["second", "first"]
    assert state.at(1).version is not None
    assert state.version is not None
    assert state.updated_at == state.version.at
    assert next(store.threads(metadata={"run": "r1"})).name == state.thread.name


def test_changes_of_the_thread_itself_are_saved_too(store: Store) -> None:
    state = WorkingState(store=store, thread="t")
    state.save()
    state.thread.messages.append({"role": "user", "content": "hi"})
    assert state.status is StateStatus.DIRTY
    state.save()
    assert len(WorkingState(store=store, thread="t").thread.messages) == 1


def test_ids_are_found_in_any_spelling(store: Store) -> None:
    id = WorkingState(store=store).save()
    assert WorkingState.load(id.upper(), store=store).id == id
    assert WorkingState.load(f"{{{id}}}", store=store).id == id


def test_resume_knows_states_on_named_threads_and_on_forks(store: Store) -> None:
    named = WorkingState(store=store, thread="bot")
    named.add_todo("x")
    named.save()
    assert WorkingState.resume(store=store).id == named.id
    fork = named.fork("what if")
    assert WorkingState.resume(store=store).id == fork.id
    assert WorkingState.load(fork.id, store=store).thread.name == "what if"
    # A fork made on the thread is a state of its own from its first save as one.
    named.thread.fork("by hand")
    by_hand = WorkingState(store=store, thread="by hand")
    assert contents(by_hand) == ["x"]
    assert WorkingState.load(named.id, store=store).thread.name == "bot"
    by_hand.add_todo("y")
    assert WorkingState.load(by_hand.save(), store=store).thread.name == "by hand"
    assert WorkingState.load(named.id, store=store).thread.name == "bot"


def test_resume_keeps_to_its_session(store: Store) -> None:
    ids = {name: WorkingState(Config(name), store=store).save() for name in ("a", "b", "c")}
    for name, id in ids.items():
        assert WorkingState.resume(config=Config(name), store=store).id == id
    assert WorkingState.resume(store=store).id == ids["c"]


# ── the past, forks, merges ──────────────────────────────────────────────────────────────────


def test_time_travel(store: Store) -> None:
    state = WorkingState(store=store)
    for number in range(3):
        state.add_todo(f"todo {number}")
        state.save()
    assert contents(state.at(1)) == ["todo 0"]
    assert state.at(2).read_only
    assert state.at(2).status is StateStatus.LOADED
    state.add_todo("unsaved")
    with pytest.raises(InvalidStateError):
        state.rewind(1)
    state.reload()
    state.rewind(1)
    assert contents(state) == ["todo 0"]
    assert state.status is StateStatus.LOADED
    state.rewind(3)
    assert len(state.todos) == 3
    assert contents(WorkingState.load(state.id, store=store)) == contents(state)


def test_fork_and_merge(store: Store) -> None:
    state = WorkingState(store=store)
    todo = state.add_todo("shared")
    state.save()
    fork = state.fork()
    assert fork.id != state.id
    assert contents(fork) == ["shared"]
    fork.add_todo("in the fork")
    fork.save()
    state.complete_todo(todo)
    state.save()
    merged = state.merge(fork)
    assert merged
    assert [(each.content, each.status) for each in state.todos] == [
        ("shared", "completed"),
        ("in the fork", "pending"),
    ]
    assert state.snapshot()["id"] == state.id, "a merge doesn't change who one is"
    with pytest.raises(ThreadExistsError):
        state.fork(fork.thread.name)


def test_fork_of_the_past(store: Store) -> None:
    state = WorkingState(store=store)
    state.add_todo("one")
    state.save()
    state.add_todo("two")
    state.save()
    assert contents(state.fork("then", at=1)) == ["one"]
    with pytest.raises(InvalidStateError):
        state.at(1).fork("x")


# ── discard, reload, close ───────────────────────────────────────────────────────────────────


def test_discard_on_a_named_thread_starts_over_there(store: Store) -> None:
    state = WorkingState(store=store, thread="bot")
    state.add_todo("old")
    state.set_context("k", 1)
    id = state.save()
    state.add_todo("unsaved")
    state.discard()
    assert (state.todos, state.context, state.snapshot()["todos"]) == ([], {}, [])
    assert (state.status, state.id) == ("NEW", id)
    assert contents(WorkingState.load(id, store=store)) == ["old"]
    state.add_todo("new")
    assert contents(state) == ["new"]
    assert state.context == {}
    assert state.save() == id
    assert contents(WorkingState.load(id, store=store)) == ["new"]
    state.rewind(1)
    assert contents(state) == ["old"], "nothing was deleted"


def test_discard_then_save_is_empty(store: Store) -> None:
    state = WorkingState(store=store, thread="bot")
    state.add_todo("old")
    state.save()
    state.discard()
    state.save()
    assert contents(WorkingState(store=store, thread="bot")) == []
    assert contents(state.at(1)) == ["old"]


def test_discard_then_reload_is_as_before(store: Store) -> None:
    state = WorkingState(store=store, thread="bot")
    state.add_todo("old")
    state.save()
    state.discard()
    state.reload()
    assert (contents(state), state.status) == (["old"], "LOADED")


def test_reload_gives_up_what_is_not_saved(store: Store) -> None:
    state = WorkingState(store=store, thread="bot")
    state.add_todo("saved")
    state.save()
    other = WorkingState(store=store, thread="bot")
    other.add_todo("theirs")
    other.save()
    state.add_todo("unsaved")
    state.reload()
    assert contents(state) == ["saved", "theirs"]
    fresh = WorkingState(store=store)
    fresh.add_todo("unsaved")
    fresh.reload()
    assert (contents(fresh), fresh.status) == ([], "NEW")


def test_a_block_saves_unless_it_fails(store: Store) -> None:
    with WorkingState(store=store) as state:
        state.add_todo("kept")
    assert state.closed
    assert contents(WorkingState.load(state.id, store=store)) == ["kept"]
    state = WorkingState(store=store)

    def fail() -> None:
        with state:
            state.add_todo("given up")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert state.closed
    with pytest.raises(everthread.StateNotFoundError):
        WorkingState.load(state.id, store=store)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = everthread.open(f"sqlite:///{tmp_path}/agent.db")
    state = WorkingState(store=store)
    state.save()
    store.close()
    state.add_todo("x")
    with pytest.raises(everthread.StoreClosedError):
        state.save()
    state.close()


# ── where states are ─────────────────────────────────────────────────────────────────────────


def test_a_new_state_opens_nothing(tmp_path: Path) -> None:
    state = WorkingState(Config(storage_path=tmp_path / "deep" / "states.db"))
    state.add_todo("x")
    assert list(tmp_path.iterdir()) == []
    state.save()
    assert (tmp_path / "deep" / "states.db").is_file()
    assert (tmp_path / "deep").stat().st_mode & 0o077 == 0


def test_states_of_one_place_share_its_store(tmp_path: Path) -> None:
    config = Config(storage_path=tmp_path / "states.db")
    url = place_of(config).url
    one, two = WorkingState(config), WorkingState(config)
    one.save()
    two.save()
    assert home._open[url].count == 2
    one.close()
    assert contents(two) == []
    fork = two.fork("f")
    two.close()
    fork.add_todo("still open")
    fork.save()
    fork.close()
    assert url not in home._open


def test_a_state_that_is_forgotten_gives_its_store_back(tmp_path: Path) -> None:
    config = Config(storage_path=tmp_path / "states.db")
    url = place_of(config).url
    state = WorkingState(config)
    state.add_todo("x")
    state.save()
    past = state.at(1)
    thread = state.thread
    del state
    gc.collect()
    assert contents(past) == ["x"], "a view of the past keeps it open"
    thread.state["y"] = 1
    thread.commit()
    del past, thread
    gc.collect()
    assert url not in home._open


def test_a_child_process_can_go_on(tmp_path: Path) -> None:
    config = Config(storage_path=tmp_path / "states.db", auto_save=True)
    state = WorkingState(config)
    state.add_todo("parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            mine = WorkingState.load(state.id, config)
            mine.add_todo("child")
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert contents(WorkingState.load(state.id, config)) == ["parent", "child"]


@pytest.mark.parametrize(
    ("path", "backend"),
    [
        ("x.db", "sqlite"),
        ("folder", "sqlite"),
        ("folder", "json"),
        ("a name", "memory"),
        ("sqlite:///{}/u.db", "sqlite"),
    ],
)
def test_places(tmp_path: Path, path: str, backend: str) -> None:
    (tmp_path / "folder").mkdir()
    place = path.format(tmp_path) if "{}" in path else path if backend == "memory" else str(tmp_path / path)
    config = Config(storage_backend=StorageBackend(backend), storage_path=place)
    id = WorkingState(config).save()
    assert WorkingState.load(id, config).id == id
    other = Config(
        storage_backend=StorageBackend(backend), storage_path=f"{place}2" if backend == "memory" else None
    )
    with pytest.raises(everthread.StateNotFoundError):
        WorkingState.load(id, other)


def test_the_default_place_of_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_URL", f"sqlite:///{tmp_path}/all.db")
    state = WorkingState(Config(storage_backend="json"))  # type: ignore[arg-type]
    state.save()
    assert (tmp_path / "states" / f"{state.id}.json").is_file()


@pytest.mark.parametrize(
    "wrong",
    [
        {"storage_backend": "paper"},
        {"storage_path": 7},
        {"schema_version": 0},
        {"schema_version": "1"},
        {"max_context_entries": -1},
        {"max_context_entries": True},
        {"session_id": ""},
        {"hooks": print},
    ],
)
def test_a_wrong_config_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Config(**wrong)


def test_a_wrong_store_or_thread_is_refused() -> None:
    with pytest.raises(InvalidValueError):
        WorkingState(store=7)
    with pytest.raises(everthread.InvalidNameError):
        WorkingState(thread="")
    with pytest.raises(InvalidValueError):
        WorkingState(hooks={})  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError):
        WorkingState({"auto_save": True})  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError):
        WorkingState().save(metadata="x")  # type: ignore[arg-type]


# ── states that others own ───────────────────────────────────────────────────────────────────


def test_on_a_handle_of_somebody_else(store: Store) -> None:
    thread = store.thread("session")
    saves: list[int] = []

    def save() -> None:
        thread.commit(label="mine")
        saves.append(len(saves))

    work = WorkingState.on(thread, save=save)
    assert work.status is StateStatus.NEW
    todo = work.add_todo("x")
    work.complete_todo(todo)
    assert saves == [0, 1]
    assert work.status is StateStatus.LOADED
    assert work.save() == work.id
    assert saves == [0, 1], "nothing to save"
    assert [version.label for version in thread.history()] == ["mine", "mine"]
    thread.state["tasks"] = {"a": 1}
    assert "tasks" not in work.snapshot(), "that is somebody else's"
    for forbidden in (lambda: work.rewind(1), lambda: work.merge(work)):
        with pytest.raises(InvalidStateError):
            forbidden()
    with pytest.raises(UsageError):
        work.save(label="x")
    thread.discard()
    assert contents(WorkingState.past(thread, 1)) == ["x"]
    assert work.fork("f").todos == work.todos
    work.close()
    assert thread.state["todos"], "closing the view leaves the handle alone"


def test_an_owner_who_refuses_keeps_the_change_uncommitted(store: Store) -> None:
    thread = store.thread("session")

    def fenced() -> None:
        raise FencedError("a newer run took over", attempt=1, newest=2)

    work = WorkingState.on(thread, save=fenced)
    with pytest.raises(FencedError):
        work.add_todo("x")
    assert work.status is StateStatus.DIRTY
    assert thread.dirty
    assert list(store.threads()) == []


def test_an_owner_who_meets_a_conflict_is_asked_again(store: Store) -> None:
    thread = store.thread("session")
    work = WorkingState.on(thread, save=thread.commit)
    work.add_todo("first")
    other = WorkingState(store=store, thread="session")
    other.add_todo("theirs")
    other.save()
    work.add_todo("ours")
    assert contents(work) == ["first", "theirs", "ours"]
    other.reload()
    other.set_context("k", 1)
    other.save()
    with pytest.raises(ConflictError):
        work.set_context("k", 2)


def test_discard_of_an_owned_state_touches_nothing_else(store: Store) -> None:
    thread = store.thread("session")
    work = WorkingState.on(thread, save=thread.commit)
    work.add_todo("x")
    thread.state["other"] = 1
    work.discard()
    assert (work.todos, thread.state["other"]) == ([], 1)
    thread.commit()
    assert contents(WorkingState(store=store, thread="session")) == ["x"]
    work.add_todo("y")
    assert contents(WorkingState(store=store, thread="session")) == ["y"]


def test_on_without_an_owner_saves_by_itself(store: Store) -> None:
    thread = store.thread("t")
    state = WorkingState.on(thread, max_context_entries=1)
    state.set_context("k", 1)
    with pytest.raises(LimitError):
        state.set_context("l", 1)
    assert WorkingState.load(state.save(), store=store).get_context("k") == 1


# ── hooks ────────────────────────────────────────────────────────────────────────────────────


def test_hooks_of_every_event(store: Store) -> None:
    told: list[str] = []
    hooks = SessionLifecycle()
    events = [
        "on_change",
        "on_save",
        "on_load",
        "on_resume",
        "on_discard",
        "on_rewind",
        "on_fork",
        "on_close",
    ]
    for event in events:
        hooks.register(event, lambda state, event=event: told.append(event))
    state = WorkingState(store=store, hooks=hooks)
    state.add_todo("x")
    id = state.save()
    state.save()
    WorkingState.load(id, store=store, hooks=hooks)
    WorkingState.resume(store=store, hooks=hooks)
    state.add_todo("y")
    state.save()
    state.rewind(1)
    state.fork("f")
    state.discard()
    state.close()
    assert told == [
        *("on_change", "on_save", "on_load", "on_resume", "on_change", "on_save"),
        *("on_rewind", "on_fork", "on_discard", "on_close"),
    ], "a save that saves nothing isn't told"


def test_a_hook_may_change_the_state(store: Store) -> None:
    hooks = SessionLifecycle()
    hooks.register("on_save", lambda state: state.set_context("saves", state.get_context("saves", 0) + 1))
    state = WorkingState(Config(auto_save=True), store=store, hooks=hooks)
    todo: Todo = state.add_todo("x")
    assert state.get_context("saves") == 1, "and isn't told of its own change"
    assert WorkingState.load(state.id, store=store).todos == [todo]


def test_an_interrupt_in_a_hook_comes_after_the_save(store: Store) -> None:
    def interrupted(state: WorkingState) -> None:
        raise KeyboardInterrupt

    hooks = SessionLifecycle()
    hooks.register("on_save", interrupted)
    state = WorkingState(store=store, hooks=hooks)
    state.add_todo("x")
    with pytest.raises(KeyboardInterrupt):
        state.save()
    assert contents(WorkingState.load(state.id, store=store)) == ["x"]
    assert state.status is StateStatus.LOADED


@pytest.mark.parametrize("value", [["mine"], "mine", 7])
def test_what_others_keep_in_its_place_is_no_damage(store: Store, value: Any) -> None:
    thread = store.thread("shared")
    thread.state["todos"] = value
    thread.commit()
    state = WorkingState(store=store, thread="shared")
    for call in (lambda: state.todos, lambda: state.add_todo("x")):
        with pytest.raises(InvalidStateError, match=r"state\['todos'\] is the place of .* another key"):
            call()
    state.add_open_loop("the other keys are free")
    state.save()
    again = store.thread("shared").state.plain()
    assert again["todos"] == value, "nothing of it was changed"
    assert len(again["open_loops"]) == 1
