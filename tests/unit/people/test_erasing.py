"""Erasure beyond one process and one moment: copies of before and after, restores, others at work."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import apsw
import pytest

import everthread
from everthread import Erased, Personal
from everthread.errors import (
    ErasedError,
    InvalidValueError,
    KeyringError,
    LegalHoldError,
    SealError,
    StateCorruptedError,
)
from everthread.keyring.keyring import FileKeyring, MemoryKeyring
from everthread.people.erase import Notes
from everthread.people.holds import Holds
from everthread.people.report import Finding
from everthread.stores.contract import DELETED, FINISHED, ErasedKey
from everthread.threads.runtime import Runtime
from tests.properties.erasure import belongings, found_in

KINDS = ["sqlite", "files"]


def open_at(kind: str, folder: Path, keys: Path | None = None, **options: Any) -> everthread.Store:
    url = f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}/store"
    return everthread.open(url, keyring=str(keys or folder / "keys"), durability="process", **options)


def fill(store: everthread.Store) -> everthread.Thread:
    thread = store.thread("a")
    thread.state["ann"] = Personal("ann", "ann's secret " * 20)
    thread.state["bob"] = Personal("bob", "bob's secret")
    thread.commit()
    store.users.set("ann", "city", "Paris")
    return thread


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "other", ["another keyring", "a lost keyring", "one that knows somebody of this name"]
)
def test_a_keyring_that_lacks_the_keys_cant_say_that_there_is_nothing(
    tmp_path: Path, kind: str, other: str
) -> None:
    keys = tmp_path / "other"
    with open_at(kind, tmp_path) as store:
        fill(store)
    if other == "a lost keyring":
        shutil.rmtree(tmp_path / "keys")
        keys = tmp_path / "keys"
    elif other == "another keyring":
        FileKeyring(keys).key_for("cat")
    else:
        FileKeyring(keys).key_for("ann")
    with open_at(kind, tmp_path, keys) as store:
        for dry_run in (True, False, False):
            report = store.erase("ann", dry_run=dry_run)
            assert (report.unopened, report.complete, bool(report)) == (3, False, False)
            assert not report.is_signed()
            assert "lacks the keys of 3 sealed values in this store" in report.summary()
    assert keys.exists() == (other != "a lost keyring"), "looking makes no keyring"
    if other != "a lost keyring":
        with open_at(kind, tmp_path) as store:
            report = store.erase("ann")
            assert (report.sealed_values, report.unopened, bool(report)) == (2, 0, True)
            again = store.erase("ann")
            assert (again.unopened, bool(again), again.is_signed()) == (0, True, True)


@pytest.mark.parametrize("kind", ["postgres_url", "valkey_url"])
def test_servers_count_what_a_keyring_lacks_the_keys_of(request: pytest.FixtureRequest, kind: str) -> None:
    url = request.getfixturevalue(kind)
    keyring = MemoryKeyring()
    with everthread.open(url, durability="process", keyring=keyring) as store:
        fill(store)
    with pytest.warns(UserWarning, match="share one keyring"):
        store = everthread.open(url, durability="process", keyring="memory:")
    with store:
        store.thread("b").update(lambda draft: draft.state.update(x=Personal("cat", "known here")))
        report = store.erase("ann")
        assert (report.unopened, bool(report), report.is_signed()) == (3, False, False)
    with everthread.open(url, durability="process", keyring=keyring) as store:
        assert store.erase("ann").sealed_values == 2


def test_a_value_of_two_people_of_whom_one_is_unknown_is_counted(tmp_path: Path) -> None:
    keyring = MemoryKeyring()
    with everthread.open("memory:", keyring=keyring) as store:
        store.thread("a").update(lambda draft: draft.state.update(x=Personal(["ann", "bob"], "both")))
        lacking = MemoryKeyring()
        lacking.take_in(keyring.lend(keyring.key_ids("bob")))
        store.core.vault._keyring = lacking
        assert store.erase("ann").unopened == 1
        assert store.erase("bob").sealed_values == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_receipt_outlives_a_restored_backup(tmp_path: Path, kind: str) -> None:
    with open_at(kind, tmp_path) as store:
        fill(store)
        store.backup(tmp_path / "backup")
        first = store.erase("ann")
        for _ in range(3):
            store.restore(tmp_path / "backup")
            found = store.erasure_reports()
            assert found[0] == first
            assert found[0].is_signed()
            assert [report.erasure for report in found] == [first.erasure] * len(found)
            assert len(found) <= 2
            assert isinstance(store.thread("a").state["ann"], Erased)
        assert store.verify().ok


# ── copies of before and after ───────────────────────────────────────────────────────────────────


@pytest.fixture(params=KINDS)
def copies(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Opens a store of before or after with a keyring of before or after, and the master key of either."""
    kind: str = request.param
    live = tmp_path / "live"
    live.mkdir()
    with open_at(kind, live) as store:
        fill(store)
    shutil.copytree(live, tmp_path / "before")
    with open_at(kind, live) as store:
        assert store.erase("ann")
    shutil.copytree(live, tmp_path / "after")
    made = iter(range(100))

    def combined(store: str, keys: str, master: str | None = None) -> everthread.Store:
        folder = tmp_path / str(next(made))
        shutil.copytree(tmp_path / store, folder)
        shutil.rmtree(folder / "keys")
        shutil.copytree(tmp_path / keys / "keys", folder / "keys")
        if master is not None:
            shutil.copyfile(tmp_path / master / "keys" / "master.key", folder / "keys" / "master.key")
        return open_at(kind, folder)

    return combined


