"""Scanning and redacting: found wherever it stands, taken out of all of history, and the chain holds."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everthread
from everthread import Retention, Store
from everthread.errors import InvalidValueError, StateCorruptedError
from everthread.maintenance import unfinished
from everthread.records.opening import open_backend
from everthread.records.rows import put_row
from everthread.redaction.redact import RedactionRequest
from everthread.store import Store as OpenStore
from everthread.stores.byte_scan import base64_forms
from everthread.stores.contract import PACK
from everthread.stores.interface import Batch, run
from everthread.testing.faults import Call, wrapped

SECRET = "SECRET-4711-abcdefgh"


class Cut(BaseException):
    """As if the process had been killed here."""


def fill(store: Store, *, prune: bool = True) -> None:
    thread = store.thread("t")
    for number in range(160):
        thread.state["n"] = number
        told = f" my key {SECRET} ok" if number % 37 == 0 else ""
        thread.messages.append({"role": "user", "content": f"hello {number}{told}"})
        if number == 130:
            thread.state["deep"] = {"a": [{"b": f"x{SECRET}y"}, ("t", SECRET)], SECRET: 1}
        label = f"label {SECRET}" if number == 140 else None
        thread.commit(label=label, key=f"k{number}" if number % 10 == 0 else None)
    thread.commit(metadata={"m": f"is {SECRET}", "other": 1})
    fork = thread.fork("f", at=150)
    fork.messages.append({"content": SECRET, "id": f"id {SECRET}"})
    fork.commit(key="forked")
    with fork.step("step") as step:
        step.result = {"answer": [SECRET]}
    thread.rewind(135)
    thread.state["newest"] = SECRET
    thread.commit(key="newest")
    pruned = store.thread("p")
    for number in range(150):
        pruned.messages.append({"content": SECRET if number == 3 else "x"})
        pruned.state[f"k{number % 3}"] = SECRET
        pruned.commit()
    if prune:
        store.gc(Retention(keep_last=40, keep_labelled=False))
    store.events("e").append("x", {"a": SECRET})


def told(store: Store) -> Any:
    found = {}
    for name in ("t", "f", "p"):
        thread = store.thread(name)
        versions = [v for v in thread.history(limit=None) if v.label != "redacted"]
        found[name] = [v.id for v in versions]
        for version in versions[:30:7]:
            past = thread.at(version)
            told = repr((past.state.plain(), past.messages[:])).replace(SECRET, "[redacted]")
            # In keys there is a token, too.
            found[name, version.id] = re.sub(r"\[redacted [a-z]{12}\]", "[redacted]", told)
    return found


KINDS = ["memory", "sqlite", "files", "postgres", "valkey"]


def url_of(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    places_of = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db", "files": f"file://{tmp_path}/f"}
    if kind in places_of:
        return places_of[kind]
    url: str = request.getfixturevalue("postgres_url" if kind == "postgres" else "valkey_lasting_url")
    return url


@pytest.mark.parametrize("kind", KINDS)
def test_found_in_a_log_that_only_pruned_versions_wrote_to(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with everthread.open(url_of(kind, tmp_path, request), durability="process") as store:
        thread = store.thread("t")
        for number in range(80):
            thread.messages.append({"content": SECRET if number == 3 else "fine"})
            thread.commit()
        with thread.step("a step") as step:
            step.result = SECRET
        for number in range(20):
            thread.state["n"] = number
            thread.commit()
        store.gc(Retention(keep_last=5))
        assert [(place.what, place.log, place.position) for place in store.scan(SECRET)] == [
            ("step", "\0steps", 0),
            ("item", "messages", 3),
        ]
        report = store.redact(SECRET)
        assert (report.values, report.left_count) == (2, 0)
        assert list(store.scan(SECRET)) == []
        read = store.thread("t")
        assert [message["content"] for message in read.messages[2:5]] == ["fine", "[redacted]", "fine"]
        with read.step("a step") as step:
            assert (step.done, step.result) == (True, "[redacted]")
        assert store.verify().ok


@pytest.mark.parametrize("kind", KINDS)
def test_found_everywhere_and_taken_out(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with everthread.open(url_of(kind, tmp_path, request), durability="process") as store:
        fill(store)
        seen: list[tuple[int, int]] = []
        places = list(store.scan(SECRET, progress=lambda done, total: seen.append((done, total))))
        assert seen[-1][0] == seen[-1][1] > 100
        assert {p.what for p in places} == {
            "document", "item", "step", "label", "metadata", "state", "event",
        }  # fmt: skip
        assert not [place for place in places if SECRET in repr(place) + str(place)]
        assert {p.thread for p in places} == {"t", "f", "p", ""}
        before = told(store)
        assert store.redact(SECRET, dry_run=True).values == sum(p.redactable for p in places)
        assert list(store.scan(SECRET)) == places
        report = store.redact(SECRET, reason=f"leaked: {SECRET}")
        assert (report.threads, report.events) == (3, 1)
        assert report.left_count == 0
        assert list(store.scan(SECRET)) == []
        assert [event.data for event in store.events("e").replay()] == [{"a": "[redacted]"}]
        assert told(store) == before
        found = store.verify()
        assert found.ok, found.damage[:3]
        assert found.redacted == report.versions > 5
        assert "redacted" in str(found)
        _goes_on(store)
    if kind in ("sqlite", "files"):
        found_files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert found_files
        for path in found_files:
            data = path.read_bytes()
            assert not [form for form in base64_forms(SECRET.encode()) if form in data], path
            assert SECRET.encode() not in data, path


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files", "postgres", "valkey"])
def test_a_large_commit_and_a_deleted_source(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Items that stand beside the newest record, and what only a fork still needs."""
    places_of = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db", "files": f"file://{tmp_path}/f"}
    url = places_of.get(kind, "")
    if not url:
        url = request.getfixturevalue("postgres_url" if kind == "postgres" else "valkey_lasting_url")
    with everthread.open(url, durability="process") as store:
        large = store.thread("large")
        large.messages.extend([{"content": f"{SECRET} {number} " + "y" * 2000} for number in range(600)])
        large.commit(key="large")
        gone = store.thread("gone")
        gone.state["a"] = SECRET
        gone.commit()
        gone.fork("fork")
        gone.delete()
        assert store.redact(SECRET).versions == 2
        assert list(store.scan(SECRET)) == []
        found = store.verify()
        assert found.ok, found.damage[:3]
        assert found.redacted == 2
        messages = store.thread("large").messages
        assert [item["content"][:16].split()[1] for item in messages] == [str(n) for n in range(600)]
        assert messages[599]["content"].startswith("[redacted] 599 ")
        assert store.thread("fork").state["a"] == "[redacted]"
        assert store.thread("large").commit(key="large").seq == 1  # type: ignore[union-attr]
        store.thread("large").messages.append({"content": "more"})
    for path in [each for each in tmp_path.rglob("*") if each.is_file()]:
        assert SECRET.encode() not in path.read_bytes(), path


