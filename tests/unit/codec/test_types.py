"""Registered classes: what comes back, what survives unknown, and what is refused."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import msgspec
import pytest

import everthread.codec.types as types
from everthread.codec import Code, decode, decode_plain, encode, lift, lower, register
from everthread.errors import InvalidNameError, InvalidValueError, UsageError
from everthread.values import Opaque, Tagged


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    registries: list[dict[Any, types.Shape]] = [types._by_class, types._by_tag]
    kept = [dict(registry) for registry in registries]
    yield
    for registry, content in zip(registries, kept, strict=True):
        registry.clear()
        registry.update(content)


def back(value: Any) -> Any:
    data = encode(lower(value))
    plain = decode_plain(data)
    lifted = lift(decode(data))
    assert type(plain) is type(lifted)
    return plain


def stored(tag: str, data: Any) -> bytes:
    return encode(Tagged(Code.OBJECT, encode([tag, lower(data)])))


@dataclasses.dataclass
class Note:
    text: str
    tags: tuple[str, ...] = ()
    kind: ClassVar[str] = "note"


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass(slots=True)
class Slotted:
    x: int


class Colour(enum.Enum):
    RED = enum.auto()
    GREEN = enum.auto()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    A = "a"


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Row(msgspec.Struct):
    a: int
    b: list[int] = msgspec.field(default_factory=list)


@pytest.mark.parametrize(
    "value",
    [
        Note("a", ("b",)),
        Point(1, 2),
        Slotted(3),
        Colour.GREEN,
        Level.HIGH,
        Word.A,
        Right.READ,
        Right.READ | Right.WRITE,
        Right(0),
        Pair([1], {2}),
        Row(1, [2]),
    ],
    ids=repr,
)
def test_registered_classes_come_back(value: Any) -> None:
    register(type(value))
    result = back({"a": [value, (value,)]})
    assert result == {"a": [value, (value,)]}
    assert type(result["a"][0]) is type(value)


@pytest.mark.parametrize("value", [Point(1), Colour.RED, Level.LOW, Word.A, Pair(1, 2)], ids=repr)
def test_as_keys_and_elements(value: Any) -> None:
    register(type(value))
    result = back({"d": {value: 1}, "s": {value}, "f": frozenset([value])})
    assert result == {"d": {value: 1}, "s": {value}, "f": frozenset([value])}
    assert type(next(iter(result["d"]))) is type(next(iter(result["s"]))) is type(value)


def test_nested_registered_classes() -> None:
    register(Note)
    register(Pair)
    value = Note("a", (Pair(Note("b"), {"c": Note("d")}),))  # type: ignore[arg-type]
    assert back(value) == value


def test_enums_are_stored_by_name_and_flags_by_value() -> None:
    register(Colour)
    register(Right)
    assert decode(lower(Colour.GREEN).data) == ["Colour", "GREEN"]
    assert decode(lower(Right.READ | Right.WRITE).data) == ["Right", 3]


def test_fields_that_the_constructor_does_not_take() -> None:
    @register
    @dataclasses.dataclass(frozen=True)
    class Sum:
        a: int
        total: int = dataclasses.field(init=False, default=0)

    value = Sum(1)
    object.__setattr__(value, "total", 7)
    assert back(value) == value
    assert back(value).total == 7


def test_a_field_without_a_value_is_left_out() -> None:
    @register
    @dataclasses.dataclass
    class Late:
        a: int
        b: int = dataclasses.field(init=False)

    assert back(Late(1)).a == 1
    assert not hasattr(back(Late(1)), "b")


def test_missing_fields_take_defaults() -> None:
    register(Note)
    assert decode_plain(stored("Note", {"text": "a"})) == Note("a")


def test_unknown_fields_survive_a_round_trip() -> None:
    register(Note)
    register(Point)
    for tag, fields, value in (("Note", {"text": "a"}, Note("a")), ("Point", {"x": 1}, Point(1))):
        revived = decode_plain(stored(tag, {**fields, "new": (1, [2]), "newer": None}))
        assert revived == value
        assert type(revived) is type(value)
        assert decode(lower(revived).data)[1].keys() >= {"new", "newer"}
        assert back(back(revived)).__everthread_extra__ == {"new": (1, [2]), "newer": None}


@pytest.mark.parametrize(
    ("cls", "fields"),
    [(Slotted, {"x": 1}), (Pair, {"left": 1}), (Row, {"a": 1})],
)
def test_unknown_fields_without_room_keep_the_value_opaque(cls: type, fields: dict[str, Any]) -> None:
    register(cls)
    data = stored(cls.__name__, {**fields, "new": 1})
    revived = decode_plain(data)
    assert type(revived) is Opaque
    assert encode(lower(revived)) == data


@pytest.mark.parametrize(
    ("cls", "data"),
    [
        (Point, {"y": 1}),
        (Point, [1, 2]),
        (Point, None),
        (Point, {1: 2}),
        (Colour, "BLUE"),
        (Colour, 1),
        (Colour, ["RED"]),
        (Right, 64),
        (Right, "READ"),
        (Pair, {}),
        (Row, {"b": []}),
    ],
)
def test_construction_failure_keeps_the_value_opaque(cls: type, data: Any) -> None:
    register(cls)
    payload = stored(cls.__name__, data)
    revived = decode_plain(payload)
    assert type(revived) is Opaque
    assert encode(lower(revived)) == payload


def test_an_unknown_tag_stays_opaque_and_round_trips() -> None:
    payload = encode(lower({"a": Opaque(decode(stored("os.system", {"command": "true"})))}))
    revived = decode_plain(payload)
    assert type(revived["a"]) is Opaque
    assert encode(lower(revived)) == payload
    assert lift(decode(payload)) == revived


def test_a_tag_registered_later_is_read() -> None:
    payload = stored("Later", {"x": 4})
    assert type(decode_plain(payload)) is Opaque
    register(Point, tag="Later")
    assert decode_plain(payload) == Point(4)


def test_own_functions() -> None:
    class Money:
        def __init__(self, cents: int) -> None:
            self.cents = cents

    register(Money, tag="money", to_data=lambda m: {"c": m.cents}, from_data=lambda d: Money(d["c"]))
    assert back([Money(3)])[0].cents == 3
    assert decode(lower(Money(3)).data) == ["money", {"c": 3}]


def test_own_functions_for_a_built_in_type_outside_the_table() -> None:
    register(complex, to_data=lambda c: (c.real, c.imag), from_data=lambda d: complex(*d))
    assert back({"z": 1 + 2j}) == {"z": 1 + 2j}


def test_errors_of_own_functions() -> None:
    class Fussy:
        pass

    def fail(data: Any) -> Any:
        raise KeyError("no")

    register(Fussy, to_data=lambda f: object(), from_data=fail)
    with pytest.raises(InvalidValueError) as caught:
        lower({"a": [Fussy()]})
    assert caught.value.path == "state.a[0]"
    assert type(decode_plain(stored("Fussy", 1))) is Opaque


def test_decorator_forms() -> None:
    @register
    @dataclasses.dataclass
    class Bare:
        a: int

    @register(tag="called")
    @dataclasses.dataclass
    class Called:
        a: int

    assert back([Bare(1), Called(2)]) == [Bare(1), Called(2)]
    assert decode(lower(Bare(1)).data)[0] == "Bare"
    assert decode(lower(Called(1)).data)[0] == "called"


def _other_point() -> type:
    class Point:
        x: int

    return dataclasses.dataclass(Point)


def test_a_tag_belongs_to_one_class() -> None:
    register(Point)
    with pytest.raises(InvalidValueError, match="Point"):
        register(_other_point())
    with pytest.raises(UsageError):
        register(Note, tag="Point")
    assert back(Point(1)) == Point(1)


def test_the_same_class_again_replaces_itself() -> None:
    first, second = _other_point(), _other_point()
    assert first is not second
    register(first)
    register(second)
    assert type(back(second(1))) is second
    # Instances made before the reload still can be stored.
    assert type(back(first(1))) is second


def test_a_second_tag_renames() -> None:
    register(Point, tag="old")
    old = encode(lower(Point(1)))
    register(Point, tag="new")
    assert decode(lower(Point(1)).data)[0] == "new"
    assert decode_plain(old) == Point(1)


@pytest.mark.parametrize("tag", ["", "a\0b", "x" * 2_000, "\ud800"])
def test_a_tag_is_a_name(tag: str) -> None:
    with pytest.raises(InvalidNameError):
        register(Point, tag=tag)


@pytest.mark.parametrize("cls", [int, dict, str, tuple, type(None), Tagged, Opaque])
def test_types_of_the_table_stay_what_they_are(cls: type) -> None:
    with pytest.raises(InvalidValueError, match="form of its own"):
        register(cls, to_data=repr, from_data=repr)


@pytest.mark.parametrize(
    "call",
    [
        lambda: register(3),  # type: ignore[call-overload]
        lambda: register(Point, to_data=repr),
        lambda: register(Point, from_data=repr),
        lambda: register(object),
    ],
)
def test_what_can_not_be_registered(call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidValueError):
        call()
    with pytest.raises(InvalidValueError):
        lower(Point(1))


def test_a_member_of_an_enum_of_texts_is_its_text() -> None:
    class Mood(str, enum.Enum):  # noqa: UP042 - as it is written where older Pythons are served
        GOOD = "good"

    for value, text in ((Word.A, "a"), (Mood.GOOD, "good")):
        lowered = lower({"x": [value], value: 1})
        assert lowered == {"x": [text], text: 1}
        assert type(lowered["x"][0]) is str


@pytest.mark.parametrize("value", [Point(1), Colour.RED, Level.LOW, Pair(1), Row(1)], ids=repr)
def test_an_unregistered_class_is_refused_with_advice(value: Any) -> None:
    with pytest.raises(InvalidValueError, match=rf"everthread\.register\({type(value).__name__}\)") as caught:
        lower({"a": [0, value]})
    assert caught.value.path == "state.a[1]"


def test_a_subclass_of_a_registered_class_is_another_class() -> None:
    class Sub(Point):
        pass

    register(Point)
    with pytest.raises(InvalidValueError, match="Sub"):
        lower(Sub(1))


def test_attrs_classes_by_their_form() -> None:
    class Attribute(NamedTuple):
        name: str
        alias: str | None
        init: bool = True

    class Thing:
        __attrs_attrs__ = (Attribute("a", "a"), Attribute("_b", None), Attribute("c", "c", init=False))

        def __init__(self, a: int, b: int) -> None:
            self.a, self._b, self.c = a, b, a + b

    register(Thing)
    thing = Thing(1, 2)
    thing.c = 9
    assert vars(back(thing)) == {"a": 1, "_b": 2, "c": 9}


def test_pydantic_models() -> None:
    import pydantic

    class Inner(pydantic.BaseModel):
        days: tuple[int, ...]

    @register
    class Model(pydantic.BaseModel):
        a: int
        b: str = pydantic.Field("x", alias="bee")
        c: int = pydantic.Field(1, validation_alias=pydantic.AliasChoices("see", "sea"))
        inner: Inner | None = None

        @pydantic.computed_field  # type: ignore[prop-decorator]
        @property
        def double(self) -> int:
            return 2 * self.a

    value = Model.model_validate({"a": 1, "bee": "y", "see": 5, "inner": {"days": (1, 2)}})
    assert back(value) == value
    assert type(back(value)) is Model
    revived = decode_plain(stored("Model", {"a": 1, "new": [1]}))
    assert revived == Model.model_validate({"a": 1})
    assert decode(lower(revived).data)[1]["new"] == [1]
    assert type(decode_plain(stored("Model", {"a": "no number"}))) is Opaque


def test_pydantic_models_of_other_forms() -> None:
    import pydantic

    @register
    class Open(pydantic.BaseModel, extra="allow"):
        a: int

    @register
    class Closed(pydantic.BaseModel, frozen=True, extra="forbid"):
        a: int

    @register
    class Root(pydantic.RootModel[list[int]]):
        pass

    open_ = Open.model_validate({"a": 1, "b": 2})
    assert back(open_) == open_
    assert back({Closed(a=1): Root([1, 2])}) == {Closed(a=1): Root([1, 2])}
    assert decode(lower(decode_plain(stored("Closed", {"a": 1, "b": 2}))).data)[1] == {"a": 1, "b": 2}
