"""Redacting where a text isn't plainly a value: keys, names, journals, metadata, what has expired."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import everthread
from everthread.errors import ConflictError, InDoubtError
from everthread.history.redaction import Needle, key_replacement
from everthread.maintenance import unfinished
from everthread.redaction import redact
from everthread.redaction.redact import RedactionRequest
from everthread.stores.contract import Prune

SECRET = "SECRETXY"
KINDS = ["memory", "sqlite", "files"]


def url_of(kind: str, tmp_path: Path) -> str:
    places = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/s.db", "files": f"file://{tmp_path}/f"}
    return places[kind]


def left_in(tmp_path: Path, text: str = SECRET) -> list[Path]:
    return [each for each in tmp_path.rglob("*") if each.is_file() and text.encode() in each.read_bytes()]


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_two_redactions_stay_apart(kind: str, tmp_path: Path) -> None:
    with everthread.open(url_of(kind, tmp_path), durability="process") as store:
        thread = store.thread("crm")
        thread.state["people"] = {"ann@x.org": {"n": 1}, "bob@x.org": {"n": 1}, "[redacted]": {"n": 0}}
        thread.commit()
        thread.state["people"]["ann@x.org"]["calls"] = {"mon": 1}
        thread.commit()
        fork = thread.fork("fork")
        fork.state["people"]["ann@x.org"]["calls"]["fork"] = 1
        fork.commit()
        del thread.state["people"]["bob@x.org"]
        thread.commit()
        thread.state["people"]["ann@x.org"]["calls"]["tue"] = 2
        thread.commit()
        before = [thread.at(seq).state.plain() for seq in range(1, 5)]
        store.redact("ann@x.org")
        (ann,) = [
            key for key in store.thread("crm").state["people"] if re.match(r"\[redacted \w{12}\]$", key)
        ]
        store.redact("bob@x.org")
        assert store.verify().ok
        read = store.thread("crm")
        assert read.recovered is None
        (bob,) = set(read.at(1).state["people"]) - {ann, "[redacted]"}
        names = {"ann@x.org": ann, "bob@x.org": bob}
        for seq, state in enumerate(before, 1):
            renamed = {names.get(key, key): value for key, value in state["people"].items()}
            assert read.at(seq).state.plain()["people"] == renamed
        assert store.thread("fork").state["people"][ann]["calls"] == {"mon": 1, "fork": 1}


def test_keys_of_every_type_stay_apart() -> None:
    keys: list[Any] = [SECRET, f"{SECRET}!", SECRET.encode(), (SECRET, 1), frozenset({SECRET})]
    taken: list[Any] = [
        "[redacted]",
        "[redacted]!",
        b"[redacted]",
        ("[redacted]", 1),
        frozenset({"[redacted]"}),
    ]
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.state["d"] = {key: number for number, key in enumerate([*keys, *taken])}
        thread.state["n"] = {decimal.Decimal("1.4711"): 1, decimal.Decimal("2.4711"): 2}
        thread.commit()
        assert not [place for place in store.scan(SECRET) if SECRET in repr(place)]
        store.redact(SECRET)
        store.redact("4711")
        state = store.thread("t").state.plain()
        assert sorted(state["d"].values()) == list(range(10))
        assert sorted(state["n"].values()) == [1, 2]
        assert not [each for text in (SECRET, "4711") for each in store.scan(text) if each.redactable]


def test_what_goes_on_gives_keys_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with another replacement, and if somebody else is at it at the same time."""
    with everthread.open("memory:") as store:
        thread = store.thread("a")
        thread.state[SECRET] = {"n": 1}
        thread.commit()
        fork = thread.fork("b")
        fork.state[SECRET]["n"] = 2
        fork.commit()
        core = store.core
        prune, done = core.backend.prune, list[Prune]()

        def once(line: Any, job: Prune) -> bool:
            if done:
                raise KeyboardInterrupt
            done.append(job)
            return prune(line, job)

        monkeypatch.setattr(core.backend, "prune", once)
        with pytest.raises(KeyboardInterrupt):
            store.redact(SECRET)
        monkeypatch.undo()
        store.redact(SECRET, replacement="GONE")
        (key,) = store.thread("a").state
        assert re.fullmatch(r"\[redacted \w{12}\]", key)
        assert store.thread("b").state.plain() == {key: {"n": 2}}


