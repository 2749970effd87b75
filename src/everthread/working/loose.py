"""The document of a state that hasn't been saved anywhere yet."""

from __future__ import annotations

from typing import Any

from everthread.codec.types import Code
from everthread.codec.values import lift, lower
from everthread.threads.document import Document, TrackedDict
from everthread.values import Opaque, Personal, Tagged


class LooseDocument:
    """Behaves as a thread's document does, without a store: nothing is opened, read or written.

    Personal values wait here as they are; they are sealed when the document moves into a thread.
    """

    __slots__ = ("_document", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[bytes, Personal] = {}
        self._document = Document({}, lower=self._lower, lift=self._lift)

    @property
    def root(self) -> TrackedDict:
        return self._document.root

    def _lower(self, value: Any, where: str) -> Any:
        return lower(value, seal=self._keep, root=where)

    def _lift(self, node: Any) -> Any:
        return lift(node, self._kept)

    def _keep(self, personal: Personal) -> Tagged:
        token = b"loose %d" % len(self._waiting)
        self._waiting[token] = personal
        return Tagged(Code.SEALED, token)

    def _kept(self, sealed: Tagged) -> Any:
        return self._waiting.get(sealed.data) or Opaque(sealed)