def _goes_on(store: Store) -> None:
    """Keys still stand for their versions, threads go on, nothing is left to do, and it travels."""
    head = store.thread("f").head
    assert store.thread("f").commit(key="forked").seq == 151  # type: ignore[union-attr]
    assert store.thread("f").head == head
    thread = store.thread("t")
    assert thread.commit(key="newest").key == "newest"  # type: ignore[union-attr]
    thread.state["more"] = 1
    thread.messages.append({"content": "more"})
    thread.commit()
    assert [info.name for info in store.threads(metadata={"m": "is [redacted]"})] == ["t"]
    assert list(store.threads(metadata={"m": f"is {SECRET}"})) == []
    assert store.redact(SECRET).versions == 0
    with everthread.open("memory:") as other:
        store.copy_to(other)
        assert other.verify().redacted == store.verify().redacted > 0
        assert other.verify().ok


def test_an_alteration_that_calls_itself_a_redaction_is_found() -> None:
    with everthread.open("memory:") as store:
        fill(store, prune=False)
        store.redact(SECRET)
        backend: Any = store.core.backend
        line = backend.find("", "t").line
        row = next(row for row in backend.scan(line.id, 99_999, 99_999)[::-1] if row.kind == PACK)
        from everthread.history import packs
        from everthread.history.redaction import mark

        body = packs.read_pack(row.body)
        parts = [(h, c, []) for h, c in zip(body.heads, body.changes, strict=True)]
        parts[1] = (mark(parts[1][0], b"\1" * 32), parts[1][1], [])
        forged = packs.fold_parts(row.first, parts, [*body.hashes[:-1], row.hash])
        altered = msgspec.structs.replace(row, body=forged.body, net=forged.net)
        assert run(backend.records.store.write_one(Batch(puts=put_row(line.id, altered)))) == 0
        assert not store.verify().ok


def test_cut_short_anywhere_it_verifies_and_is_finished_by_running_it_again() -> None:
    with everthread.open("memory:") as store:
        fill(store)
        expected = told(store)
    number, ended = 0, False
    chance = random.Random(7)
    while not ended:
        number += 1
        backend = open_backend("memory:", "full")
        fill(OpenStore(backend))
        left = [number]

        def hook(call: Call, left: list[int] = left) -> None:
            if (
                call.verb in ("append", "create", "fold", "prune", "tag", "rewrite_events")
                and call.moment == "after"
            ):
                left[0] -= 1
                if left[0] == 0:
                    raise Cut

        try:
            OpenStore(wrapped(backend, hook)).redact(SECRET)
            ended = True
        except Cut:
            pass
        store = OpenStore(backend)
        report = store.verify()
        assert report.ok, (number, report.damage[:3])
        store.redact(SECRET)
        assert list(store.scan(SECRET)) == [], number
        assert store.verify().ok
        ids = {k: v for k, v in told(store).items() if isinstance(k, str)}
        assert {k: len(v) for k, v in ids.items()} == {
            k: len(v) for k, v in expected.items() if isinstance(k, str)
        }
        if chance.random() < 0.5:
            number += 1
    assert number > 8


