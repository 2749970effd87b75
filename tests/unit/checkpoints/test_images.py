"""Going back to what an object was, in place."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy as np
import pydantic
import pytest

from everthread import Checkpointable
from everthread.checkpoints.objects import image_of


class StopError(Exception):
    pass


class Bag(Checkpointable):
    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    items: list[int]


class Model(pydantic.BaseModel):
    name: str
    tags: list[str] = []


class Plain:
    def __init__(self) -> None:
        self.inside = [1]


class Slotted(Checkpointable):
    __slots__ = ("__hidden", "late", "value")

    def __init__(self) -> None:
        self.value = [1]
        self.__hidden = [2]

    @property
    def hidden(self) -> list[int]:
        return self.__hidden


def fail(bag: Any, change: Any) -> None:
    def work() -> None:
        with image_of(bag):
            change(bag)
            raise StopError

    with pytest.raises(StopError):
        work()


def test_containers_of_every_kind_get_their_content_back() -> None:
    factory: defaultdict[str, list[int]] = defaultdict(list, a=[1])
    bag = Bag(
        listed=[1, [2]],
        mapped={"a": {"b": 1}, "c": 2},
        ordered=OrderedDict(a=1, b=2),
        factory=factory,
        counter=Counter("aab"),
        a_set={1, 2},
        queue=deque([1, 2], maxlen=3),
        raw=bytearray(b"abc"),
        tupled=([1], {"x": [2]}),
    )
    before = {name: (id(value), repr(value)) for name, value in vars(bag).items()}

    def change(bag: Any) -> None:
        bag.listed[1].append(3)
        bag.listed.insert(0, 0)
        del bag.mapped["a"]
        bag.mapped["a"] = 5
        bag.ordered.move_to_end("a")
        bag.ordered["z"] = 1
        _ = bag.factory["new"]
        bag.factory["a"].append(2)
        bag.counter.update("zzz")
        bag.a_set.add(3)
        bag.queue.extend([3, 4])
        bag.raw += b"def"
        bag.tupled[0].append(2)
        bag.tupled[1]["x"].clear()

    fail(bag, change)
    assert {name: (id(value), repr(value)) for name, value in vars(bag).items()} == before
    bag.ordered["c"] = 3
    assert list(bag.ordered) == ["a", "b", "c"]


def test_arrays_are_put_back_in_place() -> None:
    array = np.arange(6)
    view = array[2:4]
    bag = Bag(array=array, nested=[{"view": view}])

    def change(bag: Any) -> None:
        bag.array += 10
        bag.nested[0]["view"][:] = 0

    fail(bag, change)
    assert bag.array is array
    assert array.tolist() == [0, 1, 2, 3, 4, 5]
    assert view.tolist() == [2, 3]


def test_objects_in_fields_are_put_back() -> None:
    bag = Bag(
        point=Point([1]),
        frozen=Frozen([1]),
        model=Model(name="a"),
        plain=Plain(),
        inner=Bag(slotted=Slotted()),
    )
    model, plain, slotted = bag.model, bag.plain, bag.inner.slotted

    def change(bag: Any) -> None:
        bag.point.x.append(2)
        bag.point.z = 1
        bag.frozen.items.append(2)
        bag.model.name = "b"
        bag.model.tags.append("t")
        bag.plain.inside.append(2)
        bag.plain.more = True
        bag.inner.slotted.value.append(2)
        bag.inner.slotted.hidden.append(3)
        bag.inner.slotted.late = True
        bag.inner.slotted.value = None
        bag.inner = None

    fail(bag, change)
    assert (bag.point.x, bag.frozen.items) == ([1], [1])
    assert not hasattr(bag.point, "z")
    assert bag.model is model
    assert (model.name, model.tags, model.model_fields_set) == ("a", [], {"name"})
    assert bag.plain is plain
    assert vars(plain) == {"inside": [1]}
    assert bag.inner.slotted is slotted
    assert (slotted.value, slotted.hidden, hasattr(slotted, "late")) == ([1], [2], False)


def test_what_can_only_be_copied_gives_way_to_its_copy() -> None:
    dice = random.Random(7)
    bag = Bag(
        dice=dice, nested=[{"dice": dice}], generator=np.random.default_rng(7), when=dt.date(2024, 1, 1)
    )
    when = bag.when
    expected = [random.Random(7).random(), np.random.default_rng(7).random()]

    def change(bag: Any) -> None:
        bag.dice.random()
        bag.generator.random()

    fail(bag, change)
    assert bag.dice is bag.nested[0]["dice"]
    assert [bag.dice.random(), bag.generator.random()] == expected
    assert bag.when is when


def test_what_is_shared_stays_shared() -> None:
    shared = [1]
    bag = Bag(a=shared, b={"c": shared}, itself=None)
    bag.itself = bag

    def change(bag: Any) -> None:
        shared.append(2)
        bag.a = [3]
        bag.itself = None

    fail(bag, change)
    assert bag.a is bag.b["c"] is shared
    assert shared == [1]
    assert bag.itself is bag


def test_private_attributes_come_back_but_not_the_insides_of_what_they_hold() -> None:
    bag = Bag(_connection=Plain(), _notes=[1], _other=Bag(x=[1]))

    def change(bag: Any) -> None:
        bag._connection.inside.append("a reply")
        bag._connection.open = True
        bag._notes.append(2)
        bag._other.x.append(2)
        bag._new = 1

    fail(bag, change)
    assert bag._connection.inside == [1, "a reply"]
    assert bag._connection.open
    assert bag._notes == [1]
    assert bag._other.x == [1]
    assert not hasattr(bag, "_new")


def test_an_object_that_is_private_here_and_saved_there_is_put_back() -> None:
    plain = Plain()
    for bag in (Bag(_first=[plain], then=plain), Bag(first=plain, _then=[plain])):
        fail(bag, lambda bag: plain.inside.append(2))
        assert plain.inside == [1]


def test_the_program_itself_is_left_alone() -> None:
    logger = logging.getLogger("everthread.tests.images")
    bag = Bag(logger=logger, function=fail, cls=Plain, module=threading)
    name = "everthread.tests.images.made_inside"

    def change(bag: Any) -> None:
        logging.getLogger(name)
        Plain.mark = True  # type: ignore[attr-defined]

    fail(bag, change)
    assert name in logging.Logger.manager.loggerDict
    assert Plain.mark  # type: ignore[attr-defined]
    del Plain.mark  # type: ignore[attr-defined]


def test_a_part_that_can_not_be_put_back_is_told_and_the_rest_is() -> None:
    raw = bytearray(b"abc")
    bag = Bag(raw=raw, listed=[1])
    exported = []

    def work() -> None:
        with image_of(bag):
            raw.extend(b"more")
            bag.listed.append(2)
            exported.append(memoryview(raw))
            raise StopError

    with pytest.raises(StopError) as caught:
        work()
    assert "could not be put back" in caught.value.__notes__[0]
    assert bag.listed == [1]
    exported[0].release()


def test_an_interrupt_while_going_back_comes_late() -> None:
    class Touchy:
        """Raises when it is made a key, as Ctrl-C would at just that moment."""

        presses = 0

        def __hash__(self) -> int:
            if Touchy.presses:
                Touchy.presses -= 1
                raise KeyboardInterrupt
            return 1

    bag = Bag(first=[1], touchy=OrderedDict({Touchy(): 1}), last=[1])

    def work() -> None:
        with image_of(bag):
            for listed in (bag.first, bag.last):
                listed.append(2)
            bag.touchy.clear()
            Touchy.presses = 2
            raise StopError

    with pytest.raises(KeyboardInterrupt):
        work()
    assert (bag.first, len(bag.touchy), bag.last) == ([1], 1, [1])


def test_success_changes_nothing() -> None:
    bag = Bag(listed=[1])
    with image_of(bag):
        bag.listed.append(2)
    assert bag.listed == [1, 2]
