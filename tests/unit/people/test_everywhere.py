"""A personal value may stand wherever a value can, and never shows in clear on disk, in logs or on screen."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everthread
from everthread import Checkpointable, Erased, Personal, Store
from everthread.codec import records
from everthread.threads.runtime import Runtime
from everthread.transfer.archive_file import ArchiveReader
from tests.unit.cli.calling import here

CANARY = "CANARY-d41d8cd9"


def secret(number: int = 0) -> Personal:
    return Personal("ann", f"{CANARY} {number}")


class Profile(Checkpointable):
    def __init__(self) -> None:
        self.name: Any = secret(1)
        self.notes: Any = [secret(2), {"deep": (secret(3), 1)}]


def plant(store: Store) -> list[str]:
    """A canary in every place there is; what ``repr`` says of all that comes back."""
    shown: list[Any] = []
    thread = store.thread("thread")
    thread.state["value"] = secret()
    thread.state["deep"] = [{"a": (secret(), {1, 2})}]
    thread.messages.append(Personal("ann", {"role": "user", "content": CANARY}))
    thread.messages.append({"role": "user", "content": [{"type": "text", "text": secret()}]})
    thread.log("notes").append(secret())
    shown.append(thread.commit(metadata={"who": secret(), "deep": [secret()], "run": 7}))
    with thread.step("step") as step:
        step.result = {"answer": secret()}
        step.messages.append({"content": secret()})
    thread.fork("fork").update(lambda draft: draft.state.update(more=secret()))
    with store.session("session", user_id="ann") as session:
        work = session.work
        shown += [work.add_todo(secret()), work.add_open_loop(secret()), work.add_constraint(secret())]
        shown += [
            work.set_intention(secret()),
            work.set_context("fact", secret(), metadata={"from": secret()}),
        ]
        decision = session.decide(secret(), rationale=secret(), planned_action=secret(), rejected=[secret()])
        shown += [decision, session.decide("open", rationale=secret())]
        shown.append(session.record_outcome(decision.id, secret()))
        shown.append(session.call("effect", lambda who: secret(), secret()))
        shown.append(session.tasks.add(secret(), description=secret(), metadata={"of": secret()}))
        session.messages.append({"role": "user", "content": secret()})
        session.scratch["tool"] = secret()
        session.checkpoint("boundary", include_keys=["tool"])
        shown.append(session.record_error(ValueError(CANARY)))
        session.receive(secret())
        shown += [str(session.briefing()), session.resumed, session.messages[:], session.tasks.all()]
    stream = store.events("events")
    shown += [stream.append("seen", {"who": secret()}), stream.append("whole", secret())]
    shown.append(stream.projection("latest", lambda state, event: {"last": event.data}).state)
    store.users.set("ann", "mail", {"address": CANARY})
    store.users.set("ann", "nested", secret())
    shown += [store.resume("session"), store.resume("session").plain(), str(store.briefing("session"))]
    records = store.session_records("session")
    shown += [records.decisions(), records.errors(), records.effects(), records.tasks.all(), records.slice()]
    shown += [
        list(store.threads()),
        list(thread.history(limit=None)),
        thread.diff(1, 2),
        thread.diff(1, 2).summary(),
    ]
    shown += [thread.state, thread.messages[:], thread.state.plain(), store.users]
    return [repr(each) for each in shown]


def unfolded(path: Path) -> Iterator[bytes]:
    """Every byte of a file, and what is compressed in it."""
    data = path.read_bytes()
    yield data
    at = -1
    while (at := data.find(b"\x28\xb5\x2f\xfd", at + 1)) >= 0:
        import zstandard

        try:
            yield zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
        except zstandard.ZstdError:
            continue


def leaks(folder: Path, text: str = CANARY) -> list[str]:
    wanted = [text.encode(), text.encode("utf-16-le"), text.encode().hex().encode()]
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(p) for p in files if any(each in part for part in unfolded(p) for each in wanted)]


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_nothing_is_in_clear(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    caplog.set_level(logging.DEBUG)
    place = tmp_path / "store"
    place.mkdir()
    url = f"sqlite:///{place}/s.db" if kind == "sqlite" else f"file://{place}/s"
    with everthread.open(url) as store:
        shown = plant(store)
        # Enough to be folded, so that packs, chunks and keyframes are looked at too.
        thread = store.thread("thread")
        for number in range(150):
            thread.state["n"] = number
            thread.messages.append({"content": secret(number)})
            thread.commit(metadata={"who": secret(number)} if number % 20 == 0 else None)
        everthread.CheckpointManager(backend=url).save("profile", Profile())
        store.export(place / "archive")
        assert store.verify()
        assert [text for text in shown if CANARY in text] == []
        # The other way round: what is looked through does show what isn't sealed.
        assert leaks(place) == []
        thread.state["control"] = f"in clear: {CANARY}"
        thread.commit()
    assert leaks(place) != []
    assert CANARY not in caplog.text + "".join(capfd.readouterr())
    with ArchiveReader(str(place / "archive")) as archive:
        assert not [entry for entry in archive if CANARY in str(entry)]


def test_the_command_line_shows_masks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with everthread.open(url) as store:
        plant(store)
    for command in (
        ["status"], ["show", "thread"], ["show", "session"], ["log", "thread"], ["diff", "thread"],
        ["resume", "session"], ["resume", "session", "--briefing"], ["show", "thread", "--log", "messages"],
        ["search", CANARY], ["doctor"],
    ):  # fmt: skip
        for form in ([], ["--json"], ["--format", "yaml"], ["--format", "tsv"]):
            answer = here(*command, *form, "--store", url, code=None)
            text = answer.out + answer.err
            if command[0] == "search":
                text = text.replace(f"'{CANARY}'", "").replace(f'"{CANARY}"', "")
            assert CANARY not in text, command


def test_everything_reads_back(tmp_path: Path) -> None:
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as store:
        plant(store)
    with everthread.open(f"sqlite:///{tmp_path}/s.db") as store:
        version = store.thread("thread").at(1).version
        assert version.metadata["who"].value == f"{CANARY} 0"
        assert version.metadata["deep"][0].value == f"{CANARY} 0"
        assert version.metadata["run"] == 7
        (info,) = [info for info in store.threads(metadata={"run": 7}) if info.name == "thread"]
        assert info.name == "thread"
        assert store.thread("thread").messages[0].value["content"] == CANARY
        assert store.users.get("ann", "nested") == f"{CANARY} 0"
        assert store.session_records("session").tasks.all()[0].subject.value == f"{CANARY} 0"
        assert store.session_records("session").effects()[0].result.value == f"{CANARY} 0"
        assert CANARY in str(store.briefing("session", max_tokens=4000, reveal=True))
        loaded = everthread.CheckpointManager(backend=store.url)
        loaded.save("profile", Profile())
        profile = loaded.load("profile", Profile())
        assert profile.name.value == f"{CANARY} 1"
        assert profile.notes[1]["deep"][0].value == f"{CANARY} 3"


def test_errors_do_not_tell() -> None:
    def wrong(call: Callable[[], Any]) -> str:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is, it must not tell
            call()
        return "".join(traceback.format_exception(raised.value))

    with everthread.open("memory:", runtime=Runtime()) as store:
        thread = store.thread("t")
        thread.state["a"] = secret()
        thread.messages.append({"id": "m", "content": secret()})
        thread.commit()
        texts = [
            wrong(lambda: thread.commit(label=secret())),  # type: ignore[arg-type]
            wrong(lambda: thread.messages.append({"id": "m", "content": Personal("ann", "other")})),
            wrong(lambda: thread.state.update(x=Personal("ann", {CANARY: object()}))),
            wrong(lambda: store.threads(metadata={"who": secret()}).__iter__().__next__()),
            wrong(lambda: {secret(): 1}),
            wrong(lambda: __import__("pickle").dumps(secret())),
            wrong(lambda: store.thread(secret())),  # type: ignore[arg-type]
        ]
        lines = [line for text in texts for line in text.splitlines() if not line.startswith("  ")]
        assert not [line for line in lines if CANARY in line]


def test_metadata_is_gone_with_the_person(tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/s.db", f"file://{tmp_path}/f", "memory:"):
        with everthread.open(url) as store:
            thread = store.thread("t")
            thread.commit(metadata={"who": secret(), "run": 1})
            thread.fork("fork")
            store.core.vault.keyring.destroy("ann")
            head = store.thread("t").head
            assert head is not None
            assert isinstance(head.metadata["who"], Erased)
            assert store.thread("fork").head == head
            assert [info.metadata["run"] for info in store.threads(metadata={"run": 1})] == [1, 1]
            assert store.verify()


def test_frames_of_metadata_hold_a_reference() -> None:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.commit(metadata={"who": secret()})
        (row,) = store.core.backend.scan(store.core.backend.find("", "t").line.id, 1, 1)  # type: ignore[union-attr]
        assert CANARY.encode() not in records.unframe(row.body, "a record")