def test_values_of_every_type() -> None:
    import decimal

    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.state["v"] = [
            {SECRET, "b"}, frozenset({SECRET}), (1, (SECRET,)), f"x{SECRET}".encode(), decimal.Decimal(4711),
        ]  # fmt: skip
        thread.commit()
        assert len(list(store.scan(SECRET))) == 4
        store.redact(SECRET)
        store.redact("4711", replacement="?")
        assert store.thread("t").state.plain()["v"] == [
            {"[redacted]", "b"}, frozenset({"[redacted]"}), (1, ("[redacted]",)), b"x[redacted]", "?",
        ]  # fmt: skip
        assert store.verify().ok


def test_names_keys_and_cells_are_told_and_stay(tmp_path: Path) -> None:
    for url in ("memory:", f"file://{tmp_path}/f"):
        with everthread.open(url) as store:
            thread = store.thread(f"thread {SECRET}")
            thread.log(SECRET).append("x")
            thread.commit(key=f"key {SECRET}")
            store.events(f"stream {SECRET}").append(SECRET, 1)
            consumer = store.events(f"stream {SECRET}").consumer(SECRET)
            consumer.ack(consumer.poll()[0])
            found = list(store.scan(SECRET))
            assert {place.what for place in found} == {"name", "key", "event", "cell"}
            assert not any(place.redactable for place in found)


def test_wrong_calls(tmp_path: Path) -> None:
    with everthread.open(f"file://{tmp_path}/f") as store:
        fill(store, prune=False)
        assert len(list(store.scan(SECRET))) > 10
        assert store.redact(SECRET, dry_run=True).values > 10
        for wrong in ("", None, 7):
            with pytest.raises(InvalidValueError):
                list(store.scan(wrong))  # type: ignore[arg-type]
        with pytest.raises(InvalidValueError, match="replacement"):
            store.redact("a", replacement="bab")


def test_both_colours(tmp_path: Path) -> None:
    async def run() -> None:
        async with everthread.open_async(f"sqlite:///{tmp_path}/s.db") as store:
            thread = await store.thread("t")
            thread.state["x"] = SECRET
            await thread.commit()
            assert [place.what async for place in store.scan(SECRET)] == ["document"]
            assert (await store.redact(SECRET)).versions == 1
            assert (await store.verify()).redacted == 1
            assert (await store.thread("t")).state["x"] == "[redacted]"

    asyncio.run(run())


def test_an_intention_with_a_wrong_byte_is_not_carried_out() -> None:
    """Another text would be taken out of all of history."""
    packed = RedactionRequest("id", "555-0199", "[redacted]", "why").pack()
    assert RedactionRequest.unpack(packed).text == "555-0199"
    for place in range(len(packed)):
        for bit in range(8):
            wrong = bytearray(packed)
            wrong[place] ^= 1 << bit
            with pytest.raises(StateCorruptedError):
                RedactionRequest.unpack(bytes(wrong))


def test_what_is_still_in_a_cold_archive_is_told(tmp_path: Path) -> None:
    options: dict[str, Any] = {"durability": "process", "cold": tmp_path / "cold"}
    with everthread.open(f"sqlite:///{tmp_path}/store.db", **options) as store:
        thread = store.thread("a")
        for number in range(3):
            thread.state["n"] = f"{number} sk-live-4711"
            thread.commit()
        assert store.redact("no such text").unreached == ()
        (copies,) = store.redact("0 sk-live-4711").unreached
        assert "backups" in copies, "nothing was ever in the archive"
        assert store.cool(0).threads == 1
        report = store.redact("sk-live-4711")
        told, copies = report.unreached
        assert "backups" in copies
        assert "cold archive" in told
        assert told in str(report)
        assert b"sk-live-4711" in next((tmp_path / "cold").iterdir()).read_bytes(), "it is true"
        assert list(store.scan("sk-live-4711")) == []


def test_a_reason_is_text_and_an_intention_that_can_t_be_read_keeps_no_store_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with everthread.open(url) as store:
        store.thread("a").commit(label="sk-live")
        with pytest.raises(InvalidValueError, match="reason"):
            store.redact("sk-live", reason=5)  # type: ignore[arg-type]
        core = store.core
        request = RedactionRequest("0" * 16, "sk-live", "[redacted]", 5)  # type: ignore[arg-type]
        mark = unfinished.work(core, unfinished.REDACTION, note=request.pack())
        gone = msgspec.structs.replace(mark, who=msgspec.structs.replace(mark.who, pid=2**22 + 1))
        unfinished.begin(core, request.name, gone)
    with everthread.open(url) as store:
        assert isinstance(store.core.background_error, StateCorruptedError)
        assert store.redact("sk-live").versions == 1
