"""Documents on the real codec, and the check that their ops replay."""

from __future__ import annotations

import copy
from typing import Any

from everthread.codec import values
from everthread.codec.values import encode, lift
from everthread.history.ops import apply
from everthread.threads.document import Document


def lower(value: Any, where: str = "state") -> Any:
    return values.lower(value, root=where)


def make(content: dict[Any, Any], *, writable: bool = True) -> Document:
    return Document(lower(content), lower=lower, lift=lift, writable=writable)


class Calls:
    """Counts what a document asks of the codec."""

    def __init__(self) -> None:
        self.lowered: list[str] = []

    def lower(self, value: Any, where: str) -> Any:
        self.lowered.append(where)
        return lower(value, where)


def check_replay(before: dict[Any, Any], document: Document) -> None:
    """The pending ops turn ``before`` into the present document, order of keys included."""
    replayed = apply(lower(before), copy.deepcopy(document.take_ops()))
    assert encode(replayed) == encode(document.raw)
