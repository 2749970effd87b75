"""What a store holds outside the namespace that was asked about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING

from everthread.arguments import counted

if TYPE_CHECKING:
    from everthread.store import Store

#: Entries that are looked through: more would take longer than the rest of the command.
_LOOKED_THROUGH_MAX = 20_000
_NAMED_MAX = 3


def elsewhere(store: Store) -> Mapping[str, int]:
    """The other namespaces that hold threads, and how many; of a very large store those seen first."""
    found: Counter[str] = Counter()
    for line in islice(store.core.backend.every_line(), _LOOKED_THROUGH_MAX):
        # What stands beside threads has a space of its own, with a NUL in its name.
        if line.space != store.namespace and "\0" not in line.space and not line.deleted:
            found[line.space] += 1
    return found


def told(others: Mapping[str, int]) -> str:
    """The other namespaces in words; empty if there are none."""
    if not others:
        return ""
    most = sorted(others, key=lambda name: (-others[name], name))
    named = [repr(name) if name else "the one without a name" for name in most[:_NAMED_MAX]]
    more = f" and {len(most) - _NAMED_MAX:,} more" if len(most) > _NAMED_MAX else ""
    word = "another namespace" if len(most) == 1 else "other namespaces"
    return f"{counted(sum(others.values()), 'thread')} in {word}: {', '.join(named)}{more}"
