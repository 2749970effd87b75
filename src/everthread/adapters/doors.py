"""Adapters load their framework when one of their names is first used, and say what to install without it.

An adapter is a package whose ``__init__.py`` is a door: a table of names and where they live, and
``__getattr__``, which calls :func:`load`. Only the modules behind the door import the framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from everthread.arguments import with_extra
from everthread.errors import MissingDependencyError


def load(door: str, name: str, homes: Mapping[str, str], *, extra: str) -> Any:
    """What an adapter's ``__getattr__`` answers: the value of ``name`` in the module that ``homes`` names.

    Raises :class:`MissingDependencyError` if the framework can't be imported; its message ends with what to
    install.
    """
    home = homes.get(name)
    if home is None:
        raise AttributeError(f"module {door!r} has no attribute {name!r}")
    try:
        module = import_module(home)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "everthread":
            raise
        raise MissingDependencyError(
            f"{door}.{name} needs a package that isn't installed, or a newer release of it ({error}): "
            + with_extra(extra),
            name=error.name,
        ) from error
    return getattr(module, name)
