"""Values of a graph as Everthread keeps them: plain data as it is, messages as dictionaries, anything else as
LangGraph's own serializer makes it.

With LangGraph's own serializer everything that is plain stays readable and is compared part by part. With any
other one, such as ``EncryptedSerializer``, every value and all metadata go through it, whole: what it hides
stays hidden. With a subject every value is a personal one of that person, and missing once they are erased.
"""

from __future__ import annotations

import gc
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from operator import eq, is_
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from pydantic import BaseModel

from everthread.codec.types import register
from everthread.errors import InvalidStateError
from everthread.messages.shapes import LANGCHAIN, enclose, is_enclosed, recognise
from everthread.messages.view import view
from everthread.values import Corrupt, Erased, Opaque, Personal

# LangChain messages as dictionaries that a person can read and a diff can compare, and back.
#
# In a log they are items as ``everthread.messages`` has them, of the shape ``langchain``, so that a thread
# can be read in the shape of any other provider. Only the message classes of ``langchain_core`` itself, and
# only by exact type: the table below is closed. They are built from what was taken out of a message that
# had been validated, so they aren't validated again.


class _Shape(NamedTuple):
    cls: type[BaseMessage]
    #: Fields whose default is a plain value, and those whose default is made anew each time.
    plain: dict[str, Any]
    made: dict[str, Callable[[], Any]]
    fields: frozenset[str]
    #: All fields in the order of the class, those without a plain default with ``None``.
    blank: dict[str, Any]
    required: tuple[str, ...]


Fresh = tuple[tuple[str, Callable[[], Any]], ...]
#: The class of a message, the fields that all copies share, those that are made anew each time, the names of
#: those that were given, and what has to be unpacked each time. Without a class, just that.
Mould = tuple[type[BaseMessage] | None, dict[str, Any], Fresh, set[str], Any]


def _shape(cls: type[BaseMessage]) -> _Shape:
    plain, made = {}, {}
    for name, field in cls.model_fields.items():
        if field.default_factory is not None:
            made[name] = field.default_factory
        elif not field.is_required():
            plain[name] = field.default
    blank = {name: plain.get(name) for name in cls.model_fields}
    required = tuple(name for name in blank if name not in plain and name not in made)
    return _Shape(cls, plain, made, frozenset(blank), blank, required)  # type: ignore[arg-type]


_CLASSES = (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
_SHAPES: Final[dict[type[BaseMessage], _Shape]] = {cls: _shape(cls) for cls in _CLASSES}
_BY_TYPE = {shape.plain["type"]: shape for shape in _SHAPES.values()}
_FRESH: Final[dict[type[BaseMessage], Fresh]] = {
    cls: tuple(shape.made.items()) for cls, shape in _SHAPES.items()
}
_NONE_GIVEN: Final[set[str]] = set()
#: What a message and its mould take besides what they hold.
_OBJECTS_BYTES: Final = 1_500
_encode: Final = msgspec.msgpack.Encoder().encode

# A model's own way to set these would check and note every one of them.
_new: Final = object.__new__
_put_dict: Final = BaseModel.__dict__["__dict__"].__set__
_put_fields_set: Final = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_put_extra: Final = BaseModel.__dict__["__pydantic_extra__"].__set__
_put_private: Final = BaseModel.__dict__["__pydantic_private__"].__set__


def is_message(value: Any) -> bool:
    """Whether it can be taken apart here. One whose type was changed is none of its class any more."""
    shape = _SHAPES.get(type(value))
    return shape is not None and value.__dict__.get("type") == shape.plain["type"]


def take_apart(message: Any, pack: Callable[[Any], Any]) -> dict[str, Any]:
    """The type of a message and those of its fields that differ from their defaults, each packed."""
    shape = _SHAPES[type(message)]
    plain, made = shape.plain, shape.made
    data: dict[str, Any] = {}
    held = message.__dict__
    # In the order of the class: a message that was put together again is stored byte for byte as before.
    for name in shape.cls.model_fields:
        if name not in held:
            continue
        value = held[name]
        if name in plain:
            if not _same(value, plain[name]):
                data[name] = value if type(value) is str and value.isascii() else pack(value)
        elif value or type(value) is not made.get(name):
            data[name] = pack(value)
    if message.__pydantic_extra__:
        data.update({name: pack(value) for name, value in message.__pydantic_extra__.items()})
    return {"type": plain["type"], "data": data}


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and bool(value == default))