def test_copies_of_before_show_the_value(copies: Any) -> None:
    """The control: were it not for the erasure, all of this could be read."""
    with copies("before", "before") as store:
        assert store.thread("a").state["ann"].value == "ann's secret " * 20
        assert store.users.get("ann", "city") == "Paris"


@pytest.mark.parametrize(("content", "keys"), [("after", "after"), ("before", "after"), ("after", "before")])
def test_no_copy_of_after_shows_it(copies: Any, content: str, keys: str) -> None:
    with copies(content, keys) as store:
        thread = store.thread("a")
        assert isinstance(thread.state["ann"], Erased)
        assert thread.state["bob"].value == "bob's secret", "everybody else is readable"
        assert store.users.get("ann", "city") is None
        thread.state["ann"] = Personal("ann", "back")
        thread.commit()
        assert thread.state["ann"].value == "back"
        assert isinstance(thread.at(1).state["ann"], Erased)
        assert store.verify()


@pytest.mark.parametrize("content", ["before", "after"])
def test_the_old_keyring_under_the_new_master_key_opens_nothing(copies: Any, content: str) -> None:
    with copies(content, "before", "after") as store:
        thread = store.thread("a")
        for name in ("ann", "bob"):
            found = thread.state[name]
            if not isinstance(found, Erased):
                with pytest.raises((KeyringError, SealError)):
                    _ = found.value
        assert isinstance(thread.state.plain(), dict), "the rest of a document is read all the same"
        with pytest.raises(KeyringError):
            thread.state["x"] = Personal("ann", "new")
        thread.state["plain"] = 1
        assert thread.commit() is not None, "what isn't sealed needs no keyring"


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_of_before_that_is_copied_back_is_swept(kind: str, tmp_path: Path) -> None:
    """Nothing opens with the keyring of after; what came back is deleted as soon as something is restored."""
    live = tmp_path / "live"
    live.mkdir()
    with open_at(kind, live) as store:
        fill(store)
        theirs = {name: needle for name, needle in belongings(store, "ann").items() if "sealed" in name}
        store.backup(tmp_path / "backup")
        assert store.erase("ann")
    other = tmp_path / "other"
    other.mkdir()
    with open_at(kind, other, live / "keys") as store:
        store.restore(tmp_path / "backup")
        assert isinstance(store.thread("a").state["ann"], Erased)
        assert store.thread("a").state["bob"].value == "bob's secret"
        assert store.users.get("ann", "city") is None
        assert [entry.phase for entry in store.core.backend.erasures()] == [FINISHED]
        assert not found_in(theirs, other)


