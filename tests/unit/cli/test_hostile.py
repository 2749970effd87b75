"""Whatever agents store, and however they call it: a terminal and a parser get what they expect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import everthread
from tests.unit.cli.calling import Program, run

NAMES = [
    "--help",
    "-",
    "../../x",
    "a\nb",
    "\x1b[31mred\x1b[0m\x07",
    "\x9b2J",
    "\u202eevil\u2066",
    "[bold red]x[/] [link=http://x]y[/link]",
    ":smile: {0} %s",
    "👩‍💻 漢字 é",
    "'; drop table record; --",
    "$(touch pwned) `touch pwned`",
    " \u00a0x ",
    "x" * 1024,
    "_\\",
]


@pytest.fixture(params=NAMES, ids=lambda each: ascii(each)[:30])
def name(request: pytest.FixtureRequest) -> str:
    given_name: str = request.param
    return given_name


def fill(store: everthread.Store, name: str) -> None:
    """A thread whose every part is called like this."""
    with store.session(name, agent=name) as s:
        s.work.set_intention(name)
        s.work.add_constraint(name)
        s.work.add_todo(name, priority="high")
        s.work.set_context(name, name)
        s.work.add_open_loop(name)
        s.tasks.add(name, blocked_by=[s.tasks.add(name).id])
        s.decide(name, rationale=name, rejected=[name])
        s.messages.append({"role": name, "content": name})
        s.messages.append({"role": "user", "content": [{"type": "text", "text": name}, {name: name}]})
        s.thread.log(name).append(name)
        s.thread.state[name] = {name: [name, {name: name}], 1: name}
        s.thread.commit(label=name, metadata={name: name})
    s.thread.fork(name + "2" if len(name) < 1000 else "2", at=1)


def safe(text: str) -> bool:
    return all(character.isprintable() or character in "\n\u200d" for character in text)


def test_every_command_takes_any_name(program: Program, store: everthread.Store, name: str) -> None:
    fill(store, name)
    fork = name + "!" if len(name) < 1000 else "!"
    calls = [[command, "--", name] for command in ("log", "show", "diff", "resume")]
    for call in (*calls, ["rewind", "--yes", "--", name, "1"], ["fork", "--", name, fork]):
        answer = program(*call)
        assert safe(answer.out), call
        assert safe(answer.err), call
    for command in (["status"], ["doctor"]):
        answer = program(*command)
        assert safe(answer.out + answer.err)
    assert not (program.folder / "pwned").exists()


def test_data_is_exact_whatever_the_name(program: Program, store: everthread.Store, name: str) -> None:
    fill(store, name)
    data = run(["--store", program.url, "--json", "show", "--log", name, "--", name], code=0).data
    assert data["thread"] == name
    assert data["state"][name][name] == [name, {name: name}]
    assert data["log"]["items"] == [name]
    assert program.json("status")["threads"][-1]["name"] in (name, name + "2", "2")
    for form in ("json", "yaml", "tsv"):
        for command in ("log", "show", "diff", "resume"):
            answer = run(["--store", program.url, "--format", form, command, "--", name], code=0)
            assert safe(answer.out.replace("\t", "")), (form, command)


def test_errors_show_names_harmlessly(program: Program, store: everthread.Store, name: str) -> None:
    answer = run(["--store", program.url, "show", "--", name], code=3)
    assert safe(answer.err)
    answer = run(["--store", f"sqlite:///{program.folder}/{name[:50].replace('/', '')}", "status"], code=3)
    assert safe(answer.err)
    answer = run(["--store", program.url, "show", "--log", name, "--", "x", name], code=3)
    assert safe(answer.err)
    answer = run(["--store", program.url, f"x{name}"], code=2)
    assert safe(answer.err)


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(TEXTS | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=st.dictionaries(TEXTS, VALUES, max_size=4), item=VALUES, label=TEXTS)
def test_any_state_is_shown(program: Program, state: dict[str, Any], item: Any, label: str) -> None:
    with everthread.open(program.url) as store:
        thread = store.thread("bot")
        if thread.head is not None:
            thread.delete()
            thread = store.thread("bot")
        thread.commit(label="begun")
        thread.state.update(state)
        thread.messages.append({"role": "user", "content": item})
        thread.commit(label=label)
    for command in ("show", "diff", "log"):
        answer = program(command, "bot")
        assert safe(answer.out + answer.err)
    data = json.loads(program("show", "bot", "--json").out)
    assert len(data["state"]) == len(state)


def test_ten_megabytes(program: Program, store: everthread.Store) -> None:
    thread = store.thread("bot")
    large, odd = "x" * 10_000_000, "é\x1b" * 100_000
    thread.state["text"] = odd
    thread.state["list"] = [{"n": n} for n in range(10_000)]
    thread.messages.append({"role": "user", "content": large + odd})
    thread.commit(label="x", metadata={"note": odd})
    for command in ("show", "log", "diff", "resume"):
        answer = program(command, "bot", code=3 if command == "resume" else 0)
        assert len(answer.out) < 20_000
        assert safe(answer.out)
    data = program.json("show", "bot")
    assert (data["state"]["text"], data["log"]["items"][0]["content"]) == (odd, large + odd)