def mould(stored: dict[str, Any]) -> Mould | None:
    """What messages like the one that :func:`take_apart` made this of are cast from; ``None`` if it is of a
    type that isn't known."""
    shape = _BY_TYPE.get(stored["type"])
    if shape is None:
        return None
    held = shape.blank.copy()
    fields, made = shape.fields, shape.made
    rest = []
    data = stored["data"]
    for name, value in data.items():
        if type(value) is str and name in fields and name not in made:
            held[name] = value
        else:
            rest.append((name, value))
    for name in shape.required:
        if name not in data:
            del held[name]
    fresh, given = _FRESH[shape.cls], set(data)
    if rest:
        fresh = tuple([each for each in fresh if each[0] not in data])
    return shape.cls, held, fresh, given, rest


def cast(moulds: Iterable[Mould], unpack: Callable[[Any], Any]) -> list[Any]:
    """A new object from each of these, which shares nothing with it that can be changed."""
    # Run for every message of a thread whenever it is read: no call that can be spared.
    made: list[Any] = []
    for cls, shared, fresh, given, rest in moulds:
        if cls is None:
            made.append(unpack(rest))
            continue
        message = _new(cls)
        _put_dict(message, held := shared.copy())
        _put_fields_set(message, given.copy())
        extra: dict[str, Any] = {}
        _put_extra(message, extra)
        _put_private(message, None)
        for name, make in fresh:
            held[name] = make()
        if rest:
            fields = _SHAPES[cls].fields
            for name, value in rest:
                (held if name in fields else extra)[name] = unpack(value)
        made.append(message)
    return made


def weight(moulds: Iterable[Mould]) -> int:
    """About how many bytes of memory these take, together with one object that is cast from each."""
    total = 0
    for _, shared, _, _, rest in moulds:
        total += _OBJECTS_BYTES
        content = shared.get("content")
        if type(content) is str:
            total += len(content)
        if rest:
            try:
                total += 2 * len(_encode(rest))
            except (TypeError, ValueError):
                # Of a type that only the codec knows: small, as a rule.
                continue
    return total


def as_is(stored: Any) -> Mould:
    """The mould of what isn't a message: it is unpacked each time."""
    return None, {}, (), _NONE_GIVEN, stored


def as_item(message: Any, pack: Callable[[Any], Any]) -> dict[str, Any]:
    """A message as an item of a log."""
    return enclose(take_apart(message, pack), LANGCHAIN)


def is_item(stored: Any) -> bool:
    """Whether an item of a log is a message, as :func:`as_item` makes them."""
    return type(stored) is dict and stored.get("shape") == LANGCHAIN and "message" in stored


#: From so many items on the cyclic collector is kept still while they are made.
_LARGE: Final = 256
#: Deeper values go to the serializer as a whole: the codec's own bound lies higher.
_DEPTH_MAX: Final = 48

#: The only key of a dictionary that stands for a value that was sealed as a whole.
SEALED: Final = "langgraph.sealed"

_KEPT: Final = frozenset({type(None), bool, int, bytes, Personal, Erased, Opaque, Corrupt})


class Serialized(msgspec.Struct, frozen=True):
    """What a serializer of LangGraph made of a value: its type and its bytes."""

    kind: str
    data: bytes


class StoredMessage(msgspec.Struct, frozen=True):
    """A message amid other values. As an item of a log it is a plain dictionary instead."""

    fields: dict[str, Any]


register(
    Serialized,
    tag="langgraph.serialized",
    to_data=lambda value: [value.kind, value.data],
    from_data=lambda data: Serialized(data[0], data[1]),
)
register(
    StoredMessage,
    tag="langchain.message",
    to_data=lambda value: value.fields,
    from_data=StoredMessage,
)


class Kept(msgspec.Struct, frozen=True):
    """A sealed value that is stored again as it is."""

    stored: Any


