"""States of older versions, brought forward."""

from __future__ import annotations

from typing import Any

import pytest

import everthread
from everthread import Checkpointable, register_migration
from everthread.checkpoints.states import upgrade


def state(version: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"__version__": version, "__class__": name, **fields}


def trace(name: str, *versions: str, claims: dict[str, str] | None = None) -> None:
    for version in versions:

        def migrate(state: dict[str, Any], version: str = version) -> dict[str, Any]:
            state["trail"] = [*state.get("trail", []), version]
            if claims and version in claims:
                state["__version__"] = claims[version]
            return state

        register_migration(name, from_version=version, fn=migrate)


def test_numbers_sort_as_numbers() -> None:
    trace("Sorted", "1.10", "10.0", "1.2", "2.0", "1.9.9")
    found = upgrade(state("1.2", "Sorted"), "Sorted", "11.0")
    assert found["trail"] == ["1.2", "1.9.9", "1.10", "2.0", "10.0"]
    assert found["__version__"] == "11.0"


def test_only_what_lies_between_runs() -> None:
    trace("Between", "1.0", "2.0", "3.0", "4.0")
    assert upgrade(state("2.0", "Between"), "Between", "4.0")["trail"] == ["2.0", "3.0"]
    # A version without a migration of its own goes on from the next one that has.
    assert upgrade(state("1.5", "Between"), "Between", "4.0")["trail"] == ["2.0", "3.0"]
    untouched = state("4.0", "Between")
    assert upgrade(untouched, "Between", "4.0") is untouched


def test_a_migration_may_say_where_it_leads() -> None:
    trace("Leaping", "1.0", "2.0", "3.0", claims={"1.0": "3.0"})
    assert upgrade(state("1.0", "Leaping"), "Leaping", "4.0")["trail"] == ["1.0", "3.0"]


def test_the_given_state_stays_as_it_is() -> None:
    trace("Careful", "1.0")
    given = state("1.0", "Careful", items=[1])
    upgrade(given, "Careful", "2.0")
    assert given == state("1.0", "Careful", items=[1])


def test_a_newer_state_is_refused() -> None:
    with pytest.raises(everthread.SchemaVersionError) as caught:
        upgrade(state("2.0", "Any"), "Any", "1.10")
    assert (caught.value.found, caught.value.supported) == ("2.0", "1.10")


def test_a_state_older_than_every_migration_is_not_pushed_through_the_first_one() -> None:
    trace("Grown", "1.0", "2.0")
    with pytest.raises(everthread.SchemaVersionError, match=r"from_version='0\.9'"):
        upgrade(state("0.9", "Grown"), "Grown", "3.0")
    # Between two of them the next one leads on, as before.
    assert upgrade(state("1.5", "Grown"), "Grown", "3.0")["trail"] == ["2.0"]


def test_no_way_forward_is_an_error_that_names_it() -> None:
    with pytest.raises(
        everthread.SchemaVersionError, match=r"register_migration\('Nobody', from_version='1\.0'"
    ):
        upgrade(state("1.0", "Nobody"), "Nobody", "2.0")
    trace("Short", "1.0", claims={"1.0": "2.0"})
    with pytest.raises(everthread.SchemaVersionError, match=r"from version 2\.0"):
        upgrade(state("1.0", "Short"), "Short", "3.0")


def test_circles_are_refused() -> None:
    trace("Circle", "1.0", "2.0", claims={"1.0": "2.0", "2.0": "1.0"})
    with pytest.raises(everthread.InvalidStateError, match=r"leads back to 1\.0"):
        upgrade(state("1.0", "Circle"), "Circle", "3.0")


def test_a_migration_must_return_the_state() -> None:
    register_migration("Forgetful", from_version="1.0", fn=lambda state: None)  # type: ignore[type-var]
    with pytest.raises(everthread.InvalidStateError, match="must return the state"):
        upgrade(state("1.0", "Forgetful"), "Forgetful", "2.0")


def test_versions_in_data_may_be_anything() -> None:
    for odd in ("9" * 10_000, "", "…", "v1-beta", None, 5):
        with pytest.raises(everthread.SchemaVersionError):
            upgrade({"__version__": odd}, "Odd", "1.0")


def test_a_class_is_renamed_by_a_migration() -> None:
    class NewName(Checkpointable):
        def __init__(self) -> None:
            self.x = 0

        def _checkpoint_version(self) -> str:
            return "2.0"

    @register_migration("OldName", from_version="1.0")
    def rename(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "__class__": "NewName"}

    loaded = NewName()
    loaded.load_state_dict(state("1.0", "OldName", x=5))
    assert loaded.x == 5
    assert rename({})["__class__"] == "NewName"


def test_nested_objects_migrate_by_their_own_class() -> None:
    class Part(Checkpointable):
        def __init__(self) -> None:
            self.size = 0

        def _checkpoint_version(self) -> str:
            return "2.0"

    class Whole(Checkpointable):
        def __init__(self) -> None:
            self.part = Part()

    register_migration(Part, from_version="1.0", fn=lambda state: {**state, "size": state["size"] * 10})
    whole = Whole()
    whole.load_state_dict(state("1.0", "Whole", part=state("1.0", "Part", size=4)))
    assert whole.part.size == 40


def test_the_last_registration_counts() -> None:
    register_migration("Twice", from_version="1.0", fn=lambda state: {**state, "n": 1})
    register_migration("Twice", from_version="1.0", fn=lambda state: {**state, "n": 2})
    assert upgrade(state("1.0", "Twice"), "Twice", "2.0")["n"] == 2
    with pytest.raises(everthread.InvalidValueError):
        register_migration("Twice", from_version="1.0", fn=5)  # type: ignore[call-overload]
