"""The tracked tree in lockstep with plain data, and its ops in lockstep with the tree.

Every container is known twice: as a node and as the plain dict or list of the model. Some nodes are held
while other edits go on around them, so that they move, and leave the document, in all kinds of ways.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from everthread.codec import values
from everthread.codec.values import decode, encode, lift
from everthread.errors import InvalidStateError
from everthread.history.ops import apply
from everthread.threads.document import Document

HELD_MAX = 8
GONE = object()


class Plus(NamedTuple):
    amount: int


#: Few, and three of them often, so that keys are deleted, added again and overwritten all the time.
KEYS = st.sampled_from(["a", "b", "c", "a", "b", "c", "ü", 1, 2**70, (1, "x"), uuid.UUID(int=5), None])
#: Halves and integers only: their sums don't depend on the order of adding.
NUMBERS = st.one_of(st.integers(-5, 5), st.sampled_from([0.5, -2.5, 2**63, -(2**63), 2**64 - 1, 2**66]))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    st.sampled_from(["", "text", "é", b"bytes", -0.0, 0.0, Decimal("1.0"), (1, (2,))]),
)
EDITS = st.tuples(KEYS, st.one_of(st.just(GONE), st.integers(-3, 3).map(Plus), SCALARS))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=10,
)
INDICES = st.integers(-7, 7)
SLICES = st.builds(
    slice,
    st.none() | INDICES,
    st.none() | INDICES,
    st.none() | st.integers(-3, 3).filter(lambda step: step != 0),
)


def lower(value: Any, where: str = "state") -> Any:
    return values.lower(value, root=where)


def exact(value: Any) -> str:
    """Text that tells apart all that matters: types, signs of zero, the order of keys."""
    return repr(value)


def containers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """All dicts and lists of plain data with their paths, outermost first."""
    if type(value) is dict:
        yield path, value
        for key, item in value.items():
            yield from containers(item, (*path, key))
    elif type(value) is list:
        yield path, value
        for index, item in enumerate(value):
            yield from containers(item, (*path, index))


class Lockstep(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model: dict[Any, Any] = {}
        self.document = Document({}, lower=lower, lift=lift)
        self.committed: bytes = encode({})
        self.held: list[tuple[Any, Any]] = []

    @initialize(content=st.dictionaries(KEYS, TREES, max_size=5))
    def start(self, content: dict[Any, Any]) -> None:
        self.model = copy.deepcopy(content)
        self.document.reset(lower(content))
        self.committed = encode(self.document.raw)

    # Choosing where to edit

    def pick(self, data: st.DataObject, kind: type | None = None) -> tuple[Any, Any] | None:
        """A node and its plain twin: one that is held (and may have left the document), or any other."""
        held = [pair for pair in self.held if kind is None or type(pair[1]) is kind]
        if held and data.draw(st.booleans(), label="held"):
            return data.draw(st.sampled_from(held), label="which")
        if kind is not list and data.draw(st.booleans(), label="root"):
            return self.document.root, self.model
        found = [(path, twin) for path, twin in containers(self.model) if kind is None or type(twin) is kind]
        if not found:
            return None
        path, twin = data.draw(st.sampled_from(found), label="where")
        node: Any = self.document.root
        for key in path:
            node = node[key]
        if data.draw(st.booleans(), label="hold"):
            self.held = [*self.held, (node, twin)][-HELD_MAX:]
        return node, twin

    def attached(self, twin: Any) -> bool:
        return any(other is twin for _, other in containers(self.model))

    def both(self, pair: tuple[Any, Any], edit: Any) -> None:
        """Make the same edit on both sides: same outcome, same error, or refused if it left the document."""
        node, twin = pair
        if not self.attached(twin):
            with pytest.raises(InvalidStateError):
                edit(node)
            return
        expected = error = None
        try:
            expected = edit(twin)
        except (KeyError, IndexError, ValueError, TypeError) as raised:
            error = raised
        if error is not None:
            with pytest.raises(type(error)):
                edit(node)
        else:
            result = edit(node)
            assert result is node if expected is twin else exact(result) == exact(expected)

    # Edits of dictionaries

    @rule(data=st.data(), key=KEYS, value=TREES)
    def set_key(self, data: st.DataObject, key: Any, value: Any) -> None:
        if pair := self.pick(data, dict):
            self.both(pair, lambda d: d.__setitem__(key, copy.deepcopy(value)))

    @rule(data=st.data(), key=KEYS)
    def delete_key(self, data: st.DataObject, key: Any) -> None:
        if pair := self.pick(data, dict):
            self.both(pair, lambda d: d.__delitem__(key))

    @rule(data=st.data(), edits=st.lists(EDITS, max_size=6))
    def churn(self, data: st.DataObject, edits: list[tuple[Any, Any]]) -> None:
        """Keys of one dictionary that come and go and come again, and numbers that grow in between."""
        if pair := self.pick(data, dict):
            for key, value in edits:
                if value is GONE:
                    self.both(pair, lambda d, key=key: d.pop(key, None))
                elif isinstance(value, Plus):
                    if type(pair[1].get(key)) is int:
                        self.both(pair, lambda d, key=key, by=value.amount: increment(d, key, by))
                else:
                    self.both(pair, lambda d, key=key, value=value: d.__setitem__(key, value))

    @rule(data=st.data(), items=st.dictionaries(KEYS, TREES, max_size=3))
    def update(self, data: st.DataObject, items: dict[Any, Any]) -> None:
        if pair := self.pick(data, dict):
            self.both(pair, lambda d: d.update(copy.deepcopy(items)))

    @rule(data=st.data(), key=KEYS, value=TREES)
    def setdefault(self, data: st.DataObject, key: Any, value: Any) -> None:
        # On a node that left the document, a key that is there is only read.
        if (pair := self.pick(data, dict)) and (key not in pair[1] or self.attached(pair[1])):
            self.both(pair, lambda d: d.setdefault(key, copy.deepcopy(value)))

    @rule(data=st.data(), clear=st.booleans())
    def take_out(self, data: st.DataObject, clear: bool) -> None:
        if pair := self.pick(data, dict):
            self.both(pair, lambda d: d.clear() if clear else d.popitem())

    @rule(data=st.data(), amounts=st.lists(NUMBERS, min_size=1, max_size=3), then=st.just(GONE) | SCALARS)
    def increment(self, data: st.DataObject, amounts: list[int | float], then: Any) -> None:
        """Several increments of one number, sometimes with an assignment after them."""
        pair = self.pick(data, dict)
        if pair is None:
            return
        numbers = [key for key, value in pair[1].items() if type(value) in (int, float)]
        key = data.draw(st.sampled_from(numbers) if numbers else KEYS, label="key")
        if key in pair[1] and not numbers:
            return
        # Floats of very different size would make sums depend on the order of adding.
        terms = [pair[1].get(key, 0), *amounts]
        if any(type(term) is float for term in terms) and any(abs(term) > 2**50 for term in terms):
            return
        for amount in amounts:
            self.both(pair, lambda d, by=amount: increment(d, key, by))
        if then is not GONE:
            self.both(pair, lambda d: d.__setitem__(key, then))

    # Edits of lists

    @rule(data=st.data(), value=TREES)
    def append(self, data: st.DataObject, value: Any) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.append(copy.deepcopy(value)))

    @rule(data=st.data(), items=st.lists(TREES, max_size=3))
    def extend(self, data: st.DataObject, items: list[Any]) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.__iadd__(copy.deepcopy(items)))

    @rule(data=st.data(), index=INDICES, value=TREES)
    def insert(self, data: st.DataObject, index: int, value: Any) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.insert(index, copy.deepcopy(value)))

    @rule(data=st.data(), index=INDICES, value=TREES)
    def set_item(self, data: st.DataObject, index: int, value: Any) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.__setitem__(index, copy.deepcopy(value)))

    @rule(data=st.data(), index=INDICES, pop=st.booleans())
    def delete_item(self, data: st.DataObject, index: int, pop: bool) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.pop(index) if pop else x.__delitem__(index))

    @rule(data=st.data(), part=SLICES, items=st.lists(TREES, max_size=4))
    def set_slice(self, data: st.DataObject, part: slice, items: list[Any]) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.__setitem__(part, copy.deepcopy(items)))

    @rule(data=st.data(), part=SLICES)
    def delete_slice(self, data: st.DataObject, part: slice) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.__delitem__(part))

    @rule(data=st.data(), descending=st.booleans())
    def sort(self, data: st.DataObject, descending: bool) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.sort(key=repr, reverse=descending))

    @rule(data=st.data())
    def reverse(self, data: st.DataObject) -> None:
        if pair := self.pick(data, list):
            self.both(pair, lambda x: x.reverse())

    @rule(data=st.data(), times=st.integers(-1, 2))
    def repeat(self, data: st.DataObject, times: int) -> None:
        pair = self.pick(data, list)
        if pair and len(pair[1]) <= 8:
            self.both(pair, lambda x: times_in_place(x, times))

    # Moving nodes about

    @rule(data=st.data(), key=KEYS)
    def assign_node_to_key(self, data: st.DataObject, key: Any) -> None:
        source, target = self.pick(data), self.pick(data, dict)
        if source and target and len(exact(source[1])) < 500:
            node, twin = source
            # Where it is already it stays: the same object. Elsewhere it is a copy.
            stays = target[1].get(key) is twin
            self.both(
                target,
                lambda d: d.__setitem__(
                    key, node if d is target[0] else twin if stays else copy.deepcopy(twin)
                ),
            )

    @rule(data=st.data(), items=st.lists(SCALARS, max_size=2))
    def assign_in_place(self, data: st.DataObject, items: list[Any]) -> None:
        """``parent[key] += items`` and ``parent[key] = parent[key]``: what is held stays in the document."""
        pair = self.pick(data)
        if pair is None or not pair[1] or not self.attached(pair[1]):
            return
        places = list(pair[1]) if type(pair[1]) is dict else range(len(pair[1]))
        place = data.draw(st.sampled_from(places), label="place")
        if type(pair[1][place]) is list:
            for side in pair:
                side[place] += items
        elif type(pair[1][place]) is dict:
            pair[0][place] = pair[0][place]

    @rule(data=st.data(), index=INDICES, wrapped=st.booleans())
    def insert_node(self, data: st.DataObject, index: int, wrapped: bool) -> None:
        source, target = self.pick(data), self.pick(data, list)
        if source and target and len(exact(source[1])) < 500:
            node, twin = source
            self.both(
                target,
                lambda x: x.insert(index, wrap(node if x is target[0] else copy.deepcopy(twin), wrapped)),
            )

    # Committing

    @precondition(lambda self: self.document.dirty)
    @rule()
    def commit(self) -> None:
        self.committed = encode(self.document.raw)
        self.document.mark_clean()
        assert not self.document.dirty
        assert self.document.take_ops() == []

    @rule()
    def discard(self) -> None:
        self.document.reset(decode(self.committed))
        # The root stays, here and there.
        self.model.clear()
        self.model.update(lift(decode(self.committed)))
        assert not self.document.dirty

    # What always holds

    @invariant()
    def content_is_that_of_the_model(self) -> None:
        assert exact(self.document.root.plain()) == exact(self.model)
        assert exact(self.document.root) == exact(self.model)

    @invariant()
    def raw_is_what_the_codec_would_make_of_it(self) -> None:
        assert encode(self.document.raw) == encode(lower(self.model))

    @invariant()
    def ops_lead_from_the_committed_state_to_the_present_one(self) -> None:
        ops = self.document.take_ops()
        stored = decode(encode([list(op) for op in copy.deepcopy(ops)]))
        assert encode(apply(decode(self.committed), stored)) == encode(self.document.raw)
        assert self.document.dirty == bool(ops)

    @invariant()
    def applying_the_ops_is_tracked_as_well(self) -> None:
        other = Document(decode(self.committed), lower=lower, lift=lift)
        other.apply(self.document.take_ops())
        assert encode(other.raw) == encode(self.document.raw)
        again = apply(decode(self.committed), copy.deepcopy(other.take_ops()))
        assert encode(again) == encode(self.document.raw)

    @invariant()
    def held_nodes_show_their_container(self) -> None:
        for node, twin in self.held:
            if self.attached(twin):
                assert exact(node) == exact(twin)


def increment(target: Any, key: Any, by: int | float) -> Any:
    if isinstance(target, dict):
        target[key] = target.get(key, 0) + by
        return target[key]
    return target.increment(key, by)


def times_in_place(target: Any, times: int) -> Any:
    """``target *= times``, a plain list getting copies of its items instead of the items once more."""
    if isinstance(target, list):
        items = copy.deepcopy(target)
        if times <= 0:
            target.clear()
        for _ in range(times - 1):
            target += copy.deepcopy(items)
        return target
    target *= times
    return target


def wrap(value: Any, wrapped: bool) -> Any:
    return {"wrapped": [value]} if wrapped else value


TestLockstep = Lockstep.TestCase
TestLockstep.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
