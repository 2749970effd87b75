"""W: working state."""

from __future__ import annotations

import asyncio
import copy
import datetime as dt
import json
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import (
    AsyncWorkingState,
    Config,
    ConflictError,
    EverthreadError,
    InvalidStateError,
    InvalidValueError,
    LimitError,
    SchemaVersionError,
    StateCorruptedError,
    StateNotFoundError,
    StateStatus,
    StorageBackend,
    StorageWriteError,
    Store,
    UsageError,
    WorkingState,
)
from everthread.codec import CURRENT_SCHEMA_VERSION, migrate
from everthread.diff import StateDiffer
from everthread.hooks import SessionLifecycle
from everthread.recovery import SelfHealer

pytestmark = pytest.mark.blocking(
    "AsyncWorkingState has tests of its own: test_W1_async_on_every_store, and tests/unit/working"
)

NO_SET_UP = """
from everthread import WorkingState, Config, StorageBackend
state = WorkingState()
todo = state.add_todo("reconcile March", priority="high")
print(state.save(), todo.id)
"""


def test_W1_no_set_up(tmp_path: Path) -> None:
    """In a process and a home of its own, with nothing set."""
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERTHREAD_")}
    environment |= {"HOME": str(home), "PYTHONPATH": str(Path(everthread.__file__).parents[1])}
    found = subprocess.run(
        [sys.executable, "-c", NO_SET_UP], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    id, todo = found.stdout.split()
    with everthread.open(f"sqlite:///{home}/.everthread/everthread.db") as store:
        assert [each.id for each in WorkingState.load(id, store=store).todos] == [todo]


def test_W2_todos(store: Store) -> None:
    state = WorkingState(store=store)
    todo = state.add_todo("reconcile March", priority="high")
    assert (todo.content, todo.status, todo.priority) == ("reconcile March", "pending", "high")
    assert isinstance(todo.created_at, dt.datetime)
    assert todo.created_at.tzinfo is not None
    assert todo.completed_at is None
    assert state.todos == [todo]

    assert state.start_todo(todo.id).status == "in_progress"
    done = state.complete_todo(todo.id)
    assert done.status == "completed"
    assert done.completed_at is not None
    assert done.completed_at >= todo.created_at
    cancelled = state.cancel_todo(todo.id)
    assert (cancelled.status, cancelled.completed_at) == ("cancelled", None)
    assert state.reopen_todo(todo.id).status == "pending"
    assert state.complete_todo(todo.id).status == "completed"

    moves = (state.start_todo, state.complete_todo, state.cancel_todo, state.reopen_todo)
    for first in moves:
        for second in moves:
            first(todo.id)
            second(todo.id)
    for priority in ("low", "medium", "high", "critical"):
        assert state.add_todo("x", priority=priority).priority == priority
    assert state.add_todo("x").priority == "medium"
    with pytest.raises(everthread.InvalidValueError, match="low, medium, high, critical"):
        state.add_todo("x", priority="urgent")
    assert len(state.todos) == 6


def test_W3_context(store: Store) -> None:
    state = WorkingState(Config(max_context_entries=2), store=store)
    item = state.set_context("branch", "main", metadata={"from": "git"})
    assert (item.key, item.value, item.metadata) == ("branch", "main", {"from": "git"})
    assert item.updated_at is not None
    assert state.get_context("branch") == "main"
    assert state.get_context("nothing") is None
    assert state.get_context("nothing", default=7) == 7
    state.set_context("files", {"seen": ["a.py"]})
    assert list(state.context) == ["branch", "files"]
    assert state.context["files"].value == {"seen": ["a.py"]}

    with pytest.raises(LimitError, match="max_context_entries is 2"):
        state.set_context("third", 3)
    assert list(state.context) == ["branch", "files"], "nothing was dropped to make room"
    again = state.set_context("branch", "fix")
    assert (again.value, again.metadata, again.created_at) == ("fix", {}, item.created_at)
    state.remove_context("files")
    state.set_context("third", 3)
    assert list(state.context) == ["branch", "third"]


def test_W3_verify_is_kept_by_name(store: Store, tmp_path: Path) -> None:
    from everthread import verifiers

    file = tmp_path / "plan.md"
    file.write_text("1. pay")
    state = WorkingState(store=store)
    state.set_context("plan", str(file), verify=verifiers.file_hash())
    id = state.save()
    stored = WorkingState.load(id, store=store).context["plan"].verify
    assert stored is not None
    assert stored["name"] == "file_hash"
    assert verifiers.check(dict(stored), str(file)).status == "fresh"
    file.write_text("1. don't pay")
    assert verifiers.check(dict(stored), str(file)).status != "fresh"


def test_W4_open_loops(store: Store) -> None:
    state = WorkingState(store=store)
    loop = state.add_open_loop("ask Ann for the March file", context={"asked": 1})
    assert (loop.description, loop.context, loop.resolved_at) == (
        "ask Ann for the March file",
        {"asked": 1},
        None,
    )
    resolved = state.resolve_open_loop(loop.id)
    assert resolved.resolved_at is not None
    assert state.resolve_open_loop(loop.id) == resolved, "the first stamp stays"
    assert state.open_loops == [resolved]


def test_W5_intentions_and_constraints(store: Store) -> None:
    state = WorkingState(store=store)
    assert state.get_intention() is None
    first = state.set_intention("read the ledger")
    second = state.set_intention("pay the invoices")
    assert state.get_intention() == "pay the invoices"
    assert state.intentions == [first, second]

    order = state.add_constraint("Never pay more than 10,000 without asking.\n  Not even once.")
    other = state.add_constraint("Answer in French")
    assert [each.text for each in state.constraints] == [order.text, "Answer in French"]
    state.remove_constraint(other.id)
    state.save()
    assert [each.text for each in WorkingState.resume(store=store).constraints] == [
        "Never pay more than 10,000 without asking.\n  Not even once."
    ], "verbatim"


def test_W6_save_load_resume_snapshot_discard() -> None:
    state = WorkingState()
    todo = state.add_todo("one")
    state.set_context("k", [1, 2])
    state.add_open_loop("loop")
    state.set_intention("go on")
    id = state.save()
    assert str(uuid.UUID(id)) == id
    assert state.save() == id, "nothing changed"
    state.complete_todo(todo.id)
    assert state.save() == id
    other = WorkingState()
    other.add_todo("other")
    last = other.save()
    assert last != id

    assert WorkingState.load(id, config=Config()).todos == state.todos
    assert WorkingState.resume().id == last
    assert WorkingState.resume(id).todos[0].status == "completed"
    state.add_todo("later")
    state.save()
    assert WorkingState.resume().id == id, "the most recently saved"

    before = list(state.history())
    snapshot = state.snapshot()
    assert {"todos", "context", "open_loops", "intentions", "constraints"} <= snapshot.keys()
    assert snapshot["schema_version"] == CURRENT_SCHEMA_VERSION
    assert snapshot["todos"][0]["content"] == "one"
    assert snapshot["context"]["k"]["value"] == [1, 2]
    assert SelfHealer.validate(snapshot).valid
    assert migrate(snapshot) == snapshot
    assert json.loads(json.dumps(snapshot)) == snapshot
    snapshot["todos"].clear()
    assert len(state.todos) == 2, "a snapshot is a copy"
    assert list(state.history()) == before, "and writes nothing"

    state.discard()
    assert (state.todos, state.context, state.status) == ([], {}, StateStatus.NEW)
    assert len(WorkingState.load(id).todos) == 2, "nothing is deleted"
    state.add_todo("fresh")
    assert state.save() != id
    assert len(WorkingState.load(id).todos) == 2

    with pytest.raises(StateNotFoundError):
        WorkingState.load(str(uuid.uuid4()))
    for wrong in ("", "nothing", "../../x", "'; drop table lines"):
        with pytest.raises(StateNotFoundError):
            WorkingState.load(wrong)


def test_W6_nothing_to_resume(store: Store) -> None:
    with pytest.raises(StateNotFoundError):
        WorkingState.resume(store=store)
    store.thread("not a state").commit(label="x")
    with pytest.raises(StateNotFoundError):
        WorkingState.resume(store=store)


def test_W7_status(store: Store) -> None:
    state = WorkingState(store=store)
    assert state.status is StateStatus.NEW
    todo = state.add_todo("x")
    assert state.status == "DIRTY"
    id = state.save()
    assert state.status == "LOADED"
    assert WorkingState.load(id, store=store).status == "LOADED"
    mutations = (
        lambda: state.start_todo(todo.id),
        lambda: state.set_context("k", 1),
        lambda: state.set_context("k", 1),
        lambda: state.remove_context("k"),
        lambda: state.add_open_loop("loop"),
        lambda: state.resolve_open_loop(state.open_loops[0].id),
        lambda: state.set_intention("next"),
        lambda: state.add_constraint("never"),
        lambda: state.remove_constraint(state.constraints[0].id),
        lambda: state.cancel_todo(todo.id),
        lambda: state.remove_todo(todo.id),
    )
    for mutate in mutations:
        mutate()
        assert state.status == "DIRTY"
        state.save()
        assert state.status == "LOADED"
    state.add_todo("y")
    state.discard()
    assert state.status == "NEW"


def test_W7_what_makes_no_sense_raises(store: Store) -> None:
    state = WorkingState(store=store)
    state.add_todo("x")
    for nonsense in (
        lambda: state.complete_todo("unknown"),
        lambda: state.start_todo(""),
        lambda: state.remove_context("unknown"),
        lambda: state.resolve_open_loop("unknown"),
        lambda: state.remove_constraint("unknown"),
    ):
        with pytest.raises(InvalidStateError):
            nonsense()
    state.save()
    state.add_todo("y")
    state.save()
    past = state.at(1)
    assert [todo.content for todo in past.todos] == ["x"]
    for mutate in (
        lambda: past.add_todo("z"),
        past.save,
        past.discard,
        lambda: past.complete_todo(past.todos[0]),
    ):
        with pytest.raises(InvalidStateError):
            mutate()
    assert len(state.todos) == 2
    state.close()
    state.close()
    for use in (
        lambda: state.todos,
        lambda: state.add_todo("z"),
        state.save,
        state.snapshot,
        lambda: state.status,
    ):
        with pytest.raises(InvalidStateError):
            use()


def test_W7_auto_save(store: Store) -> None:
    state = WorkingState(Config(auto_save=True), store=store)
    todo = state.add_todo("x")
    assert state.status == "LOADED"
    assert [each.id for each in WorkingState.load(state.id, store=store).todos] == [todo.id]
    state.complete_todo(todo.id)
    state.set_context("k", 1)
    loaded = WorkingState.load(state.id, store=store)
    assert (loaded.todos[0].status, loaded.get_context("k")) == ("completed", 1)


@pytest.mark.parametrize("backend", [StorageBackend.SQLITE, StorageBackend.JSON, StorageBackend.MEMORY])
def test_W8_config(tmp_path: Path, backend: StorageBackend) -> None:
    saved: list[str] = []
    hooks = SessionLifecycle()
    hooks.register("on_save", lambda state: saved.append(state.id))
    place = tmp_path / ("states" if backend is StorageBackend.JSON else "states.db")
    config = Config(
        session_id="run 1",
        storage_backend=backend,
        storage_path=place,
        schema_version=CURRENT_SCHEMA_VERSION,
        auto_save=False,
        max_context_entries=3,
        hooks=hooks,
    )
    state = WorkingState(config)
    state.add_todo("one")
    id = state.save()
    assert saved == [id]
    WorkingState(Config("run 2", backend, place)).save()
    assert WorkingState.resume(config=config).id == id, "the newest of this session"
    assert WorkingState.load(id, config=config).todos == state.todos
    with pytest.raises(AttributeError):
        config.auto_save = True  # type: ignore[misc]
    with pytest.raises(SchemaVersionError):
        Config(schema_version=CURRENT_SCHEMA_VERSION + 1)
    if backend is StorageBackend.SQLITE:
        assert place.is_file()


def test_W8_json_is_a_folder_of_readable_views(tmp_path: Path) -> None:
    config = Config(storage_backend=StorageBackend.JSON, storage_path=tmp_path / "states")
    states = [WorkingState(config) for _ in range(3)]
    for number, state in enumerate(states):
        state.add_todo(f"todo {number}")
        state.save()
    views = sorted((tmp_path / "states").glob("*.json"))
    assert [view.name for view in views] == sorted(f"{state.id}.json" for state in states)
    states[0].complete_todo(states[0].todos[0])
    states[0].save()
    view = json.loads((tmp_path / "states" / f"{states[0].id}.json").read_text())
    assert view["todos"][0]["status"] == "completed"
    assert SelfHealer.validate(view).valid


def test_W8_a_state_on_a_named_thread(store: Store) -> None:
    state = WorkingState(store=store, thread="invoice-bot")
    assert state.status == "NEW"
    state.add_todo("pay")
    state.thread.messages.append({"role": "user", "content": "pay them"})
    id = state.save()
    again = WorkingState(store=store, thread="invoice-bot")
    assert (again.id, again.status, again.todos) == (id, "LOADED", state.todos)
    assert len(store.thread("invoice-bot").messages) == 1
    assert WorkingState.load(id, store=store).thread.name == "invoice-bot"
    assert WorkingState.resume(store=store).id == id
    again.complete_todo(again.todos[0])
    assert again.save() == id


def test_W9_diff_merge_patch() -> None:
    old = WorkingState()
    old.add_todo("same")
    new = WorkingState()
    assert new.add_todo("same").id != old.todos[0].id
    assert StateDiffer.diff(old, new).summary() == "no changes"
    assert not StateDiffer.diff(old, new)
    new.add_todo("another")
    new.set_context("branch", "main")
    diff = StateDiffer.diff(old.snapshot(), new.snapshot())
    assert diff.summary() == "+1 todos, +1 context items"
    assert StateDiffer().diff(old, new).summary() == diff.summary()

    patched = StateDiffer.patch(old.snapshot(), diff)
    assert not StateDiffer.diff(patched, new)
    assert len(old.todos) == 1, "a plain dict is left as it is"
    merged = StateDiffer.merge(old, diff)
    assert (len(old.todos), len(old.context), merged is old) == (1, 0, False), "its input is left alone"
    assert [todo.content for todo in merged.todos] == ["same", "another"]
    assert merged.get_context("branch") == "main"
    assert merged.status == "DIRTY"
    assert len(StateDiffer.merge(merged, diff).todos) == 2, "merging the same again changes nothing"
    old.apply(diff)
    assert [todo.content for todo in old.todos] == ["same", "another"]

    new.complete_todo(new.todos[0])
    new.remove_context("branch")
    diff = StateDiffer.diff(old, new)
    assert diff.summary() == "~1 todos, -1 context items"
    assert diff.changed["todos"][0].fields["status"] == ("pending", "completed")
    assert not StateDiffer.diff(StateDiffer.merge(old, diff), new)


def test_W10_validate_and_recover() -> None:
    state = WorkingState()
    state.add_todo("sound")
    state.set_context("k", "v")
    payload = state.snapshot()
    report = SelfHealer.validate(payload)
    assert (report.valid, report.errors, report.warnings) == (True, (), ())
    payload["todos"].append({"content": 7})
    payload["todos"].append({"id": "t", "content": "odd", "status": "sleeping"})
    payload["context"]["bad"] = {"value": object(), "created_at": "yesterday"}
    report = SelfHealer.validate(payload)
    assert not report.valid
    assert len(report.errors) == 4

    healed = SelfHealer.recover(payload)
    assert isinstance(healed, WorkingState)
    assert [(todo.content, todo.status) for todo in healed.todos] == [
        ("sound", "pending"),
        ("odd", "pending"),
    ]
    assert list(healed.context) == ["k"]
    assert {loss.path for loss in healed.recovery.lost} == {
        "todos[1]",
        "todos[2].status",
        "context.bad.value",
        "context.bad.created_at",
    }
    healed.add_todo("usable")
    assert len(WorkingState.load(healed.save()).todos) == 3
    for hopeless in (None, 7, [], "{", b"\xff", object()):
        empty = SelfHealer.recover(hopeless)
        assert (empty.todos, empty.recovery.complete) == ([], False)
        empty.add_todo("usable")


def test_W11_hooks(store: Store) -> None:
    told: list[tuple[str, str]] = []
    hooks = SessionLifecycle()
    for event in ("on_save", "on_resume", "on_discard"):
        hooks.register(event, lambda state, event=event: told.append((event, state.id)))
    state = WorkingState(store=store, hooks=hooks)
    state.add_todo("x")
    id = state.save()
    WorkingState.resume(store=store, hooks=hooks)
    state.discard()
    assert told == [("on_save", id), ("on_resume", id), ("on_discard", state.id)]


def test_W11_a_failing_hook_never_loses_the_save(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def broken(state: WorkingState) -> None:
        raise RuntimeError("the webhook is down")

    after: list[str] = []
    hooks = SessionLifecycle()
    hooks.register("on_save", broken)
    hooks.register("on_save", lambda state: after.append(state.id))
    state = WorkingState(store=store, hooks=hooks)
    state.add_todo("x")
    id = state.save()
    assert state.status == "LOADED"
    assert len(WorkingState.load(id, store=store).todos) == 1
    assert after == [id], "the others still run"
    assert [(each.event, str(each.error)) for each in hooks.failures] == [("on_save", "the webhook is down")]
    assert "the webhook is down" in caplog.text


def test_W12_errors(store: Store) -> None:
    for error in (
        StateNotFoundError,
        StateCorruptedError,
        StorageWriteError,
        InvalidStateError,
        SchemaVersionError,
        ConflictError,
    ):
        assert issubclass(error, EverthreadError)
    thread = store.thread("newer")
    thread.state["schema_version"] = CURRENT_SCHEMA_VERSION + 1
    thread.commit()
    with pytest.raises(SchemaVersionError):
        WorkingState(store=store, thread="newer")
    thread = store.thread("broken")
    thread.state["todos"] = {"t": {"content": "x", "status": "sleeping"}}
    thread.commit()
    broken = WorkingState(store=store, thread="broken")
    with pytest.raises(StateCorruptedError, match="SelfHealer"):
        _ = broken.todos
    assert SelfHealer.recover(broken).todos[0].content == "x"

    one, two = (WorkingState(store=store, thread="both") for _ in range(2))
    one.set_context("branch", "main")
    one.save()
    two.set_context("branch", "fix")
    with pytest.raises(ConflictError):
        two.save()
    assert two.get_context("branch") == "fix", "nothing is lost"
    two.save(resolve="ours")
    assert WorkingState(store=store, thread="both").get_context("branch") == "fix"


def test_W13_data_types_are_frozen_and_shared_between_threads(store: Store) -> None:
    thread = store.thread("w13")
    thread.state["n"] = 1
    version = thread.commit(metadata={"run": "r1"})
    assert version is not None
    with pytest.raises(AttributeError):
        version.seq = 7  # type: ignore[misc]
    with pytest.raises(TypeError):
        version.metadata["run"] = "r2"  # type: ignore[index]
    info = next(store.threads())
    with pytest.raises(AttributeError):
        info.name = "other"  # type: ignore[misc]

    seen: list[object] = []

    def read() -> None:
        seen.append((hash(version), version.at, version.metadata["run"], store.thread("w13").head))

    workers = [threading.Thread(target=read) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == [(hash(version), version.at, "r1", version)] * 8


def test_W14_payloads_of_version_0_load() -> None:
    old = {"todos": [{"id": "t1", "content": "pay"}], "context": {"branch": "main"}, "extra": {"kept": True}}
    new = migrate(old)
    assert new["schema_version"] == CURRENT_SCHEMA_VERSION
    assert new["todos"][0]["content"] == "pay"
    assert new["todos"][0]["status"] == "pending"
    assert new["context"]["branch"]["value"] == "main"
    assert new["extra"] == {"kept": True}, "a tolerant reader keeps what it doesn't know"
    assert {"open_loops", "intentions", "constraints"} <= new.keys()
    assert "schema_version" not in old, "the argument is left alone"
    assert migrate(new) == new


def test_W14_a_newer_payload_is_refused() -> None:
    with pytest.raises(SchemaVersionError):
        migrate({"schema_version": CURRENT_SCHEMA_VERSION + 1})
    assert issubclass(everthread.SchemaVersionError, everthread.EverthreadError)


ORIGINAL = {
    "id": "0f1e2d3c-4b5a-4978-8695-a4b3c2d1e0f1",
    "session_id": "run 7",
    "schema_version": 1,
    "todos": [
        {
            "id": "t1",
            "content": "pay",
            "status": "IN_PROGRESS",
            "priority": "HIGH",
            "timestamp": 1_700_000_000,
        },
        {"id": "t2", "content": "ask", "status": "COMPLETED", "completed_at": "2026-01-02T03:04:05+00:00"},
    ],
    "context": [
        {"key": "branch", "value": "main", "timestamp": "2026-01-01T00:00:00+00:00", "category": "git"},
        {"key": "unit", "value": {"value": 1, "timestamp": 5, "of": "m"}},
    ],
    "open_loops": [{"id": "l1", "description": "Ann owes a file", "timestamp": "2026-01-01T00:00:00+00:00"}],
    "intentions": [{"intention": "compare", "timestamp": "2026-01-01T00:00:00+00:00"}],
    "constraints": [],
}


def in_original_names(state: WorkingState) -> None:
    """All of ORIGINAL is there, under the names that things have here."""
    assert [(todo.id, todo.status, todo.priority) for todo in state.todos] == [
        ("t1", "in_progress", "high"),
        ("t2", "completed", "medium"),
    ]
    assert state.todos[0].created_at == dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    began = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    assert {key: item.created_at for key, item in state.context.items()} == {"branch": began, "unit": None}
    assert state.get_context("unit") == {"value": 1, "timestamp": 5, "of": "m"}, "a value is left alone"
    assert state.snapshot()["context"]["branch"]["category"] == "git"
    assert (state.open_loops[0].created_at, state.get_intention()) == (began, "compare")
    assert state.intentions[0].created_at == began


def test_W14_payloads_in_the_originals_field_names_load_whole() -> None:
    kept = copy.deepcopy(ORIGINAL)
    assert SelfHealer.validate(ORIGINAL).errors == ()
    healed = SelfHealer.recover(ORIGINAL)
    assert healed.recovery.complete
    in_original_names(healed)
    of_migrate = SelfHealer.recover(migrate(ORIGINAL))
    assert of_migrate.recovery.complete
    in_original_names(of_migrate)
    assert not StateDiffer.diff(ORIGINAL, healed)
    assert kept == ORIGINAL, "the argument is left alone"
    once = migrate(ORIGINAL)
    assert migrate(once) == once

    single = {"todos": [], "intention": "the only one"}
    assert SelfHealer.recover(single).get_intention() == "the only one"
    assert migrate(single)["intentions"] == [{"text": "the only one"}]
    empty = SelfHealer.recover({"schema_version": 1, "context": [], "todos": ["x"]})
    assert (empty.recovery.complete, empty.context, migrate({"context": []})["context"]) == (True, {}, {})
    own = {**healed.snapshot(), "intention": "a field of somebody's own"}
    assert migrate(own) == own, "where there is a list, it is none of ours"


def test_W14_the_healer_migrates() -> None:
    old = {"todos": ["pay"]}
    assert SelfHealer.migrate(old) == migrate(old)
    assert "schema_version" not in SelfHealer.migrate({"todos": ["pay"]}, 0)
    with pytest.raises(SchemaVersionError):
        SelfHealer.migrate({"schema_version": CURRENT_SCHEMA_VERSION + 1})


def add_owner(payload: dict[str, Any]) -> dict[str, Any]:
    for todo in payload["todos"]:
        todo["owner"] = "nobody"
    return payload


def rename_branch(payload: dict[str, Any]) -> dict[str, Any]:
    payload["context"]["git branch"] = payload["context"].pop("branch")
    return {**payload, "renamed": True}


def test_W14_migrations_of_ones_own(store: Store) -> None:
    state = WorkingState(store=store, thread="bot")
    state.add_todo("pay")
    state.set_context("branch", "main")
    id = state.save()

    first = WorkingState.load(id, Config(migrations=[add_owner]), store=store)
    assert first.status == "DIRTY", "changed, and nothing is written before the next save"
    assert len(list(first.history())) == 1
    assert first.snapshot()["todos"][0]["owner"] == "nobody"
    first.save()
    again = WorkingState.load(id, Config(migrations=[add_owner]), store=store)
    assert (again.status, again.snapshot()["migrations_applied"]) == ("LOADED", 1)

    both = Config(migrations=[add_owner, rename_branch])
    second = WorkingState(both, store=store, thread="bot")
    assert list(second.context) == ["git branch"]
    assert second.snapshot()["renamed"] is True
    second.save()
    assert list(second.at(1).context) == ["branch"], "older versions stay as they were"
    assert second.history(None) is not None
    with pytest.raises(SchemaVersionError, match="newer program"):
        WorkingState.load(id, Config(migrations=[add_owner]), store=store)
    assert WorkingState.load(id, store=store).status == "LOADED", "who has none of them has no say"
    old = second.fork("old", at=1)
    assert (list(old.context), old.status) == (["git branch"], "DIRTY")

    new = WorkingState(both, store=store)
    new.add_todo("of today")
    assert "owner" not in WorkingState.load(new.save(), both, store=store).snapshot()["todos"][0]


def test_W14_a_migration_that_fails_changes_nothing(store: Store) -> None:
    state = WorkingState(store=store, thread="bot")
    state.add_todo("pay")
    id = state.save()
    for broken, word in ((rename_branch, "rename_branch, failed"), (lambda payload: None, "must return")):
        config = Config(migrations=[broken])  # type: ignore[list-item]
        with pytest.raises(InvalidStateError, match=word):
            WorkingState.load(id, config, store=store)
        healed = SelfHealer.recover(state, config)
        assert (len(healed.todos), healed.recovery.complete) == (1, False), "recover() raises for nothing"
        assert healed.snapshot()["migrations_applied"] == 0
    assert WorkingState.load(id, store=store).snapshot() == state.snapshot()
    migrated = SelfHealer.migrate(state.snapshot(), migrations=[add_owner])
    assert migrated["todos"][0]["owner"] == "nobody"
    for wrong in (7, [7], "x"):
        with pytest.raises(InvalidValueError):
            Config(migrations=wrong)  # type: ignore[arg-type]


def test_W11_assigning_hooks_fails_with_a_word_about_the_argument(store: Store) -> None:
    state = WorkingState(store=store)
    state.add_todo("x")
    before = state.snapshot()
    with pytest.raises(UsageError, match="hooks="):
        state._hooks = SessionLifecycle()
    assert state.snapshot() == before
    assert state.save() == state.id


@pytest.mark.parametrize("form", [Path, str])
def test_W14_a_file_from_elsewhere_is_loaded_by_its_path(store: Store, tmp_path: Path, form: Any) -> None:
    path = tmp_path / f"{ORIGINAL['id']}.json"
    path.write_text(json.dumps(ORIGINAL))
    told: list[str] = []
    hooks = SessionLifecycle()
    hooks.register("on_load", lambda state: told.append(state.id))
    state = WorkingState.load(form(path), store=store, hooks=hooks)
    in_original_names(state)
    assert (state.id, state.status, told) == (ORIGINAL["id"], "DIRTY", [ORIGINAL["id"]])
    assert list(store.threads()) == [], "nothing is written before it is saved"
    assert state.save() == ORIGINAL["id"]
    in_original_names(WorkingState.load(state.id, store=store))
    assert WorkingState.resume(config=Config(session_id="run 7"), store=store).id == state.id
    with pytest.raises(InvalidStateError, match="already"):
        WorkingState.load(form(path), store=store)


def test_W14_a_view_of_another_place_is_loaded_by_its_path(tmp_path: Path) -> None:
    there = Config(storage_backend=StorageBackend.JSON, storage_path=tmp_path / "there")
    state = WorkingState(there)
    state.add_todo("x")
    state.save()
    here = Config(storage_path=tmp_path / "here.db")
    loaded = WorkingState.load(tmp_path / "there" / f"{state.id}.json", here)
    assert (loaded.id, loaded.todos) == (state.id, state.todos)
    assert "everthread" not in loaded.snapshot()


def test_W14_a_file_that_cannot_be_read_whole_is_refused(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with pytest.raises(StateNotFoundError, match="No such file"):
        WorkingState.load(path, store=store)
    for text in ("{ half a fi", "[" * 100_000, '{"todos": [{"content": 7}]}', "[]"):
        path.write_text(text)
        with pytest.raises(StateCorruptedError, match=r"state\.json"):
            WorkingState.load(path, store=store)
    path.write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(SchemaVersionError):
        WorkingState.load(path, store=store)
    path.write_text(json.dumps({"todos": ["pay"]}))
    assert uuid.UUID(WorkingState.load(path, store=store).id), "a name that is no id: it gets one"
    assert list(store.threads()) == []


def test_W1_async_on_every_store(url: str) -> None:
    async def main() -> None:
        async with everthread.open_async(str(url)) as store:
            async with AsyncWorkingState(store=store, thread="bot", auto_save=True) as state:
                todo = await state.add_todo("pay", priority="high")
                await asyncio.gather(
                    state.complete_todo(todo),
                    state.set_context("branch", "main"),
                    state.set_intention("compare"),
                    state.add_constraint("never"),
                )
                await state.resolve_open_loop(await state.add_open_loop("Ann owes us a file"))
            others = [await AsyncWorkingState(store=store, thread="bot") for _ in range(3)]
            await asyncio.gather(*(other.set_context(str(n), n) for n, other in enumerate(others)))
            await asyncio.gather(*(other.save() for other in others))
            loaded = await AsyncWorkingState.load(state.id, store=store)
            assert (loaded.todos[0].status, loaded.get_intention()) == ("completed", "compare")
            assert (sorted(loaded.context), len(loaded.constraints)) == (["0", "1", "2", "branch"], 1)
            assert (await AsyncWorkingState.resume(store=store)).id == state.id
            fork = await loaded.fork("what-if", at=1)
            assert fork.todos[0].status == "pending"
            await fork.add_todo("of the fork")
            await fork.save()
            assert await loaded.merge(fork)
            await loaded.rewind(1)
            assert [version.kind async for version in loaded.history(2)] == ["rewind", "merge"]
        # On a store of its own, by its URL.
        async with AsyncWorkingState(store=str(url), thread="bot") as again:
            assert [todo.content for todo in again.todos] == ["pay"]

    asyncio.run(main())


def test_W2_repeating_what_is_so_already_writes_no_version(store: Store) -> None:
    changes: list[str] = []
    hooks = SessionLifecycle()
    hooks.register("on_change", lambda state: changes.append("change"))
    state = WorkingState(Config(auto_save=True), store=store, thread="bot", hooks=hooks)
    todo = state.add_todo("x", priority="low")
    for move in (state.start_todo, state.complete_todo, state.cancel_todo, state.reopen_todo):
        moved = move(todo)
        before, told = state.version, len(changes)
        assert move(todo) == moved
        assert state.update_todo(todo) == moved
        assert state.update_todo(todo, content="x", priority="low") == moved
        assert (state.version, len(changes)) == (before, told)
    assert state.update_todo(todo, content="y").content == "y"
    assert state.version != before
    past = state.at(1)
    with pytest.raises(InvalidStateError, match="read only"):
        past.reopen_todo(todo)
