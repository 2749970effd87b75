"""Types that signatures name, of modules that are loaded only where they are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ForwardRef


def type_names(homes: Mapping[str, str]) -> dict[str, ForwardRef]:
    """A reference for each name, by the module that it is in: ``{module: "Name OtherName"}``.

    A module that loads others only where it uses them puts these among its own names, so that
    ``typing.get_type_hints()`` finds what its signatures mean, and loads the others then.
    """
    return {
        name: ForwardRef(f"__import__('importlib').import_module({home!r}).{name}")
        for home, names in homes.items()
        for name in names.split()
    }
