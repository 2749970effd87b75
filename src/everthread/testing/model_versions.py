"""Versions of the model: each holds everything, and knows where it came from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from everthread.errors import KeyReusedError

StepKey = tuple[Any, int | None]


class Ambiguous(Exception):  # noqa: N818 - not a failure: the caller asks something else
    """The rules leave this open, for example a merge of lines that have merged each other crosswise."""


@dataclass(frozen=True)
class Recorded:
    """What is known of a step: the highest attempt that entered, and its result once there is one."""

    attempt: int
    done: bool = False
    result: Any = None
    ids: tuple[tuple[str, Any], ...] = ()


@dataclass(eq=False)
class ModelVersion:
    """A version with everything in it.

    ``previous`` is the version before it in time, ``origin`` the one it goes on from: they differ where a
    rewind went back.
    """

    seq: int
    document: dict[str, Any]
    logs: dict[str, list[Any]]
    steps: dict[StepKey, Recorded]
    previous: ModelVersion | None
    origin: ModelVersion | None
    merged: ModelVersion | None = None
    kind: str = "commit"
    key: str | None = None
    label: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def history(self) -> Iterator[ModelVersion]:
        """This version and all before it in time, those left behind by a rewind included."""
        version: ModelVersion | None = self
        while version is not None:
            yield version
            version = version.previous

    def path(self) -> Iterator[ModelVersion]:
        """This version and those that led to it."""
        version: ModelVersion | None = self
        while version is not None:
            yield version
            version = version.origin

    def contained(self) -> set[ModelVersion]:
        """Every version whose changes are in this one, through merges too."""
        found: set[ModelVersion] = set()
        pending: list[ModelVersion | None] = [self]
        while pending:
            version = pending.pop()
            if version is not None and version not in found:
                found.add(version)
                pending += (version.origin, version.merged)
        return found


def find_key(head: ModelVersion, key: str) -> ModelVersion | None:
    """The version on the way to ``head`` that carries the key. Raises if it was left behind."""
    carriers = [version for version in head.history() if version.key == key]
    for version in carriers:
        if version in head.path():
            return version
    if carriers:
        rewind = next(version for version in head.path() if version.kind == "rewind")
        raise KeyReusedError(key, key=key, version=carriers[0], rewind=rewind)
    return None


def merge_base(ours: ModelVersion, theirs: ModelVersion) -> ModelVersion | None:
    """The one version that both contain and that contains all others which both contain."""
    shared = ours.contained() & theirs.contained()
    if not shared:
        return None
    for version in shared:
        if version.contained() >= shared:
            return version
    raise Ambiguous("several versions could be the base of this merge")
