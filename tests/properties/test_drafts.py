"""Every method of ``thread.state`` and of the drafts of ``update()`` and ``lock()``, beside dict and list.

Each call is made on the document and on plain data. Both must give the same result or raise the same kind of
error, leave the same content, and hand out parts whose changes count (or don't) in the same way.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everthread

KEYS = st.sampled_from(["a", "b", "list", "dict", "ü", 1, None])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "x", "é", 0.5]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=6,
)
DICTS = st.dictionaries(KEYS, VALUES, max_size=4)
INDICES = st.integers(-4, 4)
SLICES = st.builds(
    slice, st.none() | INDICES, st.none() | INDICES, st.none() | st.sampled_from([-2, -1, 1, 2, 3])
)


def _first(items: Any) -> Any:
    return next(iter(items), None)


def _inplace(how: Callable[[Any, Any], Any], target: Any, other: Any) -> bool:
    """Return True if the operator changed the very object, as it does with a dict or list."""
    return how(target, other) is target


#: How each method of dict is called: the function, then the strategies of its arguments.
OF_DICT: dict[str, list[tuple[Any, ...]]] = {
    "__getitem__": [(operator.getitem, KEYS)],
    "__setitem__": [(operator.setitem, KEYS, VALUES)],
    "__delitem__": [(operator.delitem, KEYS)],
    "__contains__": [(operator.contains, KEYS)],
    "__len__": [(len,)],
    "__iter__": [(list,)],
    "__reversed__": [(lambda d: list(reversed(d)),)],
    "__eq__": [(operator.eq, DICTS), (lambda d: d == d,), (lambda d, o: o == d, DICTS)],
    "__ne__": [(operator.ne, DICTS), (operator.ne, SCALARS)],
    "__lt__": [(operator.lt, DICTS)],
    "__le__": [(operator.le, DICTS)],
    "__gt__": [(operator.gt, DICTS)],
    "__ge__": [(operator.ge, DICTS)],
    "__or__": [(operator.or_, DICTS), (operator.or_, SCALARS), (lambda d: d | d,)],
    "__ror__": [(lambda d, o: o | d, DICTS), (lambda d, o: o | d, SCALARS)],
    "__ior__": [
        (lambda d, o: _inplace(operator.ior, d, o), DICTS),
        (lambda d, o: _inplace(operator.ior, d, list(o.items())), DICTS),
        (lambda d: _inplace(operator.ior, d, d),),
        (lambda d, o: _inplace(operator.ior, d, o), SCALARS),
    ],
    "clear": [(lambda d: d.clear(),)],
    "copy": [(lambda d: d.copy(),)],
    "get": [(lambda d, k: d.get(k), KEYS), (lambda d, k, v: d.get(k, v), KEYS, VALUES)],
    "items": [
        (lambda d: list(d.items()),),
        (lambda d: list(reversed(d.items())),),
        (lambda d: (_first(d.items()) or (None, None))[1],),
        (lambda d: len(d.items()),),
    ],
    "keys": [
        (lambda d: list(d.keys()),),
        (lambda d: list(reversed(d.keys())),),
        (lambda d, o: d.keys() & o.keys(), DICTS),
        (lambda d, o: d.keys() - o.keys(), DICTS),
    ],
    "values": [
        (lambda d: list(d.values()),),
        (lambda d: list(reversed(d.values())),),
        (lambda d: _first(d.values()),),
        (lambda d, v: v in d.values(), VALUES),
    ],
    "pop": [(lambda d, k: d.pop(k), KEYS), (lambda d, k, v: d.pop(k, v), KEYS, SCALARS)],
    "popitem": [(lambda d: d.popitem(),)],
    "setdefault": [
        (lambda d, k: d.setdefault(k), KEYS),
        (lambda d, k, v: d.setdefault(k, v), KEYS, VALUES),
    ],
    "update": [
        (lambda d, o: d.update(o), DICTS),
        (lambda d, o: d.update(list(o.items())), DICTS),
        (lambda d, v: d.update(b=v), VALUES),
        (lambda d, o, v: d.update(o, b=v), DICTS, VALUES),
        (lambda d: d.update(),),
        (lambda d: d.update(d),),
        (lambda d, v: d.update(v), SCALARS),
    ],
}

OF_LIST: dict[str, list[tuple[Any, ...]]] = {
    "__getitem__": [(operator.getitem, INDICES), (operator.getitem, SLICES)],
    "__setitem__": [
        (operator.setitem, INDICES, VALUES),
        (operator.setitem, SLICES, VALUES),
        (lambda x, at: operator.setitem(x, at, x), SLICES),
    ],
    "__delitem__": [(operator.delitem, INDICES), (operator.delitem, SLICES)],
    "__contains__": [(operator.contains, VALUES)],
    "__len__": [(len,)],
    "__iter__": [(list,), (_first,)],
    "__reversed__": [(lambda x: list(reversed(x)),), (lambda x: _first(reversed(x)),)],
    "__eq__": [(operator.eq, st.lists(SCALARS)), (lambda x: x == x,)],
    "__ne__": [(operator.ne, VALUES)],
    "__lt__": [(operator.lt, st.lists(SCALARS))],
    "__le__": [(operator.le, st.lists(SCALARS))],
    "__gt__": [(operator.gt, st.lists(SCALARS))],
    "__ge__": [(operator.ge, st.lists(SCALARS))],
    "__add__": [(operator.add, VALUES), (lambda x, o: o + x, st.lists(VALUES)), (lambda x: x + x,)],
    "__iadd__": [
        (lambda x, o: _inplace(operator.iadd, x, o), VALUES),
        (lambda x: _inplace(operator.iadd, x, x),),
    ],
    "__mul__": [(operator.mul, INDICES), (operator.mul, SCALARS)],
    "__rmul__": [(lambda x, n: n * x, INDICES)],
    "__imul__": [(lambda x, n: _inplace(operator.imul, x, n), st.integers(-1, 2))],
    "append": [(lambda x, v: x.append(v), VALUES)],
    "clear": [(lambda x: x.clear(),)],
    "copy": [(lambda x: x.copy(),)],
    "count": [(lambda x, v: x.count(v), VALUES)],
    "extend": [(lambda x, v: x.extend(v), VALUES), (lambda x: x.extend(x),)],
    "index": [
        (lambda x, v: x.index(v), VALUES),
        (lambda x, v, a, b: x.index(v, a, b), SCALARS, INDICES, INDICES),
    ],
    "insert": [(lambda x, i, v: x.insert(i, v), INDICES, VALUES)],
    "pop": [(lambda x: x.pop(),), (lambda x, i: x.pop(i), INDICES)],
    "remove": [(lambda x, v: x.remove(v), VALUES)],
    "reverse": [(lambda x: x.reverse(),)],
    "sort": [
        (lambda x: x.sort(),),
        (lambda x, r: x.sort(key=repr, reverse=r), st.booleans()),
        (lambda x: x.sort(key=lambda item: hasattr(item, "append")),),
    ],
}

#: Methods of the type or the interpreter, not of the content. ``repr()`` of a draft says that it is one.
OF_TYPES = {
    *dir(object),
    "__class_getitem__",
    "fromkeys",
} - {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
#: Their results are detached copies: deep for a document, shallow for plain data.
DETACHED = {"copy", "__or__", "__ror__", "__add__", "__mul__", "__rmul__"}


def test_every_method_of_dict_and_list_is_compared() -> None:
    assert set(dir(dict)) - OF_TYPES == set(OF_DICT)
    assert set(dir(list)) - OF_TYPES == set(OF_LIST)


@st.composite
def calls(draw: Any) -> list[tuple[bool, str, Any, tuple[Any, ...], bool]]:
    made = []
    for _ in range(draw(st.integers(1, 6))):
        on_list = draw(st.booleans())
        table = OF_LIST if on_list else OF_DICT
        name = draw(st.sampled_from(sorted(table)))
        function, *strategies = draw(st.sampled_from(table[name]))
        arguments = tuple(draw(strategy) for strategy in strategies)
        made.append((on_list, name, function, arguments, name not in DETACHED and draw(st.booleans())))
    return made


def plain(value: Any) -> Any:
    """Return plain data, whatever part of a document the value is."""
    if hasattr(value, "plain"):
        return value.plain()
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


def unshared(value: Any) -> Any:
    """Return a copy in which no part occurs twice: a document copies what it is given."""
    if isinstance(value, dict):
        return {key: unshared(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(unshared(item) for item in value)
    return value


def outcome(function: Any, target: Any, arguments: tuple[Any, ...], change: bool) -> Any:
    """Call the function, then change what it returned: the document changes if plain data would."""
    try:
        result = function(target, *unshared(arguments))
    except (TypeError, ValueError, KeyError, IndexError) as error:
        # Our own errors for values that can't be stored are ValueErrors as well; none is stored here.
        return type(error)
    seen = unshared(plain(result))
    if change and result is not target:
        if hasattr(result, "append"):
            result.append("changed")
        elif hasattr(result, "setdefault"):
            result.setdefault("changed", "yes")
    return seen


def compare(target: Any, expected: dict[Any, Any], made: Any) -> None:
    for on_list, name, function, arguments, change in made:
        if on_list:
            for each in (target, expected):
                if hasattr(each.get("list"), "append"):
                    continue
                each["list"] = [3, "x", [1], {"a": [2]}]
        one, two = (target["list"], expected["list"]) if on_list else (target, expected)
        ours = outcome(function, one, arguments, change)
        assert ours == outcome(function, two, arguments, change), name
        assert repr(plain(target)) == repr(expected), name
        for key, value in expected.items():
            expected[key] = unshared(value)


def by_state(start: dict[Any, Any], made: Any) -> tuple[Any, Any]:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.state.update(start)
        thread.commit(label="start")
        compare(thread.state, start, made)
        thread.commit()
        return store.thread("t").state.plain(), start


def by_update(start: dict[Any, Any], made: Any) -> tuple[Any, Any]:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.update(lambda draft: draft.update(start))
        thread.update(lambda draft: compare(draft, start, made))
        return store.thread("t").state.plain(), start


def by_lock(start: dict[Any, Any], made: Any) -> tuple[Any, Any]:
    with everthread.open("memory:") as store:
        thread = store.thread("t")
        thread.update(lambda draft: draft.update(start))
        with thread.lock() as draft:
            compare(draft, start, made)
        return store.thread("t").state.plain(), start


def by_async_update(start: dict[Any, Any], made: Any) -> tuple[Any, Any]:
    async def main() -> Any:
        async with everthread.open_async("memory:") as store:
            thread = await store.thread("t")
            await thread.update(lambda draft: draft.update(start))
            await thread.update(lambda draft: compare(draft, start, made))
            return (await store.thread("t")).state.plain()

    return asyncio.run(main()), start


def by_async_lock(start: dict[Any, Any], made: Any) -> tuple[Any, Any]:
    async def main() -> Any:
        async with everthread.open_async("memory:") as store:
            thread = await store.thread("t")
            await thread.update(lambda draft: draft.update(start))
            async with thread.lock() as draft:
                compare(draft, start, made)
            return (await store.thread("t")).state.plain()

    return asyncio.run(main()), start


@pytest.mark.parametrize("way", [by_state, by_update, by_lock, by_async_update, by_async_lock])
@given(start=DICTS, made=calls())
def test_a_document_and_its_drafts_behave_as_dict_and_list_do(
    way: Callable[[dict[Any, Any], Any], tuple[Any, Any]], start: dict[Any, Any], made: Any
) -> None:
    stored, expected = way(start, made)
    assert repr(stored) == repr(expected)


def test_what_setdefault_returns_in_an_update_is_a_part_of_the_document() -> None:
    with everthread.open("memory:") as store:
        store.thread("t").update(lambda draft: draft.setdefault("list", []).append(1))
        with store.thread("t").lock() as draft:
            draft.setdefault("other", {}).setdefault("inner", []).append(2)
        assert store.thread("t").state.plain() == {"list": [1], "other": {"inner": [2]}}