class Values:
    """Packs values for the store and unpacks them again.

    ``subject``: whose they are. ``keep``: sealed ones aren't opened but handed on as :class:`Kept`.
    """

    def __init__(self, serde: Any, subject: str | None = None, *, keep: bool = False) -> None:
        self._serde = serde
        self._subject = subject
        self._keep = keep
        #: Whether plain data may be encoded as such. A subclass may do something else with them.
        self._plain = type(serde) is JsonPlusSerializer
        #: Whether they are stored like that, so that equal values are equal bytes.
        self.readable = self._plain and subject is None
        #: Whether messages show their ids.
        self.identified = self._plain
        #: Whether a personal value was met: such ones must not be remembered, somebody may erase them.
        self.personal = False

    def unsealed(self) -> Values:
        """The same for values that are compared and not stored."""
        return Values(self._serde)

    def pack(self, value: Any) -> Any:
        """A value as it is stored in a document."""
        if type(value) is Kept:
            return value.stored
        packed = self._pack(value, 0) if self._plain else self._serialize(value)
        return packed if self._subject is None else {SEALED: self._seal(packed)}

    def _seal(self, packed: Any) -> Personal:
        assert self._subject is not None
        self.personal = True
        return Personal(self._subject, packed)

    def unpack(self, stored: Any) -> Any:
        """The value that :meth:`pack` was given."""
        kind = type(stored)
        if kind is str or stored is None or kind is int or kind is float or kind is bool:
            return stored
        if kind is dict:
            if len(stored) == 1 and SEALED in stored:
                return self._opened(stored)
            return {key: self.unpack(value) for key, value in stored.items()}
        if kind is list:
            return [self.unpack(value) for value in stored]
        if kind is tuple:
            return tuple([self.unpack(value) for value in stored])
        if kind is Serialized:
            return self._serde.loads_typed((stored.kind, stored.data))
        if kind is StoredMessage:
            return cast((self._mould(stored.fields),), self.unpack)[0]
        if kind is Personal:
            self.personal = True
        return stored

    def _opened(self, stored: dict[str, Any]) -> Any:
        """What was sealed as a whole; an :class:`Erased` if it was erased."""
        self.personal = True
        held = stored[SEALED]
        if not isinstance(held, Personal):
            return held
        return Kept(stored) if self._keep else self.unpack(held.value)

    def pack_item(self, item: Any) -> Any:
        """An item of a list as it is stored in a log."""
        if type(item) is Kept:
            return item.stored
        if not self._plain:
            return self.pack(item)
        if is_message(item):
            made = as_item(item, self._pack_part)
            if self._subject is not None:
                # Everybody may see that there is a message, and under which id.
                made["message"] = self._seal(made["message"])
            return made
        if is_item(item):
            # Looks like one of our messages and isn't.
            packed = self._serialize(item)
            return packed if self._subject is None else {SEALED: self._seal(packed)}
        return self.pack(item)

    def _pack_part(self, value: Any) -> Any:
        return self._pack(value, 0)

    def unpack_items(self, stored: list[Any]) -> list[Any]:
        """The items that :meth:`pack_item` was given."""
        return self.cast(self.moulds(stored))

    def moulds(self, stored: Iterable[Any]) -> list[Mould]:
        """What any number of copies of stored items can be made from, quickly. They share nothing with it."""
        made: list[Mould] = []
        for item in stored:
            if not is_item(item):
                if not is_erased(item):
                    made.append(as_is(item))
            elif type(item["message"]) is dict:
                made.append(self._mould(item["message"]))
            elif not isinstance(item["message"], Erased):
                made.append(self._sealed_mould(item))
        return made

    def mixed_moulds(self, stored: Sequence[Any], doubtful: int) -> tuple[list[Mould], list[int] | None]:
        """The same for a log that others may have written to: their messages converted, and how many moulds
        each item has; ``None`` if nobody else did. From the place ``doubtful`` on an item that doesn't say
        whose it is may be theirs."""
        foreign = [is_foreign(item, at >= doubtful) for at, item in enumerate(stored)]
        if not any(foreign):
            return self.moulds(stored), None
        marks = iter(foreign)
        # Their personal values are shown to whoever has this person's, as everything else of the thread is.
        reveal = self._subject is not None
        made: list[Mould] = []
        spans: list[int] = []
        for each in view(stored, LANGCHAIN, lambda _: None if next(marks) else [], reveal=reveal):
            moulds = self.moulds([each.item]) if each.own else self._moulds_of(each.item, each.messages)
            made += moulds
            spans.append(len(moulds))
        return made, spans

    def _moulds_of(self, item: Any, messages: list[Any]) -> list[Mould]:
        """What others' messages are cast from. Reducers go by ids, so that each has one that stays."""
        name = str(item.get("id", "")) if type(item) is dict else ""
        moulds = []
        for number, message in enumerate(messages, 1):
            message_id = name if number == len(messages) else f"{name}#part-{number}"
            moulds.append(self._mould({**message, "data": {**message["data"], "id": message_id}}))
        return moulds

    def _sealed_mould(self, item: dict[str, Any]) -> Mould:
        self.personal = True
        message = item["message"]
        if self._keep or not isinstance(message, Personal):
            return as_is(Kept(item))
        return self._mould(message.value)

    def cast(self, moulds: list[Mould]) -> list[Any]:
        """One new object from each of them: the items that :meth:`pack_item` was given."""
        # Making many objects sets off the cyclic collector again and again, for nothing.
        quiet = len(moulds) >= _LARGE and gc.isenabled()
        if quiet:
            gc.disable()
        try:
            return cast(moulds, self.unpack)
        finally:
            if quiet:
                gc.enable()

    def pack_fields(self, fields: dict[str, Any]) -> Any:
        """Metadata, or what a checkpoint says of itself: a dictionary with text keys."""
        if self._plain and all(type(name) is str and _is_text(name) for name in fields):
            return {name: self._pack(value, 1) for name, value in fields.items()}
        return self._serialize(fields)

    def unpack_fields(self, stored: Any) -> dict[str, Any]:
        return dict(self.unpack(stored)) if stored is not None else {}

    def _pack(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return value if value.isascii() or _is_text(value) else self._serialize(value)
        if kind in _KEPT:
            if kind is Personal:
                self.personal = True
            return value
        if kind is float:
            return value if math.isfinite(value) else self._serialize(value)
        if depth < _DEPTH_MAX:
            if kind is list:
                return [self._pack(item, depth + 1) for item in value]
            if (
                kind is dict
                and SEALED not in value
                and all(type(key) is str and _is_text(key) for key in value)
            ):
                return {key: self._pack(item, depth + 1) for key, item in value.items()}
            if kind is tuple:
                # As LangGraph's own savers bring it back.
                return [self._pack(item, depth + 1) for item in value]
            if is_message(value):
                return StoredMessage(take_apart(value, lambda part: self._pack(part, depth + 1)))
        return self._serialize(value)

    def _serialize(self, value: Any) -> Serialized:
        kind, data = self._serde.dumps_typed(value)
        return Serialized(kind, bytes(data))

    def _mould(self, fields: dict[str, Any]) -> Mould:
        found = mould(fields)
        if found is None:
            raise InvalidStateError(
                f"the store holds a message of the type {fields['type']!r}, which this version doesn't know: "
                "upgrade everthread"
            )
        return found


def is_foreign(stored: Any, doubtful: bool) -> bool:
    """Whether another framework wrote an item of the log ``messages``. ``doubtful``: one that has no shape
    and looks like a message may be theirs."""
    if type(stored) is not dict:
        return False
    if is_enclosed(stored) and isinstance(stored.get("shape"), str):
        return bool(stored["shape"] != LANGCHAIN)
    return doubtful and recognise(stored) is not None


def is_erased(stored: Any) -> bool:
    """Whether it was sealed here as a whole, and has been erased since."""
    if type(stored) is not dict:
        return False
    held = stored.get(SEALED) if len(stored) == 1 else stored.get("message") if is_item(stored) else None
    return isinstance(held, Erased)


def _is_text(value: str) -> bool:
    """Whether it is valid Unicode; the codec refuses lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# What a saver remembers of the states that it has handed out or taken in: the very objects of long lists.
#
# With them the next state is compared by identity. They are kept for the last few checkpoints of a
# namespace only; without them a list is compared with what the store holds, which costs more and finds the
# same.


#: Checkpoints of one namespace whose objects are remembered.
_CHECKPOINTS_MAX: Final = 3
#: Checkpoints whose being asked for by name is remembered.
_NAMED_MAX: Final = 1024
#: Checkpoints whose written objects are: until the next one is stored, so that one would do.
_TOUCHED_MAX: Final = 16
#: How many of the last items of a list are always looked into, though they are the objects that they were.
WINDOW: Final = 8

LIST: Final = "list"
TEXT: Final = "text"


class Held(msgspec.Struct):
    """The items of one long channel, in the order of its log, and how the last of them were encoded.

    ``moulds`` begins with what new copies of the items are made from, or is ``None``. Nobody else ever gets
    hold of it. It may be shared with later checkpoints, for which it has been extended. ``weight`` is about
    how many bytes of memory all this takes.
    """

    items: list[Any]
    raws: dict[int, bytes] = {}
    moulds: list[Mould] | None = None
    weight: int = 0
    #: How many of the items each item of the log is; ``None``: one each. Then all of ``raws`` are known.
    spans: list[int] | None = None

    def extended(self, more: list[Mould]) -> list[Mould] | None:
        """``moulds`` with more items behind these."""
        moulds = self.moulds
        if moulds is None:
            return None
        if len(moulds) != len(self.items):
            # Extended already, on another branch.
            moulds = moulds[: len(self.items)]
        moulds.extend(more)
        return moulds


class Shadow(msgspec.Struct):
    """One checkpoint: its long channels, the versions of all, and the version of the thread that it is."""

    held: dict[str, Held] = {}
    versions: dict[str, Any] = {}
    version_id: str = ""


class Memory:
    """What is remembered of one namespace."""

    def __init__(self) -> None:
        self._shadows: OrderedDict[str, Shadow] = OrderedDict()
        self._touched: OrderedDict[str, dict[int, Any]] = OrderedDict()
        self._named: OrderedDict[str, None] = OrderedDict()
        #: About how many bytes of memory the objects of states take.
        self.weight = 0

    def shadow(self, checkpoint_id: str | None) -> Shadow | None:
        return self._shadows.get(checkpoint_id) if checkpoint_id is not None else None

    def keep(self, checkpoint_id: str, shadow: Shadow) -> None:
        shadows = self._shadows
        shadows[checkpoint_id] = shadow
        shadows.move_to_end(checkpoint_id)
        while len(shadows) > _CHECKPOINTS_MAX:
            shadows.popitem(last=False)
        # Neighbours share nearly all of their objects: the latest stands for all.
        self.weight = sum(held.weight for held in shadow.held.values())

    def lighten(self) -> None:
        """Forget the objects of states, which take room; whoever uses them at this moment goes on."""
        self._shadows = OrderedDict()
        self.weight = 0

    def touch(self, checkpoint_id: str, values: Iterable[Any]) -> None:
        """Note what a task of this checkpoint returned: it may have changed objects in place."""
        touched = self._touched.setdefault(checkpoint_id, {})
        for value in values:
            for item in value if type(value) in (list, tuple) else (value,):
                touched[id(item)] = item
        while len(self._touched) > _TOUCHED_MAX:
            self._touched.popitem(last=False)

    def touched(self, checkpoint_id: str | None) -> dict[int, Any] | None:
        """What tasks of this checkpoint returned; ``None`` if that isn't known."""
        return self._touched.get(checkpoint_id) if checkpoint_id is not None else None

    def let_go(self, checkpoint_id: str | None) -> None:
        """A checkpoint has a successor: what was returned at it is stored."""
        if checkpoint_id is not None:
            self._touched.pop(checkpoint_id, None)

    def name(self, checkpoint_id: str) -> None:
        """Note that somebody asked for this checkpoint by its id: who goes on from it means to branch."""
        self._named[checkpoint_id] = None
        self._named.move_to_end(checkpoint_id)
        while len(self._named) > _NAMED_MAX:
            self._named.popitem(last=False)

    def was_named(self, checkpoint_id: str) -> bool:
        return checkpoint_id in self._named


# Where two sequences differ, found without looking at what they share.
#
# A graph hands in its lists whole, at every step. Whatever the reducer did, the items that it left alone
# are the same objects as before: so lists are compared by identity, and only where that differs by content.


#: How many characters a piece of a long text has at most.
PIECE: Final = 2048


class Gap(NamedTuple):
    """``old[start:stop]`` gave way to ``new[begin:end]``."""

    start: int
    stop: int
    begin: int
    end: int


def identity_gaps(old: Sequence[Any], new: Sequence[Any]) -> list[Gap]:
    """Where two lists don't hold the same objects, the last gap first."""
    return _gaps(old, new, is_, id)


def value_gaps(old: Sequence[Any], new: Sequence[Any]) -> list[Gap]:
    """Where two lists of hashable values differ, the last gap first."""
    return _gaps(old, new, eq, lambda item: item)


def _gaps(
    old: Sequence[Any], new: Sequence[Any], same: Callable[[Any, Any], bool], key: Callable[[Any], Any]
) -> list[Gap]:
    start = _shared(old, new, same)
    if start == len(old):
        return [Gap(start, start, start, len(new))] if len(new) > start else []
    tail = _shared(old[: start - 1 if start else None : -1], new[: start - 1 if start else None : -1], same)
    stop, end = len(old) - tail, len(new) - tail
    gaps: list[Gap] = []
    at, begin = start, start
    for i, j in [*_kept(old, new, start, stop, end, key), (stop, end)]:
        if i > at or j > begin:
            gaps.append(Gap(at, i, begin, j))
        at, begin = i + 1, j + 1
    gaps.reverse()
    return gaps


def _shared(old: Sequence[Any], new: Sequence[Any], same: Callable[[Any, Any], bool]) -> int:
    """How many items at the beginning are the same."""
    try:
        return list(map(same, old, new)).index(False)
    except ValueError:
        return min(len(old), len(new))


def _kept(
    old: Sequence[Any], new: Sequence[Any], start: int, stop: int, end: int, key: Callable[[Any], Any]
) -> list[tuple[int, int]]:
    """Pairs of places, rising on both sides, that hold the same. What moved backwards counts as new."""
    places = {key(old[i]): i for i in range(stop - 1, start - 1, -1)}
    pairs: list[tuple[int, int]] = []
    last = start - 1
    for j in range(start, end):
        i = places.get(key(new[j]), -1)
        if i > last:
            pairs.append((i, j))
            last = i
    return pairs


def cut_text(text: str, old: Sequence[str] = ()) -> list[str]:
    """A text in pieces, the same as before at the beginning and at the end as far as it is the same there."""
    at = kept = 0
    for piece in old:
        if not text.startswith(piece, at):
            break
        at += len(piece)
        kept += 1
    end, tail = len(text), len(old)
    while tail > kept and end - len(old[tail - 1]) >= at and text.endswith(old[tail - 1], at, end):
        tail -= 1
        end -= len(old[tail])
    middle = [text[i : min(i + PIECE, end)] for i in range(at, end, PIECE)]
    return [*old[:kept], *middle, *old[tail:]]


# A list and the log behind it, where an item of the log may be several items of the list, or none.


def split_spans(spans: Sequence[int], gaps: Iterable[Gap]) -> list[int]:
    """Items of the log of which the gaps concern a part only."""
    cuts = {place for gap in gaps for place in (gap.start, gap.stop)}
    found: list[int] = []
    begin = 0
    for at, count in enumerate(spans):
        if any(begin < cut < begin + count for cut in cuts):
            found.append(at)
        begin += count
    return found


def places_of(spans: Sequence[int], start: int, stop: int) -> list[tuple[int, int]]:
    """Where in the log ``start`` to ``stop`` of the list stand, as runs that leave out the items that are
    nothing in the list. One run at least: where something new belongs, behind such items."""
    runs: list[tuple[int, int]] = []
    begin = 0
    place = len(spans)
    for at, count in enumerate(spans):
        if count and begin >= start:
            place = min(place, at)
        if count and start <= begin < stop:
            if runs and runs[-1][1] == at:
                runs[-1] = (runs[-1][0], at + 1)
            else:
                runs.append((at, at + 1))
        begin += count
    return runs or [(place, place)]
