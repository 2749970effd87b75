"""Reports that are true whoever did what: at the same time, through another store, or after a kill."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Personal
from everthread.people import erase
from everthread.people.erase import Claim, Notes
from everthread.stores.contract import DELETED, DESTROYED, NOTED, ErasedKey

KINDS = ["sqlite", "files"]


def open_at(kind: str, folder: Path, keys: Path | None = None) -> everthread.Store:
    folder.mkdir(exist_ok=True)
    url = f"sqlite:///{folder}/store.db" if kind == "sqlite" else f"file://{folder}/store"
    return everthread.open(url, keyring=str(keys or folder / "keys"), durability="process")


def fill(store: everthread.Store, versions: int = 1) -> None:
    thread = store.thread("a")
    for number in range(versions):
        thread.state["ann"] = Personal("ann", f"ann's secret {number} " * 20)
        thread.state["bob"] = Personal("bob", "bob's secret")
        thread.commit()
    store.users.set("ann", "city", "Paris")
    store.users.set("ann", "street", "Rue Neuve")


def outcomes(report: everthread.ErasureReport) -> dict[tuple[str, str], int]:
    return {(place.what, place.outcome): place.count for place in report.places}


class Killed(BaseException):
    """Nothing goes on after it, as after a kill."""


# ── through another store ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_the_report_of_a_second_store_is_as_true_as_that_of_the_first(tmp_path: Path, kind: str) -> None:
    keys = tmp_path / "keys"
    with open_at("sqlite", tmp_path / "one", keys) as one, open_at(kind, tmp_path / "two", keys) as two:
        fill(one)
        fill(two)
        first = one.erase("ann")
        two.gc()
        (report,) = two.erasure_reports()
    assert (report.sealed_values, report.user_values) == (first.sealed_values, first.user_values) == (3, 2)
    assert report.sealed_bytes == first.sealed_bytes > 0
    assert report.needles >= report.sealed_values, "pieces of each were noted before it was deleted"
    assert (report.residues, report.complete) == (0, True)
    told = outcomes(report)
    assert told["keys", "destroyed before"] == 1
    assert ("keys", "destroyed") not in told
    assert report.survivors == told["surviving keys", "left as they were"] == first.survivors == 1
    assert not report.master_rotated, "that was done by the first one"
    assert not any("comes from outside" in words for words in report.unreached)
    looked = [place.where for place in report.places if place.outcome == "looked through"]
    assert looked, "where the values were"
    assert not any("keys" in where for where in looked), "there was nothing to look for in the keyring"


def test_bytes_that_are_left_by_a_second_store_are_found(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    with open_at("files", tmp_path / "one", keys) as store:
        fill(store)
        backend, keyring = store.core.backend, store.core.vault.keyring
        (_, _, data), *_ = backend.sealed_under(keyring.key_ids("ann"), b"", 9)
        keyring.destroy("ann")
        (tmp_path / "one" / "store" / "forgotten").write_bytes(b"before" + data + b"after")
        store.gc()
        (report,) = store.erasure_reports()
    assert report.residues
    assert not report


def test_who_noted_no_pieces_says_that_nothing_was_looked_for(tmp_path: Path) -> None:
    """As an archive that tells of an erasure leaves it: deleted, and nothing known of what it was."""
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        backend, keyring = store.core.backend, store.core.vault.keyring
        (key_id,) = keyring.destroy("ann")
        backend.drop_sealed([key_id])
        backend.note_erasures([ErasedKey(key_id=key_id, phase=DELETED, erasure=b"e" * 16)])
        store.erase("nobody")
        (report,) = store.erasure_reports()
    assert report.needles == 0
    assert any("weren't looked for" in words for words in report.unreached)
    assert not any(place.outcome == "looked through" for place in report.places)
    assert outcomes(report)["keys", "destroyed before"] == 1
    assert report.survivors == 1


# ── at the same time ─────────────────────────────────────────────────────────────────────────────

ERASE = """
    import sys, time
    import everthread
    with everthread.open(sys.argv[1], keyring=sys.argv[2], durability="process") as store:
        print("ready", flush=True)
        sys.stdin.readline()
        report = store.erase("ann")
        print(report.erasure, report.sealed_values, report.unopened, report.elsewhere, report.complete)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_erase_the_same_person_have_one_report(tmp_path: Path, kind: str) -> None:
    with open_at(kind, tmp_path) as store:
        fill(store, 60)
        url = store.url
    command = [sys.executable, "-c", textwrap.dedent(ERASE), url, str(tmp_path / "keys")]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for each in running:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    answers = []
    for each in running:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    for each in running:
        answers.append(each.communicate(timeout=60)[0].split())
        assert each.returncode == 0
    with open_at(kind, tmp_path) as store:
        (report,) = store.erasure_reports()
        assert (report.sealed_values, report.complete, report.is_signed()) == (62, True, True)
    # Who came when all was done knows nothing of her.
    late = ["0", "0", "0", "True"]
    assert all(answer in ([report.erasure, "62", "0", "0", "True"], late) for answer in answers)
    assert [report.erasure, "62", "0", "0", "True"] in answers


