"""What a saver remembers of the states that it has handed out or taken in: the very objects of long lists.

With them the next state is compared by identity. They are kept for the last few checkpoints of a namespace
only; without them a list is compared with what the store holds, which costs more and finds the same.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from everthread.adapters.langgraph.messages import Mould

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
