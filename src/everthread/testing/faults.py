"""Fault injection around any store: let a call fail, before or after it has done its work.

store, faults = open_faulty("sqlite:///agent.db")
faults.fail("append:after")          # the next commit lands, but its answer is lost
thread.commit()                      # StorageWriteError
thread.commit()                      # recognises its own attempt
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, cast

from everthread.errors import InvalidValueError, StorageWriteError
from everthread.records import opening
from everthread.records.opening import open_backend
from everthread.store import Store
from everthread.stores.contract import Backend

__all__ = [
    "VERBS",
    "Call",
    "FaultyBackend",
    "Hook",
    "Point",
    "WrappedBackend",
    "open_faulty",
    "wrap_every_backend",
    "wrapped",
]


# A backend around another one, with a say at every call: the base of crash tests and fault injection.
#
# A *point* is written ``"verb:moment"``: a verb of the store contract (``append``, ``create``, ``fold``,
# ``find`` …) and ``before`` or ``after`` it. ``append`` means every append, also those that async callers
# share one sync for.


Moment = Literal["before", "after"]

#: Every verb of the contract.
VERBS: tuple[str, ...] = tuple(
    name for name, member in vars(Backend).items() if inspect.isfunction(member) and not name.startswith("_")
)

#: Verbs that are counted as another one.
_SAME_AS = {"append_all": "append"}


class Point(NamedTuple):
    """A place in the work of a store."""

    verb: str
    moment: Moment

    @classmethod
    def parse(cls, text: str) -> Point:
        """The point that ``text`` names. Raises :class:`InvalidValueError` naming what there is."""
        verb, _, moment = text.partition(":")
        if verb not in VERBS or moment not in ("before", "after"):
            raise InvalidValueError(
                f'{text!r} is no point; write "verb:before" or "verb:after" with a verb of the store '
                f"contract: {', '.join(VERBS)}"
            )
        return cls(_SAME_AS.get(verb, verb), cast("Moment", moment))

    def __str__(self) -> str:
        return f"{self.verb}:{self.moment}"


class Call(NamedTuple):
    """One call of a verb, just before it or just after it; ``number`` is 1 for the first call of the verb."""

    verb: str
    moment: Moment
    number: int
    arguments: tuple[Any, ...]

    def is_at(self, point: Point) -> bool:
        return self.verb == point.verb and self.moment == point.moment


#: What is told of every call. Whatever it raises comes out of the verb instead of its answer.
Hook = Callable[[Call], None]


class WrappedBackend:
    """Hands every call on to ``backend`` and tells ``hook`` before and after it.

    A call that fails has no *after*. Attributes that aren't verbs are those of ``backend``. Blocking and
    async backends are wrapped alike: *after* an awaited verb is when it has been awaited.
    """

    def __init__(self, backend: Any, hook: Hook) -> None:
        self.wrapped = backend
        self._hook = hook
        self._lock = threading.Lock()
        #: How often each verb was called.
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.wrapped, name)
        if name not in VERBS:
            return member
        call = self._told(_SAME_AS.get(name, name), member)
        # Found without this detour from now on.
        self.__dict__[name] = call
        return call

    def _told(self, verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            with self._lock:
                self.calls[verb] += 1
                number = self.calls[verb]
            arguments = (*args, *options.values())
            self._hook(Call(verb, "before", number, arguments))
            answer = method(*args, **options)
            if inspect.isawaitable(answer):
                return self._awaited(answer, Call(verb, "after", number, arguments))
            self._hook(Call(verb, "after", number, arguments))
            return answer

        return call

    async def _awaited(self, answer: Awaitable[Any], after: Call) -> Any:
        result = await answer
        self._hook(after)
        return result


def wrapped(backend: Backend, hook: Hook) -> Backend:
    """``backend`` with ``hook`` around its verbs."""
    return cast("Backend", WrappedBackend(backend, hook))


@contextmanager
def wrap_every_backend(wrap: Callable[[Backend], Backend]) -> Iterator[None]:
    """Put ``wrap`` around every backend that this process opens, whoever opens it, within the block.

    The backend of an async caller may be the async driver of a network store.
    """
    blocking, native = opening.open_backend, opening.connect_async

    def opened(*args: Any, **options: Any) -> Backend:
        return wrap(blocking(*args, **options))

    async def connected(*args: Any, **options: Any) -> Any:
        return wrap(cast("Backend", await native(*args, **options)))

    with _instead("open_backend", blocking, opened), _instead("connect_async", native, connected):
        yield


@contextmanager
def _instead(name: str, original: Any, replacement: Any) -> Iterator[None]:
    """Within the block every module of the package has ``replacement`` under a name.

    Modules that are imported later find it in ``opening``, those imported before have a name of their own for
    the old one.
    """
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == "everthread" and vars(module).get(name) is original:
            setattr(module, name, replacement)
    try:
        yield
    finally:
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", {}).get(name) is replacement:
                setattr(module, name, original)


_FOR_EVER = 2**63 - 1


class _Fault(NamedTuple):
    point: Point
    first: int
    last: int
    error: BaseException


class FaultyBackend(WrappedBackend):
    """Raises where it is told to and otherwise does what ``backend`` does."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, self._raise_if_due)
        self._faults: list[_Fault] = []
        #: The points at which an error was raised, in order.
        self.raised: list[str] = []

    def fail(
        self, point: str, error: BaseException | None = None, *, nth: int = 1, times: int | None = 1
    ) -> None:
        """Raise ``error`` at the ``nth`` call from now on, and at the following ones if ``times`` says so.

        ``before``: the verb does nothing. ``after``: it did all of its work, but the caller doesn't get to
        know. ``times=None`` fails until :meth:`heal`. Without an ``error`` it is a
        :class:`~everthread.errors.StorageWriteError`.
        """
        where = Point.parse(point)
        first = self.calls[where.verb] + nth
        last = first + times - 1 if times is not None else _FOR_EVER
        self._faults.append(_Fault(where, first, last, error or _lost(where)))

    def heal(self) -> None:
        """Let every call succeed again."""
        self._faults.clear()

    def _raise_if_due(self, call: Call) -> None:
        for fault in self._faults:
            if call.is_at(fault.point) and fault.first <= call.number <= fault.last:
                self.raised.append(str(fault.point))
                raise fault.error


def _lost(point: Point) -> StorageWriteError:
    return StorageWriteError(f"a fault was injected at {point}; commit again")


def open_faulty(url: str, *, durability: str = "full", **options: Any) -> tuple[Store, FaultyBackend]:
    """As :func:`everthread.open`, and the backend to tell what shall fail."""
    backend = FaultyBackend(open_backend(url, durability))
    return Store(cast("Backend", backend), **options), backend