@pytest.mark.parametrize("verb", ["erased", "note_erasures", "sealed_under", "drop_sealed", "purge"])
@pytest.mark.parametrize("kind", KINDS)
def test_who_comes_second_gives_the_report_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, verb: str
) -> None:
    """The second one comes while the first one is about to do something."""
    with open_at(kind, tmp_path) as one, open_at(kind, tmp_path) as two:
        fill(one, 3)
        done: list[everthread.ErasureReport] = []
        second = threading.Thread(target=lambda: done.append(two.erase("ann")))
        known = getattr(one.core.backend, verb)

        def slow(*args: Any) -> Any:
            monkeypatch.setattr(one.core.backend, verb, known)
            second.start()
            second.join(0.3)
            return known(*args)

        monkeypatch.setattr(one.core.backend, verb, slow)
        first = one.erase("ann")
        second.join()
        (kept,) = one.erasure_reports()
    assert first == done[0] == kept
    assert (kept.sealed_values, kept.user_values, kept.complete) == (5, 2, True)


def test_tasks_that_erase_the_same_person_have_one_report(tmp_path: Path) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store, 3)
        url = store.url

    async def both() -> list[everthread.ErasureReport]:
        async with await everthread.open_async(url, keyring=str(tmp_path / "keys")) as store:
            found = await asyncio.gather(*(store.erase("ann") for _ in range(3)))
            (kept,) = await store.erasure_reports()
            return [kept, *found]

    kept, *found = asyncio.run(both())
    assert (kept.sealed_values, kept.complete) == (5, True)
    # Who came when all was done knows nothing of her.
    assert kept in found
    assert all(report == kept or (report.erasure, report.complete) == ("", True) for report in found)


def test_who_doesn_t_wait_counts_nothing(tmp_path: Path) -> None:
    with open_at("sqlite", tmp_path) as store:
        fill(store)
        core = store.core
        (key_id,) = core.vault.keyring.key_ids("ann")
        note = Notes(token=core.vault.keyring.token("ann")).pack()
        core.backend.note_erasures([ErasedKey(key_id=key_id, phase=NOTED, erasure=b"e" * 16, note=note)])
        claim = Claim(core, (b"e" * 16).hex())
        assert claim.take(0.0)
        report = store.erase("ann", timeout_s=0.0)
        assert (report.complete, report.sealed_values, report.places, report.unopened) == (False, 0, (), 0)
        assert "another process" in report.summary()
        assert report.erasure == (b"e" * 16).hex()
        assert store.erasure_reports() == []
        # As if the call that had it ended without a word.
        claim.end()
        report = store.erase("ann", timeout_s=0.0)
        assert (report.complete, report.sealed_values) == (True, 3)


def test_who_fails_lets_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_at("sqlite", tmp_path) as one, open_at("sqlite", tmp_path) as two:
        fill(one)

        def fail(*_: Any) -> Any:
            raise everthread.StoreBusyError("somebody writes")

        monkeypatch.setattr(one.core.backend, "purge", fail)
        with pytest.raises(everthread.StoreBusyError):
            one.erase("ann")
        assert not erase._RUNNING
        report = two.erase("ann", timeout_s=0.0)
        assert (report.complete, report.sealed_values, report.user_values) == (True, 3, 2)


def test_two_stores_don_t_both_say_that_they_destroyed_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tmp_path / "keys"
    with open_at("sqlite", tmp_path / "one", keys) as one, open_at("files", tmp_path / "two", keys) as two:
        fill(one)
        fill(two)
        keyring = one.core.vault.keyring
        known = keyring.destroy_keys

        def late(key_ids: Any) -> Any:
            others.append(two.erase("ann"))
            return known(key_ids)

        others: list[everthread.ErasureReport] = []
        monkeypatch.setattr(keyring, "destroy_keys", late)
        report = one.erase("ann")
    assert outcomes(others[0])["keys", "destroyed"] == 1
    assert outcomes(report)["keys", "destroyed before"] == 1


# ── after a kill ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", [NOTED, DESTROYED])
def test_user_values_that_were_deleted_before_a_kill_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, phase: int
) -> None:
    with open_at(kind, tmp_path) as store:
        fill(store)
        if phase == DESTROYED:
            # Through another store.
            store.core.vault.keyring.destroy("ann")

        def killed(*_: Any) -> Any:
            raise Killed

        monkeypatch.setattr(store.core.backend, "drop_sealed", killed)
        with pytest.raises(Killed):
            store.erase("ann")
        monkeypatch.undo()
        plan = store.erase("ann", dry_run=True)
        if phase == NOTED:
            assert (plan.sealed_values, plan.user_values) == (3, 2)
        store.erase("ann")
        (report,) = store.erasure_reports()
        assert (report.sealed_values, report.user_values, report.complete) == (3, 2, True)
        assert report.needles
        assert erase.kept_report(store.core, report.erasure) == report
