"""Names: any text that isn't empty, too long, or impossible to write as UTF-8."""

from __future__ import annotations

from typing import Any

from everthread.errors import InvalidNameError
from everthread.testing.rules.expecting import OpenStore, commit, raises

LEGAL = [
    "a",
    " ",
    "../../x",
    "/etc/passwd",
    "..",
    "C:\\x",
    "'; drop table--",
    "'; DROP TABLE line; --",
    '"quoted"',
    "%s %d {0} {}",
    "*",
    "a*b?[c]",
    "redis.call('flushall')",
    "line\nbreak\ttab",
    "\x7f\x01",
    "é",
    "e\u0301",
    "日本語",
    "🧵",
    "\U0010ffff",
    "A",
    "a ",
    "CON",
    "x" * 1024,
    "é" * 512,
    "🧵" * 256,
]
ILLEGAL: list[Any] = [
    "",
    "\0",
    "a\0b",
    "\ud800",
    "a\udfffb",
    "x" * 1025,
    "é" * 513,
    "x" * 10_000_000,
    None,
    1,
    b"bytes",
    ["list"],
]


class NameRules:
    def test_any_other_text_is_a_legal_thread_name(self, open_store: OpenStore) -> None:
        store = open_store()
        for number, name in enumerate(LEGAL):
            thread = store.thread(name)
            thread.state["number"] = number
            thread.commit()
        assert [found.name for found in store.threads()] == sorted(LEGAL)
        for number, name in enumerate(LEGAL):
            assert store.thread(name).state.plain() == {"number": number}
            (found,) = (f for f in store.threads(prefix=name) if f.name == name)
            assert found.seq == 1
        store.thread("A").delete()
        assert store.thread("a").state.plain() == {"number": 0}

    def test_any_other_text_is_a_legal_log_key_label_and_step_name(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        made = {}
        for name in LEGAL:
            thread.log(name).append({"id": name, "log": name})
            made[name] = commit(thread, label=name, key=name, metadata={name: name})
            with thread.step(name) as step:
                step.result = name
        read = store.thread("a")
        assert read.logs == sorted(LEGAL)
        for name in LEGAL:
            assert read.log(name)[:] == [{"id": name, "log": name}]
            assert read.at(made[name]).version.label == name
            assert commit(read, key=name, label="again") == made[name]
            with read.step(name) as step:
                assert step.result == name

    def test_a_fork_may_have_any_legal_name(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("root")
        thread.state["x"] = 1
        thread.commit()
        for name in LEGAL:
            thread = thread.fork(name)
            thread.state[name] = 1
            thread.commit()
        assert store.thread(LEGAL[-1]).state.plain() == {"x": 1, **dict.fromkeys(LEGAL, 1)}

    def test_everything_else_is_refused(self, open_store: OpenStore) -> None:
        store = open_store()
        thread = store.thread("a")
        thread.state["x"] = 1
        head = commit(thread)
        for name in ILLEGAL:
            with raises(InvalidNameError):
                store.thread(name)
            with raises(InvalidNameError):
                thread.log(name)
            with raises(InvalidNameError):
                thread.fork(name)
            if name is not None:
                thread.state["x"] = 2
                with raises(InvalidNameError):
                    thread.commit(key=name)
                with raises(InvalidNameError):
                    thread.commit(label=name)
                thread.discard()
            if isinstance(name, str):
                with raises(InvalidNameError):
                    thread.step(name)
        assert thread.head == store.thread("a").head == head
        assert [found.name for found in store.threads()] == ["a"]

    def test_a_refusal_shows_a_name_only_if_it_is_short(self, open_store: OpenStore) -> None:
        store = open_store()
        with raises(InvalidNameError) as caught:
            store.thread("x" * 10_000_000)
        assert len(str(caught[0])) < 500
