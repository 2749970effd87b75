"""Healing of working states: what is wrong with a payload, and a state made of what is sound in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from everthread.arguments import counted
from everthread.codec.schema import CURRENT_SCHEMA_VERSION, VERSION_FIELD
from everthread.errors import EverthreadError
from everthread.working.config import Config
from everthread.working.healing import Healed, heal
from everthread.working.shelves import new_item_id
from everthread.working.sound import TOLD_MAX, Loss, Sieve, is_a
from everthread.working.state import WorkingState

__all__ = ["Loss", "RecoveryReport", "SelfHealer", "Validation"]


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a payload is a working state, and what is wrong with it. True if it is valid.

    ``errors``: parts that are lost or altered when the state is recovered. ``warnings``: what is tolerated
    and complete.
    """

    errors: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.errors

    def __bool__(self) -> bool:
        return self.valid


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery kept and what not. ``lost`` tells of the first thousand losses, ``lost_count`` of all.

    ``source_id`` is the id that the payload says it is of; the recovered state has one of its own.
    """

    lost: tuple[Loss, ...] = ()
    lost_count: int = 0
    warnings: tuple[str, ...] = ()
    kept: Mapping[str, int] = MappingProxyType({})
    source_id: str | None = None

    @property
    def complete(self) -> bool:
        """Whether nothing was lost."""
        return not self.lost_count

    def __str__(self) -> str:
        named = ((name.replace("_", " "), count) for name, count in self.kept.items() if count)
        kept = ", ".join(counted(count, name.removesuffix("s"), name) for name, count in named)
        lines = [f"kept {kept or 'nothing'}; {counted(self.lost_count, 'loss', 'losses')}"]
        lines += [f"  lost {loss}" for loss in self.lost]
        return "\n".join(lines)


class SelfHealer:
    """Looks at payloads that may be damaged, cut or hostile. Neither call raises for any of them."""

    @staticmethod
    def validate(payload: Any) -> Validation:
        """What is wrong with a snapshot, a document, or a payload of an older version. Changes nothing."""
        sieve = _healed(payload).sieve
        errors = [str(loss) for loss in sieve.losses]
        if sieve.lost_count > TOLD_MAX:
            errors.append(f"and {sieve.lost_count - TOLD_MAX:,} more")
        return Validation(errors=tuple(errors), warnings=tuple(sieve.warnings))

    @staticmethod
    def recover(payload: Any, config: Config | None = None, *, store: Any = None) -> WorkingState:
        """A new, unsaved state with every part of ``payload`` that is sound.

        ``state.recovery``, a :class:`RecoveryReport`, says what was lost. The payload is left as it is, and
        nothing is written until the state is saved, under an id of its own. ``config`` and ``store`` say
        where that will be.
        """
        state = WorkingState(config, store=store)
        healed = _healed(payload)
        report = _fill(state, healed)
        state.recovery = report
        return state


def _healed(payload: Any, ids: Callable[[], str] = new_item_id) -> Healed:
    if is_a(payload, WorkingState):
        try:
            payload = payload.snapshot()
        except EverthreadError as error:
            sieve = Sieve()
            sieve.lose((), f"the state can't be read: {error}")
            return Healed({}, {}, sieve, None)
    return heal(payload, ids)


def _fill(state: WorkingState, healed: Healed) -> RecoveryReport:
    sieve = healed.sieve
    edits: list[tuple[Any, Any, Any]] = [(None, key, value) for key, value in healed.other.items()]
    for name, items in healed.collections.items():
        edits += [(name, id, fields) for id, fields in items.items()]
    kept: dict[str, int] = {}
    root = state._ground.root()
    for name, id, value in edits:
        try:
            if name is None:
                root[id] = value
            else:
                root.setdefault(name, {})[id] = value
        except EverthreadError as error:
            sieve.lose((id,) if name is None else (name, id), str(error))
            continue
        label = "other" if name is None else name
        kept[label] = kept.get(label, 0) + 1
    if kept:
        root[VERSION_FIELD] = CURRENT_SCHEMA_VERSION
        state._touched = True
    return RecoveryReport(
        lost=tuple(sieve.losses),
        lost_count=sieve.lost_count,
        warnings=tuple(sieve.warnings),
        kept=MappingProxyType(kept),
        source_id=healed.source_id,
    )