def test_two_that_begin_at_once_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with everthread.open("memory:") as store:
        store.thread("a").commit(label=SECRET)
        core = store.core
        other = RedactionRequest("0" * 16, SECRET, "[redacted]", "", (), "[redacted other]")
        begin = unfinished.begin

        def both(core: Any, name: str, told: Any) -> None:
            begin(core, name, told)
            begin(core, other.name, unfinished.work(core, unfinished.REDACTION, note=other.pack()))

        monkeypatch.setattr(redact, "begin", both)
        with pytest.raises(ConflictError, match="just now"):
            store.redact(SECRET)
        monkeypatch.undo()
        unfinished.end(core, other.name)
        assert store.redact(SECRET).versions == 1


@pytest.mark.parametrize("text", ["b", " ", "]]", "x", "bc", "-", "d", "[r", "ab", "\ud800"])
@pytest.mark.parametrize("replacement", ["", "[redacted]", "GONE", "-"])
def test_what_replaces_a_key_never_makes_up_the_text(text: str, replacement: str) -> None:
    if text in replacement:
        return
    drawn = iter(range(10**6))
    made = key_replacement(text, replacement, lambda count: bytes(next(drawn) % 251 for _ in range(count)))
    needle = Needle(text, replacement, made)
    keys = [text, text * 2, f"a{text}", f"{text}b", f"]{text}[", text + text[:1], text[-1:] + text]
    new = [needle.replaced(key, key=True) for key in keys]
    assert not [key for key in new if text in key]
    assert len(set(new)) == len(set(keys))


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_left_where_replacing_makes_up_the_text_again() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.state.update({"a": "aabb", "b": "]]]", "c": b"aabb"})
        thread.commit()
        store.redact("ab", replacement="")
        store.redact("]]")
        # By chance it is in digests and ids of the record of redactions, too.
        assert not [each for text in ("ab", "]]") for each in store.scan(text) if each.redactable]


def test_names_of_zones_and_tags_of_classes() -> None:
    @everthread.register(tag="RedactedInvoice")
    @dataclasses.dataclass
    class Invoice:
        of: str

    with everthread.open("memory:") as store:
        thread = store.thread("t")
        own = dt.timezone(dt.timedelta(hours=1), SECRET)
        thread.state["at"] = dt.datetime(2024, 1, 1, tzinfo=own)
        thread.state["i"] = Invoice("RedactedInvoice")
        thread.commit()
        assert store.redact(SECRET).values == 1
        assert store.thread("t").state["at"] == dt.datetime(2024, 1, 1, tzinfo=own)
        assert store.thread("t").state["at"].tzname() == "[redacted]"
        report = store.redact("RedactedInvoice")
        assert (report.values, report.left_count) == (1, 1)
        assert store.thread("t").state["i"] == Invoice("[redacted]")
        assert [place.redactable for place in store.scan("RedactedInvoice")] == [False]


def test_a_text_with_a_lone_surrogate() -> None:
    with everthread.open("memory:", limits=everthread.Limits(surrogates="keep")) as store:
        thread = store.thread("t")
        thread.state["a"] = "x\ud800y"
        thread.commit()
        assert store.redact("\ud800").values == 1
        assert store.thread("t").state["a"] == "x[redacted]y"
        assert RedactionRequest.unpack(RedactionRequest("id", "x\ud800", "", "").pack()).text == "x\ud800"


# ── journals ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_journals_are_redacted(kind: str, tmp_path: Path) -> None:
    with everthread.open(url_of(kind, tmp_path), durability="process") as store:
        with store.session("bot") as session:
            session.call("k1", lambda text: {"said": text}, SECRET)
            session.record_error(f"went wrong with {SECRET}")
        report = store.redact(SECRET)
        assert (report.values, report.versions, report.threads, report.left_count) == (2, 2, 1, 0)
        assert list(store.scan(SECRET)) == []
        assert store.verify().ok
        (effect,) = store.session_records("bot").effects()
        assert effect.result == {"said": "[redacted]"}
        with store.session("bot") as session:
            assert session.call("k1", lambda text: "again", SECRET) == {"said": "[redacted]"}
    assert left_in(tmp_path) == []