@pytest.mark.parametrize("kind", KINDS)
def test_twenty_restores_bring_nobody_back(kind: str, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with open_at(kind, tmp_path) as store:
        thread = store.thread("a")
        people = [f"person {number}" for number in range(8)]
        erased: set[str] = set()
        for round_ in range(20):
            thread = store.thread("a")
            for name in people:
                if name not in erased:
                    thread.state[name] = Personal(name, f"{name} in round {round_}")
                    store.users.set(name, "seen", round_)
            thread.commit()
            store.backup(tmp_path / f"backup {round_}")
            if len(erased) < len(people) - 2 and rng.random() < 0.5:
                name = rng.choice([each for each in people if each not in erased])
                assert store.erase(name)
                erased.add(name)
            store.restore(tmp_path / f"backup {rng.randrange(round_ + 1)}")
            state = store.thread("a").state
            for name in people:
                if name in erased:
                    assert not state[name], f"{name} came back"
                    assert store.users.keys(name) == []
                else:
                    assert state[name].value.startswith(name)
                    assert store.users.keys(name) == ["seen"]
            assert store.core.backend.erasures(True) == []
        assert len(erased) > 2


# ── others who have the store open ───────────────────────────────────────────────────────────────

OTHER = """
    import sys
    import everthread
    from everthread import Erased, Personal, ErasedError

    store = everthread.open(sys.argv[1], keyring=sys.argv[2], durability="process")
    thread, copying = store.thread("a"), store.thread("a")
    value = thread.state["ann"]
    assert value.value.startswith("ann's secret")
    copying.state["copy"] = copying.state["ann"]
    fresh = store.thread("a").state["ann"]
    print("ready", flush=True)
    sys.stdin.readline()
    assert isinstance(thread.state["ann"], Erased), thread.state["ann"]
    assert isinstance(store.thread("a").state["ann"], Erased)
    assert thread.state["bob"].value == "bob's secret"
    for verb in (copying.commit, lambda: store.thread("b").state.update(x=value), lambda: fresh.value):
        try:
            verb()
            raise SystemExit(f"{verb} went through")
        except everthread.SealError:
            pass
    copying.discard()
    thread.refresh()
    thread.state["ann"] = Personal("ann", "she came back")
    thread.commit()
    print("done", flush=True)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_open_handles_in_another_process(kind: str, tmp_path: Path) -> None:
    with open_at(kind, tmp_path) as store:
        fill(store)
        theirs = belongings(store, "ann")
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(OTHER), store.url, str(tmp_path / "keys")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", child.stderr and child.stderr.read()
            assert store.erase("ann")
            assert not found_in(theirs, tmp_path)
            out, err = child.communicate("\n", timeout=60)
            assert out == "done\n", err
        finally:
            child.kill()
            child.wait()
        tokens = {name: needle for name, needle in theirs.items() if "sealed" in name}
        assert not found_in(tokens, tmp_path)
        assert store.thread("a").state["ann"].value == "she came back"


READER = """
    import sys
    import apsw

    db = apsw.Connection(sys.argv[1])
    db.execute("BEGIN")
    count = db.execute("SELECT count(*) FROM sealed").fetchall()[0][0]
    print("ready", flush=True)
    sys.stdin.readline()
    assert db.execute("SELECT count(*) FROM sealed").fetchall()[0][0] == count, "its snapshot"
    db.execute("COMMIT")
    print("done", flush=True)
    sys.stdin.readline()
"""


def test_a_reader_inside_a_transaction_delays_the_purge(tmp_path: Path) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        theirs = belongings(store, "ann")
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(READER), str(tmp_path / "store.db")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            assert child.stdout is not None
            assert child.stdin is not None
            assert child.stdout.readline() == "ready\n"
            told: list[str] = []
            report = store.erase("ann", timeout_s=0.3, progress=lambda what, part: told.append(what))
            assert not report
            assert not report.complete
            assert "reader" in report.waiting[0]
            assert "waiting for readers" in told
            assert report.is_signed(), "also a report of what isn't complete"
            assert [e.phase for e in store.core.backend.erasures(True)] == [DELETED]
            assert isinstance(store.thread("a").state["ann"], Erased), "nobody can read her meanwhile"
            assert any("sealed" in name for name in found_in(theirs, tmp_path)), "her bytes are in the log"
            thread = store.thread("a")
            thread.state["more"] = 1
            thread.commit()
            with open_at("sqlite", tmp_path) as again:
                assert again.core.backend.erasures(True) != [], "not tried again at every open"
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
            report = store.erase("ann")
            assert report, "she has no key any more, and is found by what was noted"
            assert report.sealed_values == 2
            assert store.core.backend.erasures(True) == []
            assert not found_in(theirs, tmp_path)
        finally:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream is not None:
                    stream.close()


@pytest.mark.parametrize("kind", KINDS)
def test_writers_go_on_while_somebody_is_erased(kind: str, tmp_path: Path) -> None:
    """Others commit values of hers all the time: what came before is erased, what comes later is new."""
    script = """
        import sys
        import everthread
        from everthread import ErasedError, Personal

        store = everthread.open(sys.argv[1], keyring=sys.argv[2], durability="process")
        thread, number, refused = store.thread(sys.argv[3]), 0, 0
        print("ready", flush=True)
        while number < 400:
            number += 1
            try:
                thread.state["ann"] = Personal("ann", f"canary {number} " * 30)
                thread.messages.append({"id": str(number), "content": Personal(["bob", "ann"], "x" * 200)})
                thread.commit()
            except ErasedError:
                refused += 1
                thread.discard()
        print(refused, flush=True)
    """
    with open_at(kind, tmp_path) as store:
        fill(store)
        children = [
            subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(script), store.url, str(tmp_path / "keys"), name],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            for name in ("w1", "w2")
        ]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for _ in range(3):
            report = store.erase("ann", timeout_s=20.0)
            assert report.residues == 0, report
            time.sleep(0.05)
        for child in children:
            assert child.stdout is not None
            # Not communicate(): it doesn't know what readline() may have read already.
            with child.stdout as output:
                assert output.read().strip().isdigit()
            assert child.wait(120) == 0
        theirs = belongings(store, "ann")
        assert store.erase("ann", timeout_s=20.0)
        assert not found_in(theirs, tmp_path)
        for name in ("w1", "w2"):
            thread = store.thread(name)
            assert len(thread.messages) > 0
            for version in thread.history(limit=40):
                assert not thread.at(version).state["ann"]
            assert not any(item["content"] for item in thread.messages)
        assert store.verify()


# ── what is wrong with it ────────────────────────────────────────────────────────────────────────


def test_a_wrong_master_key_erases_nothing(tmp_path: Path) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store)
    (tmp_path / "keys" / "master.key").write_bytes(bytes(32))
    with open_at("sqlite", tmp_path) as store:
        with pytest.raises(KeyringError, match="master key"):
            store.erase("ann")
        assert store.core.backend.erasures() == []
        thread = store.thread("a")
        assert set(thread.state) == {"ann", "bob"}
        thread.state["plain"] = 1
        thread.commit()
        thread.fork("b")
        thread.diff(1, 2)


def test_another_keyring_doesn_t_finish_what_it_can_t_destroy(tmp_path: Path) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        key_ids = store.core.vault.keyring.key_ids("ann")
        store.core.backend.note_erasures([ErasedKey(key_id=k, phase=1, erasure=b"e" * 16) for k in key_ids])
    with open_at("sqlite", tmp_path, tmp_path / "other") as store:
        assert [entry.phase for entry in store.core.backend.erasures(True)] == [1]
    with open_at("sqlite", tmp_path) as store:
        assert store.core.backend.erasures(True) == []
        assert FileKeyring(tmp_path / "keys").key_ids("ann") == []
        assert isinstance(store.thread("a").state["ann"], Erased)


def test_a_hold_and_an_erasure_at_the_same_moment(tmp_path: Path) -> None:
    """Whichever comes first: the other is refused."""
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        backend = store.core.backend
        original = backend.note_erasures

        def hold_first(keys: Any) -> None:
            backend.note_erasures = original
            with pytest.raises(ErasedError):
                store.hold("ann", "too late")
            original(keys)

        backend.note_erasures = hold_first
        assert store.erase("ann")
        store.hold("ann", "in time")
        with pytest.raises(LegalHoldError, match="in time"):
            store.erase("ann")
        cells = backend.cells("\0people", "", None, 10)
        assert all(b"ann" not in cell.value and "ann" not in name for name, cell in cells)


def test_namespaces_are_erased_together(tmp_path: Path) -> None:
    keyring = MemoryKeyring()
    url = f"sqlite:///{tmp_path}/store.db"
    stores = [everthread.open(url, namespace=name, keyring=keyring) for name in ("", "tenant")]
    for store in stores:
        fill(store)
    report = stores[0].erase("ann")
    assert (report.sealed_values, report.user_values) == (4, 2)
    for store in stores:
        assert isinstance(store.thread("a").state["ann"], Erased)
        assert store.users.get("ann", "city") is None
        assert store.thread("a").state["bob"].value == "bob's secret"
        store.close()


def test_damage_to_whose_value_it_is_is_found(tmp_path: Path) -> None:
    """Erasing goes by it: a flipped bit would keep somebody's bytes."""
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        assert store.verify()
    db = apsw.Connection(str(tmp_path / "store.db"))
    ((value, keys),) = db.execute("SELECT value, keys FROM sealed LIMIT 1").fetchall()
    db.execute("UPDATE sealed SET keys = ? WHERE value = ?", (bytes([keys[0] ^ 1]) + keys[1:], value))
    db.close()
    with open_at("sqlite", tmp_path) as store:
        assert "fails its checksum" in str(store.verify().damage)


def test_who_was_erased_elsewhere_is_looked_for_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keyring that many stores share knows many destroyed keys; a store is looked through once for all."""
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        keyring = store.core.vault.keyring
        for number in range(50):
            keyring.key_for(f"elsewhere {number}")
            keyring.destroy(f"elsewhere {number}")
        keyring.destroy("ann")
        backend, calls = store.core.backend, []
        asked = backend.sealed_under
        monkeypatch.setattr(backend, "sealed_under", lambda *args: (calls.append(args), asked(*args))[1])
        assert store.erase("nobody at all").elsewhere == 2
        # Once for what they sealed, once for what is under keys that nobody here knows.
        assert len([keys for keys, *_ in calls if keys and len(keys) > 1]) <= 4
        assert len(calls) < 10
        assert isinstance(store.thread("a").state["ann"], Erased)


def test_reports_are_read_back_and_forgeries_noticed(tmp_path: Path) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        report = store.erase("ann")
    plain = report.plain()
    again = everthread.ErasureReport.from_plain(plain)
    assert again == report
    assert again.is_signed(report.public_key)
    assert "ann" not in str(plain).replace("can't", "")
    for field, value in (("complete", False), ("unreached", []), ("residues", 1), ("key_ids", [])):
        assert not everthread.ErasureReport.from_plain({**plain, field: value}).is_signed()
    with pytest.raises(everthread.InvalidValueError):
        everthread.ErasureReport.from_plain({"store": 1})
    assert any("master key" in words for words in report.unreached) is False


def test_a_master_key_that_stays_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_MASTER_KEY", "ab" * 32)
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        report = store.erase("ann")
    assert report
    assert not report.master_rotated
    assert any("master key" in words for words in report.unreached)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_salvaged_brings_nobody_back(kind: str, tmp_path: Path) -> None:
    with open_at(kind, tmp_path) as store:
        fill(store)
        key_ids = store.core.vault.keyring.key_ids("ann")
        # As far as it gets before a kill: the keys are destroyed, the values are still there.
        store.core.backend.note_erasures(
            [ErasedKey(key_id=k, phase=1, erasure=b"e" * 16, noted_us=5) for k in key_ids]
        )
        store.core.vault.keyring.destroy_keys(key_ids)
        ledger = store.core.backend.erasures()
        url = store.url
    target = f"sqlite:///{tmp_path}/salvaged.db"
    everthread.salvage(url, target)
    with everthread.open(target, keyring=str(tmp_path / "keys")) as store:
        assert [entry.key_id for entry in store.core.backend.erasures()] == [e.key_id for e in ledger]
        assert store.core.backend.sealed_under(key_ids, b"", 9) == []
        assert isinstance(store.thread("a").state["ann"], Erased)
        assert store.thread("a").state["bob"].value == "bob's secret"
        assert store.core.backend.erasures(True) == [], "and it is finished there"


def test_other_stores_of_the_keyring_purge_their_own(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    keys = tmp_path / "keys"
    with open_at("sqlite", first, keys) as one, open_at("sqlite", second, keys) as two:
        fill(one)
        fill(two)
        theirs = {name: needle for name, needle in belongings(two, "ann").items() if "sealed" in name}
        assert one.erase("ann")
        assert isinstance(two.thread("a").state["ann"], Erased), "nothing of hers opens there"
        assert found_in(theirs, second), "but the bytes are there"
        report = two.erase("ann")
        assert report
        # The keyring has forgotten which keys were hers: what went isn't said to be hers, but counted.
        assert (report.key_ids, report.sealed_values, report.elsewhere) == ((), 0, 2)
        assert "2 values of persons who had been erased through another store" in report.summary()
        (went,) = two.erasure_reports()
        assert (went.sealed_values, went.user_values, bool(went)) == (2, 1, True)
        assert not found_in(theirs, second)
        assert two.thread("a").state["bob"].value == "bob's secret"


@pytest.mark.parametrize("kind", KINDS)
def test_erasing_anybody_purges_who_was_erased_through_another_store(tmp_path: Path, kind: str) -> None:
    with open_at(kind, tmp_path) as store:
        fill(store)
        keyring, backend = store.core.vault.keyring, store.core.backend
        key_ids = keyring.destroy("ann")
        for _ in range(2):
            preview = store.erase("bob", dry_run=True)
            assert preview.elsewhere == 2
            assert "2 values under 1 key of persons who were erased through another store would go, too" in (
                preview.summary()
            )
            assert backend.erasures() == [], "a preview changes nothing"
        report = store.erase("bob")
        assert (report.elsewhere, bool(report)) == (0, True), "it is about Bob"
        assert backend.sealed_under(key_ids, b"", 9) == []
        assert {each.key_ids for each in store.erasure_reports()} == {
            report.key_ids,
            tuple(key_id.hex() for key_id in key_ids),
        }
        assert store.erase("cat", dry_run=True).summary() == (
            "nothing is known of this person here; nothing to erase"
        )


def test_a_place_with_one_of_something_says_so() -> None:
    one = Finding("here", "pieces of sealed bytes or keys", 1, "left")
    assert str(one) == "left: 1 piece of sealed bytes or keys in here"
    assert str(Finding("here", "keys", 2, "destroyed")) == "destroyed: 2 keys in here"
    assert str(Finding("here", "database rewritten", 1, "done")) == "done: 1 database rewritten in here"


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_is_about_the_person_who_was_asked_for(tmp_path: Path, kind: str) -> None:
    """What others left unfinished is finished on the way, and reported by its own report."""
    with open_at(kind, tmp_path) as store:
        fill(store)
        keyring, backend = store.core.vault.keyring, store.core.backend
        (key_id,) = keyring.key_ids("ann")
        note = Notes(token=keyring.token("ann")).pack()
        backend.note_erasures([ErasedKey(key_id=key_id, phase=1, erasure=b"e" * 16, note=note)])
        for _ in range(2):
            report = store.erase("nobody")
            assert (report.key_ids, report.sealed_values, report.places) == ((), 0, ())
            assert report.summary() == "nothing is known of this person here; nothing to erase"
            assert report
            assert report.is_signed()
        assert backend.erasures(True) == []
        (went,) = store.erasure_reports()
        assert (went.key_ids, went.sealed_values) == ((key_id.hex(),), 2)


@pytest.mark.parametrize("timeout", ["x", None, -1, float("nan"), True, b"1"])
def test_a_time_that_is_none_erases_nothing(tmp_path: Path, timeout: Any) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        with pytest.raises(InvalidValueError) as refused:
            store.erase("ann", timeout_s=timeout)
        assert refused.value.path == "timeout_s"
        assert store.core.backend.erasures() == []
        assert store.thread("a").state["ann"].value.startswith("ann's secret")
        assert store.erase("ann", timeout_s=0)


@pytest.mark.parametrize("reason", [5, None, b"x", "x" * 1001, "\ud800"])
def test_a_reason_that_can_t_be_kept_is_refused(tmp_path: Path, reason: Any) -> None:
    """One that can't be read back would bar the person from ever being erased."""
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        with pytest.raises(InvalidValueError):
            store.hold("ann", reason)
        store.hold("ann", "case 5\nin two lines")
        with pytest.raises(InvalidValueError):
            store.release_hold("ann", reason)
        with pytest.raises(LegalHoldError, match="case 5"):
            store.erase("ann")
        store.release_hold("ann")
        assert store.erase("ann")


def test_a_damaged_record_of_a_hold_erases_nothing(tmp_path: Path) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        store.hold("ann", "case 6")
        backend = store.core.backend
        ((name, cell),) = backend.cells("\0people", "person/", None, 10)
        backend.swap("\0people", name, cell.revision, b"\x81\xa5state\x05", 0)
        with pytest.raises(StateCorruptedError, match="legal hold"):
            store.erase("ann")
        assert store.thread("a").state["ann"].value.startswith("ann's secret")


def test_a_hold_after_an_erasure_that_never_began(tmp_path: Path) -> None:
    """Whoever wanted to erase died before anything was noted: after a while a hold is possible again."""
    now_us = [1_800_000_000_000_000]
    with open_at("sqlite", tmp_path, runtime=Runtime(now_us=lambda: now_us[0])) as store:
        fill(store)
        key_ids = store.core.vault.keyring.key_ids("ann")
        Holds(store.core).begin_erasing(key_ids)
        with pytest.raises(ErasedError):
            store.hold("ann", "case 3")
        now_us[0] += 61_000_000
        store.hold("ann", "case 3")
        with pytest.raises(LegalHoldError):
            store.erase("ann")


async def _commit_while_it_waits(url: str, keys: str, reader: apsw.Connection) -> list[str]:
    async with everthread.open_async(url, keyring=keys, durability="process") as store:
        order: list[str] = []
        told: list[str] = []

        async def erase() -> None:
            report = await store.erase("ann", timeout_s=60.0, progress=lambda what, part: told.append(what))
            order.append("erased" if report else "waited")

        async def commit() -> None:
            thread = await store.thread("b")
            while "waiting for readers" not in told:  # noqa: ASYNC110 - it is another thread that tells
                await asyncio.sleep(0.001)
            for number in range(5):
                thread.state["n"] = number
                await thread.commit()
            order.append("committed")
            reader.execute("COMMIT")

        await asyncio.gather(erase(), commit())
        return order


def test_async_commits_go_on_while_a_purge_waits_for_readers(tmp_path: Path) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        url = store.url
    reader = apsw.Connection(str(tmp_path / "store.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sealed").fetchall()
    order = asyncio.run(_commit_while_it_waits(url, str(tmp_path / "keys"), reader))
    assert order == ["committed", "erased"]
    reader.close()
    with open_at("sqlite", tmp_path) as store:
        assert store.erase("ann")
