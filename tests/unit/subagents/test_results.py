"""Results: checked by whatever the caller brings along, and what doesn't fit goes back as words."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pydantic.dataclasses
import pytest

import everthread
from everthread import InDoubtError, SessionBusyError, SessionFencedError, Store
from everthread.subagents import Outcome, Subagent, subagents_of
from tests.unit.subagents.agents import PARENT, ask, require_sound


class Model(pydantic.BaseModel):
    n: int = pydantic.Field(gt=0)


class Struct(msgspec.Struct):
    n: int


@dataclasses.dataclass
class Plain:
    n: int


@pydantic.dataclasses.dataclass
class Checked:
    n: int = pydantic.Field(gt=0)


def positive(value: Any) -> int:
    if value["n"] <= 0:
        raise ValueError("n must be positive")
    return int(value["n"])


#: What is wanted, and the value that {"n": 3} comes to.
FORMS: list[tuple[Any, Any]] = [
    (Model, Model(n=3)),
    (Struct, Struct(3)),
    (Plain, Plain(3)),
    (Checked, Checked(3)),
    (pydantic.TypeAdapter(dict[str, int]), {"n": 3}),
    (dict[str, int], {"n": 3}),
    (positive, 3),
    (None, {"n": 3}),
]
IDS = ["model", "struct", "dataclass", "pydantic dataclass", "adapter", "type", "function", "none"]


@pytest.fixture
def store() -> Iterator[Store]:
    with everthread.open("memory:", keyring="memory:") as opened:
        yield opened


@pytest.mark.parametrize(("wanted", "value"), FORMS, ids=IDS)
def test_a_value_has_the_form_that_was_asked_for_also_when_it_is_found_again(
    store: Store, wanted: Any, value: Any
) -> None:
    helper = Subagent("helper", lambda task: {"n": 3}, result=wanted)
    assert ask(store, helper, "c1").value == value
    with store.session(PARENT) as parent:
        again = helper.call(parent, "c1", "go")
    assert again.value == value
    assert type(again.value) is type(value)


@pytest.mark.parametrize(("wanted", "value"), FORMS[:6], ids=IDS[:6])
def test_text_is_read_as_json_and_an_object_is_taken(store: Store, wanted: Any, value: Any) -> None:
    assert ask(store, Subagent("helper", lambda task: '{"n": 3}', result=wanted), "c1").value == value
    assert ask(store, Subagent("other", lambda task: value, result=wanted), "c2").value == value


@pytest.mark.parametrize(("wanted", "value"), FORMS[:7], ids=IDS[:7])
def test_what_does_not_fit_goes_back_as_the_text_of_the_tool(store: Store, wanted: Any, value: Any) -> None:
    helper = Subagent("helper", lambda task: {"n": "three"}, result=wanted)
    outcome = ask(store, helper, "c1")
    assert not outcome.ok
    assert outcome.value is None
    assert outcome.text.startswith("The answer of the subagent 'helper' doesn't fit")
    (child,) = subagents_of(store.thread(PARENT))
    assert child.status == "failed"
    require_sound(store.thread(PARENT).messages)
    with store.session(PARENT) as parent:
        assert helper.call(parent, "c1", "go") == outcome


def test_a_model_that_no_longer_fits_is_refused(store: Store) -> None:
    wrong = Model(n=3)
    wrong.n = -1
    assert not ask(store, Subagent("helper", lambda task: wrong, result=Model), "c1").ok


def test_the_text_of_a_value(store: Store) -> None:
    for number, (value, text) in enumerate(
        [("as it is", "as it is"), (Model(n=3), '{"n": 3}'), ([Plain(1)], '[{"n": 1}]'), (None, "null")]
    ):
        assert ask(store, Subagent("helper", lambda task, v=value: v), f"c{number}").text == text


def test_a_child_that_fails_is_an_answer(store: Store) -> None:
    def work(task: Any) -> None:
        with store.session(task.thread, max_turns=0) as child, child.turn():
            pass

    def fail(task: Any) -> None:
        raise RuntimeError("no such page " + "x" * 5_000)

    assert ask(store, Subagent("a", work), "c1").reason == "max_turns"
    outcome = ask(store, Subagent("b", fail), "c2")
    assert outcome.text.startswith("The subagent 'b' failed: RuntimeError: no such page")
    assert len(outcome.text) <= 2_000
    assert [child.status for child in subagents_of(store.thread(PARENT))] == ["failed", "failed"]
    assert ask(store, Subagent("c", lambda task: Outcome(error="refused")), "c3").text == "refused"
    in_doubt = InDoubtError("unknown", key="k", reason="r", since=None)  # type: ignore[arg-type]
    assert not ask(store, Subagent("d", lambda task: (_ for _ in ()).throw(in_doubt)), "c4").ok


@pytest.mark.parametrize(
    "error",
    [
        SessionBusyError("held", holder="x", expires=None),
        SessionFencedError("taken over", attempt=1, newest=2),
    ],
)
def test_a_child_that_another_run_has_leaves_the_call_open(store: Store, error: Exception) -> None:
    def work(task: Any) -> None:
        raise error

    with pytest.raises(type(error)):
        ask(store, Subagent("helper", work), "c1")
    (child,) = subagents_of(store.thread(PARENT))
    assert child.is_open
    assert ask(store, Subagent("helper", lambda task: "ok"), "c1").value == "ok"


def test_what_can_not_be_stored_is_told_to_the_parent(store: Store) -> None:
    outcome = ask(store, Subagent("helper", lambda task: Outcome(object(), snapshot=object())), "c1")
    assert "can't be stored" in outcome.text
    (child,) = subagents_of(store.thread(PARENT))
    assert (child.status, child.snapshot) == ("failed", None)


def test_pydantic_is_not_loaded_for_those_who_bring_none() -> None:
    source = Path(everthread.__file__).parents[1]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import everthread\n"
        "from everthread.subagents import Subagent\n"
        "with everthread.open('memory:', keyring='memory:') as store:\n"
        "    Subagent('a', lambda task: 1, result=int).call(store.thread('x'), 'c1')\n"
        "assert 'pydantic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-I", "-c", code, str(source)], check=True)
