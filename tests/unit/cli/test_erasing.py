"""erase: shows, asks, erases, and gives a receipt."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Erased, ErasureReport, Personal
from tests.unit.cli.calling import Answer, Program, here, interrupted_apart, run
from tests.unit.cli.test_keeping import contents


@pytest.fixture
def thread(store: everthread.Store) -> everthread.Thread:
    found = store.thread("a")
    found.state["ann"] = Personal("user_ann", "ann@example.org")
    found.state["bob"] = Personal("user_bob", "bob@example.org")
    found.commit()
    return found


def test_a_preview_changes_nothing(program: Program, thread: everthread.Thread) -> None:
    answer = program("erase", "--subject", "user_ann", "--dry-run")
    assert "would erase 1 sealed value " in answer.out
    assert "nothing was erased (--dry-run)" in answer.err
    assert thread.state["ann"].value == "ann@example.org"


def test_it_asks_first(program: Program, thread: everthread.Thread) -> None:
    answer = program("erase", "--subject", "user_ann", code=1, input="n\n")
    assert "would erase" in answer.out
    assert "nothing was changed" in answer.err
    assert program("erase", "--subject", "user_ann", "--json", code=2).out == ""
    assert thread.state["ann"].value == "ann@example.org"
    answer = program("erase", "--subject", "user_ann", input="y\n")
    assert "erased 1 sealed value " in answer.out
    assert "not reached:" in answer.out
    assert isinstance(thread.state["ann"], Erased)
    assert thread.state["bob"].value == "bob@example.org"


def test_the_receipt_is_signed_and_names_no_one(program: Program, thread: everthread.Thread) -> None:
    answer = program("erase", "--subject", "user_ann", "--yes", "--json")
    assert "user_ann" not in answer.out + answer.err
    report = ErasureReport.from_plain(json.loads(answer.out)["report"])
    assert report
    assert report.is_signed()
    assert report.sealed_values == 1
    forged = ErasureReport.from_plain({**report.plain(), "sealed_values": 2})
    assert not forged.is_signed()
    assert not report.is_signed("00" * 32), "another key than expected"
    table = program("erase", "--subject", "user_bob", "--yes", "--format", "tsv").out.splitlines()
    assert table[0].split("\t") == ["where", "what", "count", "outcome"]


def test_nobody_known_and_a_hold(
    program: Program, thread: everthread.Thread, store: everthread.Store
) -> None:
    assert "nothing to erase" in program("erase", "--subject", "nobody", code=3).out
    store.hold("user_ann", "case 17")
    assert program.json("erase", "--subject", "user_ann", "--dry-run", code=1)["report"]["held"] == "case 17"
    answer = program("erase", "--subject", "user_ann", "--yes", code=1)
    assert "case 17" in answer.err
    assert "The attempt was recorded" in answer.err
    assert thread.state["ann"].value == "ann@example.org"


def test_a_dry_run_ends_with_1_under_a_hold_of_another_store_beside_one_on_some_values(
    program: Program, thread: everthread.Thread, store: everthread.Store
) -> None:
    store.hold("user_ann", "case 17", threads="case/")
    program("erase", "--subject", "user_ann", "--dry-run")
    with everthread.open("memory:") as other:
        other.hold("user_ann", "case 18")
    shown = program("erase", "--subject", "user_ann", "--dry-run", code=1)
    assert "under a legal hold (placed through another store" in shown.out
    data = program.json("erase", "--subject", "user_ann", "--dry-run", code=1)
    assert data["report"]["held"] == "placed through another store on the same keyring"
    assert "another store" in program("erase", "--subject", "user_ann", "--yes", code=1).err


def test_a_hold_is_told_as_a_refusal_and_nothing_is_asked(
    program: Program, thread: everthread.Thread, store: everthread.Store
) -> None:
    store.hold("user_ann", "case 17")
    shown = program("erase", "--subject", "user_ann", "--dry-run", code=1)
    refused = "under a legal hold (case 17): erasing it is refused until it is released"
    assert refused in shown.out
    assert "Without the hold: would erase 1 sealed value " in shown.out
    assert "held:" not in shown.out
    assert "not reached:" not in shown.out
    assert refused in program.json("erase", "--subject", "user_ann", "--dry-run", code=1)["summary"]
    for more in ([], ["--json"]):
        answer = program("erase", "--subject", "user_ann", *more, code=1, input="y\n")
        assert refused in answer.err
        assert "Nothing was changed" in answer.err
        assert "for good?" not in answer.err
        assert answer.out == ""
    assert thread.state["ann"].value == "ann@example.org"
    store.release_hold("user_ann")
    assert "for good?" in program("erase", "--subject", "user_ann", input="y\n").err


@pytest.mark.parametrize(("count", "found"), [(1, "1 erasure"), (2, "one of 2 erasures")])
def test_somebody_elses_erasure_is_not_said_to_be_this_persons(
    program: Program, thread: everthread.Thread, count: int, found: str
) -> None:
    for who in ("user_ann", "user_bob")[:count]:
        program("erase", "--subject", who, "--yes")
    told = program("erase", "--subject", "user_zoe", "--yes", code=3).err
    assert f"if it was done before, {found} here may have been this person's" in told


def test_another_keyring(program: Program, tmp_path: Path) -> None:
    keys = str(tmp_path / "elsewhere")
    with everthread.open(program.url, keyring=keys) as store:
        store.thread("a").update(lambda draft: draft.state.update(x=Personal("cat", "meow")))
    for call in (["--yes"], ["--dry-run"]):
        answer = program("erase", "--subject", "cat", *call, code=1)
        assert "lacks the keys of 1 sealed value in this store" in answer.out
        assert "can't be told" in answer.out
        assert "signed with" not in answer.out
    assert not (Path.home() / ".everthread" / "keyring").exists(), "looking makes no keyring"
    report = ErasureReport.from_plain(program.json("erase", "--subject", "cat", "--yes", code=1)["report"])
    assert (bool(report), report.complete, report.is_signed(), report.unopened) == (False, False, False, 1)
    assert program.json("erase", "--subject", "cat", "--yes", "--keyring", keys)["report"]["complete"]


def test_keys_travel_only_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/two.db"
    with everthread.open(one) as store:
        thread = store.thread("a")
        thread.state["ann"] = Personal("ann", "ann's")
        thread.commit()
    secret = tmp_path / "secret.txt"
    secret.write_text("correct horse battery\n")
    archive = str(tmp_path / "a.archive")
    for wrong in (["--with-keys"], ["--passphrase-file", str(secret)]):
        run(["--store", one, "export", archive, *wrong], code=2)
    given = ["--with-keys", "--passphrase-file", str(secret)]
    assert run(["--store", one, "export", archive, *given, "--json"], code=0).data["report"]["keys"] == 1
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    missing = run(["--store", two, "import", archive, "--json"], code=0).data["report"]
    assert (missing["keys"], missing["keys_missing"]) == (0, 1)
    monkeypatch.setenv("EVERTHREAD_ARCHIVE_PASSPHRASE", "not the right one")
    assert "Nothing was changed" in run(["--store", two, "import", archive, "--with-keys"], code=1).err
    monkeypatch.setenv("EVERTHREAD_ARCHIVE_PASSPHRASE", "correct horse battery")
    assert (
        run(["--store", two, "import", archive, "--with-keys", "--json"], code=0).data["report"]["keys"] == 1
    )
    with everthread.open(two) as store:
        assert store.thread("a").state["ann"].value == "ann's"


# ── who was erased through another store ─────────────────────────────────────────────────────────


@pytest.fixture
def shared(program: Program, tmp_path: Path) -> Path:
    """The folder of a keyring that two stores share. Ann and Cy were erased through the other one."""
    keys = tmp_path / "keys"
    (tmp_path / "other").mkdir()
    for url in (program.url, f"sqlite:///{tmp_path}/other/agent.db"):
        with everthread.open(url, keyring=str(keys)) as store:
            thread = store.thread("a")
            for name in ("ann", "bob", "cy"):
                thread.state[name] = Personal(name, f"{name}@example.org")
            thread.commit()
            store.users.set("ann", "city", "Paris")
    with everthread.open(url, keyring=str(keys)) as store:
        store.erase("ann")
        store.erase("cy")
    return keys


OTHERS = "3 values under 2 keys of persons who were erased through another store"


@pytest.mark.parametrize("who", ["nobody", "ann", "bob"])
def test_what_goes_of_others_is_shown_and_asked_for(program: Program, shared: Path, who: str) -> None:
    before = contents(program.folder, shared)
    erase = ["erase", "--subject", who, "--keyring", str(shared)]
    shown = program(*erase, "--dry-run")
    assert f"{OTHERS} would go" in shown.out
    assert program.json(*erase, "--dry-run")["report"]["places"][0]["count"] == 3
    refused = program(*erase, code=1, input="n\n")
    assert f"{OTHERS} would go" in refused.out
    assert "nothing was changed" in refused.err
    assert "--yes" in program(*erase, "--json", code=2).err
    assert contents(program.folder, shared) == before, "without a yes nothing is done"
    went = program(*erase, input="y\n")
    assert "everthread erase --reports" in went.err
    if who == "bob":
        assert "3 sealed values under 2 keys went, too" in went.err
    with everthread.open(program.url, keyring=str(shared)) as store:
        left = store.core.backend.totals().sealed[0]
        assert left == (0 if who == "bob" else 1), "Bob's is there, unless it was he"
        assert sum(len(report.key_ids) for report in store.erasure_reports()) == (3 if who == "bob" else 2)


def test_gc_shows_what_goes_of_others(program: Program, shared: Path) -> None:
    before = contents(program.folder, shared)
    gc = ["gc", "--keyring", str(shared)]
    assert OTHERS in program(*gc, "--dry-run").out
    assert program.json(*gc, "--dry-run")["elsewhere"] == {"values": 3, "keys": 2}
    assert OTHERS in program(*gc, code=1, input="n\n").out
    assert contents(program.folder, shared) == before
    assert OTHERS in program(*gc, "--yes").out
    assert program(*gc).out == "nothing to remove\n"
    assert OTHERS not in program.json(*gc, "--yes")["summary"]
    assert program.json(*gc, "--yes")["elsewhere"] == {"values": 0, "keys": 0}


def test_gc_measures_after_they_went(program: Program, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys")
    for url in (program.url, f"sqlite:///{tmp_path}/other.db"):
        with everthread.open(url, keyring=keys) as store:
            # Nothing that would shrink before it is sealed.
            noise = random.Random(1).randbytes(150_000).hex()
            store.thread("a").update(lambda draft, noise=noise: draft.state.update(x=Personal("ann", noise)))
    with everthread.open(url, keyring=keys) as store:
        store.erase("ann")
    told = program.json("gc", "--keyring", keys, "--yes")
    report = told["report"]
    assert report["size_after"] < report["size_before"]
    assert f"{report['size_before']:,} → {report['size_after']:,} bytes on disk" in told["summary"]
    assert told["summary"].endswith("; 1 value under 1 key of persons who were erased through another store")
    with everthread.open(program.url, keyring=keys) as store:
        assert store.gc(dry_run=True).size_before == report["size_after"]


# ── interrupted erasures ─────────────────────────────────────────────────────────────────────────


def cut_short(program: Program) -> Answer:
    """An erasure of somebody that ends in the middle, after the keys were destroyed."""
    with everthread.open(program.url) as store:
        thread = store.thread("a")
        thread.state["ann"] = Personal("ann", "ann@example.org")
        thread.state["bob"] = Personal("bob", "bob@example.org")
        thread.commit()
    return interrupted_apart(program, "drop_sealed", 1, "erase", "--subject", "ann", "--yes")


def test_run_again_it_gives_the_whole_report(program: Program) -> None:
    told = cut_short(program).err
    assert "Run this again for its report" in told
    plan = program("erase", "--subject", "ann", "--dry-run").out
    assert "would go on with an erasure that was cut short: 1 sealed value " in plan
    assert "would go on" in program("erase", "--subject", "ann", code=1, input="n\n").out
    report = ErasureReport.from_plain(program.json("erase", "--subject", "ann", "--yes")["report"])
    assert (report.sealed_values, len(report.key_ids), bool(report)) == (1, 1, True)
    assert report.is_signed()


def test_who_was_first_since_the_preview_gives_the_report(
    program: Program, thread: everthread.Thread, store: everthread.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(store)
    original = kind.erase

    def erased_just_before(self: everthread.Store, subject: str, **options: Any) -> ErasureReport:
        if not options.get("dry_run"):
            original(store, subject)
        return original(self, subject, **options)

    monkeypatch.setattr(kind, "erase", erased_just_before)
    answer = program("erase", "--subject", "user_ann", "--yes")
    assert "erased 1 sealed value " in answer.out
    assert "went, too" not in answer.err
    (kept,) = store.erasure_reports()
    assert kept.digest() in answer.out


def test_reports_are_shown_whoever_finished_the_erasure(program: Program) -> None:
    assert "nobody was erased" in here("erase", "--reports", "--store", made(program), code=3).err
    cut_short(program)
    unfinished = program("erase", "--reports", code=3)
    assert "the erasure of 1 key isn't finished" in unfinished.err
    # Opening a store goes on with it.
    program("status")
    again = program("erase", "--subject", "ann", "--yes", code=3)
    assert "nothing is known of this person here" in again.out
    assert "everthread erase --reports" in again.err
    shown = program("erase", "--reports").out
    assert "erased 1 sealed value (" in shown
    (told,) = program.json("erase", "--reports")["reports"]
    assert told.pop("summary").startswith("erased 1 sealed value ")
    report = ErasureReport.from_plain(told)
    assert report
    assert report.is_signed()
    assert report.digest() in shown
    table = program("erase", "--reports", "--format", "tsv").out.splitlines()
    assert table[0].split("\t")[:4] == ["erasure", "noted_us", "ended_us", "complete"]
    assert table[1].split("\t")[3:7] == ["true", "1", "0", "1"]


def made(program: Program) -> str:
    """A store in which nothing was ever done."""
    url = f"sqlite:///{program.folder}/empty.db"
    here("init", "--store", url)
    return url


def test_others_that_were_cut_short_are_told_of_before(program: Program) -> None:
    cut_short(program)
    keys = Path.home() / ".everthread" / "keyring"
    before = contents(program.folder, keys)
    words = "erasures of 1 other key that were cut short would be finished"
    for who in ("bob", "nobody"):
        assert words in program("erase", "--subject", who, code=1, input="n\n").out
        assert words in program("erase", "--subject", who, "--dry-run", code=0 if who == "bob" else 3).out
    assert contents(program.folder, keys) == before
    assert "went, too" in program("erase", "--subject", "bob", "--yes").err


def test_whom_or_which_reports(program: Program, store: everthread.Store) -> None:
    for wrong in ([], ["--subject", "ann", "--reports"]):
        assert "either --subject" in program("erase", *wrong, code=2).err


def test_a_damaged_report_is_damage(program: Program, thread: everthread.Thread) -> None:
    program("erase", "--subject", "user_ann", "--yes")
    with everthread.open(program.url) as store:
        backend = store.core.backend
        ((name, cell),) = backend.cells("\0people", "report/", None, 10)
        backend.swap("\0people", name, cell.revision, b"{]", 0)
    assert "the report of an erasure is damaged" in program("erase", "--reports", code=6).err


def test_one_of_a_thing_is_told_as_one(program: Program, tmp_path: Path) -> None:
    keys = str(tmp_path / "elsewhere")
    with everthread.open(program.url, keyring=keys) as store:
        store.thread("a").update(lambda draft: draft.state.update(x=Personal("cat", "meow")))
    told = program("erase", "--subject", "cat", "--dry-run", code=1).out
    assert "left alone: 1 sealed value under a key that isn't in this keyring in sqlite:" in told
    assert "1 sealed values" not in told


def test_nothing_to_erase_leaves_nothing_behind(program: Program, tmp_path: Path) -> None:
    everthread.open(program.url).close()
    keys = tmp_path / "keys"
    answer = program("erase", "--subject", "nobody", "--keyring", str(keys), code=3)
    assert not keys.exists(), "not even a key to sign that with"
    assert "signed" not in answer.out
    program("erase", "--subject", "nobody", "--keyring", str(keys), "--yes", code=3)
    assert keys.exists()
