"""Payloads of working states, damaged at random from a seed, and what must hold after healing them."""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

from everthread import WorkingState
from everthread.recovery import SelfHealer

LISTS = ("todos", "open_loops", "intentions", "constraints")
TEXTS = {"todos": "content", "open_loops": "description", "intentions": "text", "constraints": "text"}

#: Sound payloads to start from.
BASES = 300

#: The place that a damage may have reached: () everything, ("todos",) a collection, ("todos", 3) an item.
Touched = set[tuple[Any, ...]]


class Liar:
    """Claims to be a dict, and fails at whatever it is asked."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return dict

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)

    def __iter__(self) -> Any:
        raise ZeroDivisionError

    def __repr__(self) -> str:
        raise ZeroDivisionError

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


class BrokenClass:
    """Even its class can't be asked for."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no class")


class OddMeta(type):
    def __hash__(cls) -> int:
        raise ZeroDivisionError

    def __eq__(cls, other: object) -> bool:
        raise ZeroDivisionError

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ZeroDivisionError


class OddType(metaclass=OddMeta):
    pass


class EvilDict(dict[Any, Any]):
    def items(self) -> Any:
        raise ZeroDivisionError

    def __iter__(self) -> Any:
        raise ZeroDivisionError

    def __getitem__(self, key: Any) -> Any:
        raise ZeroDivisionError

    def get(self, key: Any, default: Any = None) -> Any:
        raise ZeroDivisionError


class EvilStr(str):
    def __str__(self) -> str:
        raise ZeroDivisionError

    def strip(self, *args: Any) -> str:
        raise ZeroDivisionError

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    def isascii(self) -> bool:
        raise ZeroDivisionError


class EvilList(list[Any]):
    def __iter__(self) -> Any:
        raise ZeroDivisionError

    def __len__(self) -> int:
        return 10**9


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"d": value}
    return value


def cycle() -> Any:
    around: list[Any] = [1]
    around += [around, {"again": around}]
    return around


def bomb() -> Any:
    """Few objects, more values than there are atoms."""
    value: Any = ["x"]
    for _ in range(80):
        value = [value, value]
    return value


def garbage(rng: random.Random) -> Any:
    """Something that has no business in a payload."""
    makers: tuple[Callable[[], Any], ...] = (
        lambda: None,
        lambda: rng.choice([True, False, 0, -1, 2**63, -(2**70), 10**4400]),
        lambda: rng.choice([math.nan, math.inf, -math.inf, -0.0, 1e308]),
        lambda: rng.choice(["", " ", "\0", "\ud800", "x" * 2000, "é", "null", "[]", "__class__", "../../x"]),
        lambda: rng.choice([b"", b"\xff", bytearray(b"x"), memoryview(b"x")]),
        lambda: rng.choice([[], {}, (), set(), frozenset({1}), [[]], {"": {}}]),
        lambda: rng.choice([object(), object, len, print, ...]),
        lambda: rng.choice([Liar(), BrokenClass(), OddType(), OddType]),
        lambda: rng.choice([EvilDict(content="x", value=1), EvilList([1]), EvilStr("text")]),
        lambda: deep(rng.choice([5, 89, 95, 120, 2000])),
        cycle,
        bomb,
        lambda: {"__class__": "os.system", "__reduce__": ["x"]},
        lambda: {rng.choice([1, None, 1.5, b"k", ("a",), True]): "odd key"},
        lambda: MappingProxyType({"content": "a view"}),
        lambda: (item for item in "generator"),
    )
    return rng.choice(makers)()


@functools.cache
def base(number: int) -> dict[str, Any]:
    """A sound snapshot with a few items of every kind. To be copied, not changed."""
    rng = random.Random(number)
    counter = iter(range(10**9))
    state = WorkingState(clock=lambda: 1_700_000_000_000_000 + next(counter), ids=lambda: f"i{next(counter)}")
    for number in range(rng.randint(0, 4)):
        todo = state.add_todo(f"todo {number}", priority=rng.choice(["low", "medium", "high", "critical"]))
        rng.choice([state.start_todo, state.complete_todo, state.cancel_todo, state.reopen_todo])(todo)
    for number in range(rng.randint(0, 3)):
        value = rng.choice(["main", 7, [1, 2, {"a": None}], {"x": {"y": [1.5]}}, None, True])
        state.set_context(f"key {number}", value, metadata={"n": number} if number else None)
    for number in range(rng.randint(0, 2)):
        loop = state.add_open_loop(f"loop {number}", context={"n": number} if number else None)
        if rng.random() < 0.3:
            state.resolve_open_loop(loop)
    for number in range(rng.randint(0, 2)):
        state.set_intention(f"intention {number}")
        state.add_constraint(f"constraint {number}")
    payload = state.snapshot()
    if rng.random() < 0.3:
        payload["custom"] = {"mine": [1, 2, 3]}
    return payload


# ── damages ──────────────────────────────────────────────────────────────────────────────────


