"""Recording and asking: by name, within bounds, never fatal."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread import Erased, InvalidNameError, InvalidValueError, verifiers
from everthread.verifiers import Status, Verdict
from everthread.verifiers import registry as known


@pytest.fixture(autouse=True)
def registered_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_registered", {})
    monkeypatch.setattr(known, "_callbacks", type(known._callbacks)())


@pytest.fixture
def never() -> Iterator[threading.Event]:
    """Set at the end, so that threads which hang until then don't outlive the test."""
    event = threading.Event()
    yield event
    event.set()


def status(stored: Any, value: Any = None, **options: Any) -> str:
    return verifiers.check(stored, value, **options).status.value


def test_a_registered_function_is_stored_by_name() -> None:
    verifiers.register("even", lambda value, base=0: (value + base) % 2 == 0)
    stored = verifiers.capture("even", 2)
    assert stored == {"name": "even", "args": {}, "expected": None}
    assert json.loads(json.dumps(stored)) == stored
    assert status(stored, 2) == "fresh"
    assert status(stored, 3) == "contradicted"
    odd = verifiers.capture(verifiers.by_name("even", base=1), 3)
    assert odd["args"] == {"base": 1}
    assert status(odd, 3) == "fresh"


def test_register_decorates_and_captures() -> None:
    count = iter(range(10))

    @verifiers.register("grown", capture=lambda value: {"was": next(count)})
    def grown(value: Any, expected: Any) -> Any:
        return Verdict(Status.STALE, f"it was {expected['was']}")

    stored = verifiers.capture(grown, None)
    assert (stored["name"], stored["expected"]) == ("grown", {"was": 0})
    assert verifiers.check(stored, None) == Verdict(Status.STALE, "it was 0")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (True, "fresh"),
        (False, "contradicted"),
        (None, "unverifiable"),
        ("stale", "stale"),
        (Status.FRESH, "fresh"),
        ("nonsense", "unverifiable"),
        (1, "unverifiable"),
        (0, "unverifiable"),
        (object(), "unverifiable"),
        (Verdict("nonsense"), "unverifiable"),  # type: ignore[arg-type]
    ],
)
def test_what_a_function_may_answer(answer: Any, expected: str) -> None:
    verifiers.register("it", lambda value: answer)
    assert status(verifiers.capture("it", None)) == expected


def test_a_function_without_a_name_is_known_to_this_process_only(tmp_path: Path) -> None:
    stored = verifiers.capture(lambda value: value == 1, 1)
    assert (status(stored, 1), status(stored, 2)) == ("fresh", "contradicted")
    program = (
        "import json, sys; from everthread import verifiers\n"
        "print(verifiers.check(json.loads(sys.argv[1]), 1).status)"
    )
    command = [sys.executable, "-c", program, json.dumps(stored)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout == "unverifiable\n"


def test_functions_without_a_name_are_forgotten_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "CALLBACKS_MAX", 10)
    first = verifiers.capture(lambda value: True, None)
    for _ in range(10):
        newest = verifiers.capture(lambda value: True, None)
    assert len(known._callbacks) == 10
    assert (status(first), status(newest)) == ("unverifiable", "fresh")


def test_hanging_and_raising_are_reported(never: threading.Event) -> None:
    def leave(value: Any) -> None:
        sys.exit(1)

    def interrupt(value: Any) -> None:
        raise KeyboardInterrupt

    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def unspeakable(value: Any) -> None:
        raise UnspeakableError

    def loud(value: Any) -> None:
        raise ValueError("x\n" * 100_000)

    for name, function in {
        "leave": leave,
        "interrupt": interrupt,
        "unspeakable": unspeakable,
        "loud": loud,
        "hang": lambda value: never.wait(),
    }.items():
        verifiers.register(name, function)
        stored = {"name": name, "args": {}, "expected": None}
        found = verifiers.check(stored, None, timeout_s=0.2)
        assert found.status is Status.UNVERIFIABLE
        assert 0 < len(found.reason) <= 300
        assert "\n" not in found.reason
    assert "ValueError: x x" in verifiers.check({"name": "loud"}, None).reason