def test_effects_keep_their_keys_and_don_t_run_again() -> None:
    paid: list[int] = []

    def fail(number: int) -> None:
        paid.append(number)
        raise ConnectionError("to 817")

    with everthread.open("memory:") as store:
        with store.session("bot") as session:
            with pytest.raises(ConnectionError):
                session.call("pay-817", fail, 1)
            session.call("pay-817-b", paid.append, 2)
        for text in ("817", "open", "effects", "key", "done", "completed"):
            report = store.redact(text)
            assert not any(place.redactable for place in store.scan(text))
            assert report.left_count or text == "effects"
        with store.session("bot") as session:
            with pytest.raises(InDoubtError):
                session.call("pay-817", fail, 1)
            session.call("pay-817-b", paid.append, 2)
        assert store.session_records("bot").runs()[0].status == "completed"
        assert store.verify().ok
    assert paid == [1, 2]


# ── metadata ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", KINDS)
def test_the_index_of_metadata_keeps_nothing(kind: str, tmp_path: Path) -> None:
    with everthread.open(url_of(kind, tmp_path), durability="process") as store:
        thread = store.thread("t")
        for number in range(150):
            thread.state["a"] = number
            thread.commit(metadata={"who": f"{SECRET} {number}"} if number in (0, 140, 141) else None)
        thread.fork("f", at=1)
        source = store.thread("source")
        source.state["a"] = 1
        source.commit(metadata={"who": SECRET})
        source.fork("g")
        source.delete()
        store.redact(SECRET)

        def named(who: str) -> list[str]:
            return [info.name for info in store.threads(metadata={"who": who})]

        for number in (0, 140, 141):
            assert named(f"{SECRET} {number}") == []
        assert named(SECRET) == []
        assert named("[redacted] 141") == ["t"]
        assert named("[redacted] 0") == ["f"]
        assert named("[redacted]") == ["g"]
        assert store.verify().ok


def test_names_of_metadata_stay_and_are_told() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.commit(label="x", metadata={SECRET: f"of {SECRET}"})
        report = store.redact(SECRET)
        assert (report.values, report.left_count) == (1, 1)
        assert [info.name for info in store.threads(metadata={SECRET: "of [redacted]"})] == ["t"]
        assert not any(place.redactable for place in store.scan(SECRET))


@pytest.mark.parametrize("kind", KINDS)
def test_an_expired_thread_is_redacted_and_stays_expired(kind: str, tmp_path: Path) -> None:
    with everthread.open(url_of(kind, tmp_path), durability="process") as store:
        expired = store.thread("a", ttl=0.2)
        expired.state["a"] = 1
        expired.commit(metadata={"who": SECRET})
        other = store.thread("b")
        other.state["a"] = SECRET
        other.commit()
        time.sleep(0.25)
        assert store.redact(SECRET).values == 2
        assert store.thread("b").state["a"] == "[redacted]"
        assert list(store.scan(SECRET)) == []
        assert [info.name for info in store.threads()] == ["b"]
    assert left_in(tmp_path) == []


def test_an_intention_of_an_older_release_goes_on_as_it_began() -> None:
    """It knows nothing of replacements for keys: a part of them may be replaced already."""
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.state[SECRET] = 1
        thread.commit()
        core = store.core
        old = RedactionRequest("0" * 16, SECRET, "[redacted]", "")
        mark = unfinished.work(core, unfinished.REDACTION, note=old.pack())
        gone = msgspec.structs.replace(mark, who=msgspec.structs.replace(mark.who, pid=2**22 + 1))
        unfinished.begin(core, old.name, gone)
        store.redact(SECRET)
        assert store.thread("t").state.plain() == {"[redacted]": 1}