def places(payload: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a payload, down to where only an earlier damage can reach."""
    yield path
    if len(path) > 6:
        return
    if type(payload) is dict:
        for key, value in payload.items():
            yield from places(value, (*path, key))
    elif type(payload) is list:
        for index, value in enumerate(payload):
            yield from places(value, (*path, index))


def touched_by(payload: Any, path: tuple[Any, ...]) -> tuple[Any, ...]:
    """The item, collection or whole that a place belongs to; items of lists by id."""
    item = path[:2]
    if len(item) == 2 and item[0] in LISTS:
        return (item[0], payload[item[0]][item[1]].get("id"))
    return item


def replace(payload: Any, rng: random.Random) -> tuple[Any, Touched]:
    path = rng.choice(list(places(payload)))
    touched = touched_by(payload, path)
    if not path:
        return garbage(rng), {()}
    holder = payload
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = garbage(rng)
    return payload, {touched}


def remove(payload: Any, rng: random.Random) -> tuple[Any, Touched]:
    path = rng.choice(list(places(payload)))
    touched = touched_by(payload, path)
    if not path:
        return {}, {()}
    holder = payload
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return payload, {touched}


def insert(payload: Any, rng: random.Random) -> tuple[Any, Touched]:
    """Something foreign among the items: these must not suffer."""
    name = rng.choice([*LISTS, "context", ""])
    if name == "":
        payload[rng.choice(["extra", "__class__", "é", 5, None])] = garbage(rng)
    elif name == "context":
        payload[name][rng.choice(["extra", "", 5, None, "x" * 2000, "\ud800", ("a",)])] = garbage(rng)
    else:
        payload[name].insert(rng.randint(0, len(payload[name])), garbage(rng))
    return payload, set()


def twin(payload: Any, rng: random.Random) -> tuple[Any, Touched]:
    """Two items with one id."""
    name = rng.choice(LISTS)
    if payload[name]:
        item = copy.deepcopy(rng.choice(payload[name]))
        item[TEXTS[name]] += " again"
        payload[name].append(item)
    return payload, set()


def reversion(payload: Any, rng: random.Random) -> tuple[Any, Touched]:
    payload["schema_version"] = rng.choice([0, -1, 2, 10**30, "1", None, 1.0, True, [1]])
    return payload, set()


def document_form(payload: Any, rng: random.Random) -> tuple[Any, Touched]:
    """As the document of a thread has it: dicts by id."""
    by_id = {
        name: {item["id"]: {k: v for k, v in item.items() if k != "id"} for item in payload[name]}
        for name in LISTS
    }
    if any(len(by_id[name]) < len(payload[name]) for name in LISTS):
        raise KeyError("two items of one id can't be in this form")
    return {**payload, **by_id}, set()


def subclass(payload: Any, rng: random.Random) -> tuple[Any, Touched]:
    """The same data in classes that fight back."""
    for name in LISTS:
        payload[name] = EvilList([EvilDict(item) for item in payload[name]])
    payload["context"] = EvilDict(payload["context"])
    return EvilDict(payload), set()


SMALL = (replace, replace, replace, remove, insert, twin, reversion)
LAST = (document_form, subclass)


def mutated(rng: random.Random) -> tuple[dict[str, Any], Any, Touched]:
    """A sound payload, its damaged twin, and what the damage may have reached."""
    sound = base(rng.randrange(BASES))
    payload: Any = copy.deepcopy(sound)
    touched: Touched = set()
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        try:
            payload, more = rng.choice(SMALL)(payload, rng)
        except Exception:
            # An earlier damage fights back: this one isn't done.
            continue
        touched |= more
        if () in touched:
            return sound, payload, touched
    if rng.random() < 0.15:
        try:
            payload, more = rng.choice(LAST)(payload, rng)
        except Exception:
            pass
        else:
            touched |= more
    return sound, payload, touched


# ── what must hold ───────────────────────────────────────────────────────────────────────────


def check(seed: int, save: bool = False) -> None:
    """Damage a payload by a seed, recover it, and see that every sound part is there."""
    sound, payload, touched = mutated(random.Random(seed))
    state = SelfHealer.recover(payload)
    report = state.recovery
    assert SelfHealer.validate(payload).valid is report.complete, seed
    missing = list(_missing(sound, state, touched))
    assert not missing, (seed, missing)
    gone = len(_items(sound)) - len(_items(state.snapshot()))
    assert gone <= 0 or report.lost_count or _emptied(touched), (seed, "lost without a word")
    # Usable: everything can be read, changed, healed again without loss, and saved.
    if seed % 4 == 0:
        again = SelfHealer.validate(state.snapshot())
        assert again.valid, (seed, again.errors)
    todo = state.add_todo("usable")
    assert state.complete_todo(todo).status == "completed"
    assert state.get_intention() is None or state.intentions
    if save:
        state.save()
        assert WorkingState.load(state.id).snapshot() == state.snapshot() or "nan" in repr(state.snapshot())
    state.close()


def _missing(sound: dict[str, Any], state: WorkingState, touched: Touched) -> Iterator[tuple[Any, ...]]:
    """The items that no damage reached and that aren't there as they were."""
    found = state.snapshot()
    for name in LISTS:
        by_id = {item["id"]: item for item in found[name]}
        for item in sound[name]:
            if not touched & {(), (name,), (name, item["id"])} and by_id.get(item["id"]) != item:
                yield name, item["id"]
    for key, item in sound["context"].items():
        if not touched & {(), ("context",), ("context", key)} and found["context"].get(key) != item:
            yield "context", key
    reached = any(place[:1] in ((), ("custom",)) for place in touched)
    if "custom" in sound and not reached and found.get("custom") != sound["custom"]:
        yield ("custom",)


def _items(payload: dict[str, Any]) -> list[Any]:
    return [item for name in LISTS for item in payload[name]] + list(payload["context"])


def _emptied(touched: Touched) -> bool:
    """Whether a damage simply took things away: what isn't there isn't lost by healing."""
    return bool(touched)
