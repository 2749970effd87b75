"""Older saved states become present ones, and nothing is lost on the way."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.codec import CURRENT_SCHEMA_VERSION, migrate
from everthread.errors import InvalidValueError, LimitError, SchemaVersionError, UsageError

COLLECTIONS: dict[str, Any] = {
    "todos": [],
    "context": {},
    "open_loops": [],
    "intentions": [],
    "constraints": [],
}


def test_an_empty_payload_gets_every_collection() -> None:
    assert migrate({}) == {**COLLECTIONS, "schema_version": CURRENT_SCHEMA_VERSION}


def test_items_get_defaults_and_keep_what_they_have() -> None:
    old = {
        "todos": [
            {"id": "t1", "content": "a"},
            {"id": "t2", "content": "b", "status": "completed", "priority": "high", "colour": "red"},
        ],
        "open_loops": [{"id": "l1", "description": "c", "context": None}],
    }
    assert migrate(old) == {
        **COLLECTIONS,
        "schema_version": 1,
        "todos": [
            {"id": "t1", "content": "a", "status": "pending", "priority": "medium"},
            {"id": "t2", "content": "b", "status": "completed", "priority": "high", "colour": "red"},
        ],
        "open_loops": [{"id": "l1", "description": "c", "context": None}],
    }


def test_bare_texts_become_items() -> None:
    new = migrate({"todos": ["a"], "open_loops": ["b"], "intentions": ["c"], "constraints": ["d"]})
    assert new["todos"] == [{"content": "a", "status": "pending", "priority": "medium"}]
    assert new["open_loops"] == [{"description": "b"}]
    assert new["intentions"] == [{"text": "c"}]
    assert new["constraints"] == [{"text": "d"}]


def test_bare_context_values_become_items() -> None:
    old = {
        "context": {
            "bare": 1,
            "none": None,
            "mapping": {"a": 1},
            "look-alike": {"value": 1, "unit": "kg"},
            "item": {"value": 2, "metadata": {"by": "x"}},
        }
    }
    assert migrate(old)["context"] == {
        "bare": {"value": 1},
        "none": {"value": None},
        "mapping": {"value": {"a": 1}},
        "look-alike": {"value": {"value": 1, "unit": "kg"}},
        "item": {"value": 2, "metadata": {"by": "x"}},
    }


def test_context_of_a_present_state_is_left_alone() -> None:
    present = {**COLLECTIONS, "schema_version": 1, "context": {"a": {"value": {"b": 1}}, "odd": 3}}
    assert migrate(present) == present


@pytest.mark.parametrize("name", list(COLLECTIONS))
@pytest.mark.parametrize("wrong", [None, 3, "text"])
def test_a_collection_of_the_wrong_type_is_left_for_validation(name: str, wrong: Any) -> None:
    assert migrate({name: wrong})[name] == wrong


def test_items_of_the_wrong_type_are_kept() -> None:
    assert migrate({"todos": [None, 3, ["x"]]})["todos"] == [None, 3, ["x"]]


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
names = st.sampled_from([*COLLECTIONS, "id", "x"])


@given(st.dictionaries(names, plain, max_size=6), st.sampled_from([None, 0, 1]))
def test_idempotent_additive_and_without_side_effects(payload: dict[str, Any], version: int | None) -> None:
    if version is not None:
        payload["schema_version"] = version
    before = copy.deepcopy(payload)
    once = migrate(payload)
    assert payload == before
    assert migrate(once) == once
    assert set(once) >= set(payload)
    for name in set(payload) - set(COLLECTIONS) - {"schema_version"}:
        assert once[name] == payload[name]
    if version == 1:
        assert once == payload


def test_the_result_shares_nothing_with_the_argument() -> None:
    old: dict[str, Any] = {"todos": [{"content": "a", "tags": ["x"]}], "context": {"k": {"deep": []}}}
    new = migrate(old)
    new["todos"][0]["tags"].append("y")
    new["context"]["k"]["value"]["deep"].append(1)
    assert old == {"todos": [{"content": "a", "tags": ["x"]}], "context": {"k": {"deep": []}}}


def test_version_0_may_stay_as_it_is() -> None:
    assert migrate({"todos": ["a"]}, target_version=0) == {"todos": ["a"]}


def test_newer_payload_is_refused_untouched() -> None:
    payload = {"schema_version": CURRENT_SCHEMA_VERSION + 1, "todos": ["a"]}
    with pytest.raises(SchemaVersionError) as caught:
        migrate(payload)
    assert caught.value.found == CURRENT_SCHEMA_VERSION + 1
    assert caught.value.supported == CURRENT_SCHEMA_VERSION
    assert payload == {"schema_version": CURRENT_SCHEMA_VERSION + 1, "todos": ["a"]}


def test_newer_target_is_refused() -> None:
    with pytest.raises(SchemaVersionError):
        migrate({}, target_version=CURRENT_SCHEMA_VERSION + 1)


def test_going_back_is_refused() -> None:
    with pytest.raises(UsageError, match="can't go back"):
        migrate({"schema_version": 1}, target_version=0)


@pytest.mark.parametrize("payload", [None, [], "{}", 3, [("todos", [])]])
def test_not_a_dict(payload: Any) -> None:
    with pytest.raises(InvalidValueError, match="dict"):
        migrate(payload)


@pytest.mark.parametrize("version", [None, "1", 1.0, True, -1, [1]])
def test_not_a_version(version: Any) -> None:
    with pytest.raises(InvalidValueError) as caught:
        migrate({"schema_version": version})
    assert caught.value.path == "schema_version"
    with pytest.raises(InvalidValueError):
        migrate({}, target_version=version)


def test_a_cycle_is_an_error_of_ours() -> None:
    payload: dict[str, Any] = {}
    payload["self"] = payload
    with pytest.raises(LimitError):
        migrate(payload)
