from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.stores.interface import run
from tests.contract.stores import STORES, SURVIVING


@pytest.fixture(params=sorted(STORES))
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[Any]:
    opened = STORES[kind](tmp_path)
    yield opened
    run(opened.close())


@pytest.fixture
def again(kind: str, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    """Opens the same store once more. Only for stores that outlive their object."""
    if kind not in SURVIVING:
        pytest.skip(f"a {kind} store lives in one object")
    opened: list[Any] = []

    def open_again() -> Any:
        opened.append(STORES[kind](tmp_path))
        return opened[-1]

    yield open_again
    for each in opened:
        run(each.close())