def test_one_that_hangs_does_not_hold_up_the_others(never: threading.Event) -> None:
    verifiers.register("hang", lambda value: never.wait())
    verifiers.register("quick", lambda value: True)
    facts = [({"name": "hang" if number % 3 == 0 else "quick"}, None) for number in range(30)]
    found = verifiers.check_all(facts, each_s=1, total_s=30)
    assert [each.status.value for each in found] == ["unverifiable", "fresh", "fresh"] * 10


def test_all_together_have_a_limit(never: threading.Event) -> None:
    verifiers.register("hang", lambda value: never.wait())
    found = verifiers.check_all([({"name": "hang"}, None)] * 100, each_s=60, total_s=1)
    assert {each.status for each in found} == {Status.UNVERIFIABLE}
    assert sum("not checked" in each.reason for each in found) == 92


def test_a_process_ends_although_a_verifier_hangs() -> None:
    program = (
        "import threading; from everthread import verifiers\n"
        "verifiers.register('hang', lambda value: threading.Event().wait())\n"
        "print(verifiers.check({'name': 'hang'}, None, timeout_s=0.1).status)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (0, "unverifiable\n"), found.stderr


def test_capturing_has_a_limit_too(never: threading.Event) -> None:
    verifiers.register("slow", lambda value, expected: True, capture=lambda value: never.wait())
    stored = verifiers.capture("slow", None, timeout_s=0.1)
    assert "in time" in stored["problem"]
    assert status(stored) == "unverifiable"


@pytest.mark.parametrize("captured", [object(), {1, 2}, "x" * 20_000, {"a": b"x"}, {1: 2}, float("nan")])
def test_a_capture_that_can_not_be_stored_is_refused(captured: Any) -> None:
    verifiers.register("odd", lambda value, expected: True, capture=lambda value: captured)
    with pytest.raises(InvalidValueError):
        verifiers.capture("odd", None)


def test_what_a_caller_gets_wrong() -> None:
    with pytest.raises(InvalidValueError, match="register it first"):
        verifiers.capture("nobody", None)
    with pytest.raises(InvalidValueError, match="not int"):
        verifiers.capture(7, None)
    with pytest.raises(InvalidValueError, match="no stored verifier"):
        verifiers.capture({"nonsense": 1}, None)
    with pytest.raises(InvalidValueError, match="built in"):
        verifiers.register("command", lambda value: True)
    with pytest.raises(InvalidValueError, match="function"):
        verifiers.register("x", 7)  # type: ignore[call-overload]
    with pytest.raises(InvalidNameError):
        verifiers.register("", lambda value: True)
    with pytest.raises(InvalidValueError, match="JSON-like"):
        verifiers.by_name("x", argument=object())
    with pytest.raises(InvalidValueError, match="bytes"):
        verifiers.by_name("x", argument="y" * 20_000)


def test_what_was_captured_is_kept_as_it_is() -> None:
    stored = {"name": "of another process", "args": {"a": [1]}, "expected": {"b": None}, "problem": "x"}
    assert verifiers.capture(stored, None) == stored


def test_an_erased_value_can_not_be_verified() -> None:
    verifiers.register("it", lambda value: True)
    assert status(verifiers.capture("it", 1), Erased()) == "unverifiable"


def test_unknown_names_run_nothing() -> None:
    for name in ("os.system", "__import__", "builtins.eval", "everthread.verifiers.command", "", "command "):
        assert status({"name": name, "args": {"argv": ["true"]}}, allow_commands=True) == "unverifiable"


data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
names = st.sampled_from(["command", "file_hash", "git_branch", "git_commit", "process_alive", "x"])
field_names = st.sampled_from(["argv", "path", "repo", "branch", "commit", "pid", "status", "size", "cwd"])


@given(
    data
    | st.fixed_dictionaries(
        {"name": names | data, "args": st.dictionaries(field_names, data) | data},
        optional={"expected": st.dictionaries(field_names, data) | data, "problem": data},
    )
)
def test_no_stored_data_whatever_is_fatal(stored: Any) -> None:
    found = verifiers.check(stored, None)
    assert isinstance(found.status, Status)
    assert found.status is not Status.FRESH
    assert found.reason
