"""LangGraph's own conformance suite: all of its tests, all of its capabilities, nothing skipped."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability

from everthread.adapters.langgraph import EverthreadSaver

TESTS = 81


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_conformance(url: str, colour: str, opening: Callable[..., Any]) -> None:
    check_all(url, colour, opening)


def test_conformance_of_sealed_threads(tmp_path: Path, opening: Callable[..., Any]) -> None:
    check_all(f"sqlite:///{tmp_path}/agent.db", "sync", opening, subject="ada")


def check_all(url: str, colour: str, opening: Callable[..., Any], **options: Any) -> None:
    places = itertools.count()

    @checkpointer_test(name="EverthreadSaver")
    async def registered() -> AsyncIterator[EverthreadSaver]:
        # Each capability on a store of its own, as the suite wants it.
        # The number becomes part of the file's name, or of the prefix of keys: apart, as that ends with one.
        numbered = url.startswith(("sqlite", "file", "valkey"))
        place = f"{url}.{next(places)}" if numbered else url
        async with opening(place, colour, **options) as saver:
            yield saver

    report = asyncio.run(validate(registered))
    counts = {name: result.tests_passed for name, result in report.results.items()}
    print(f"{sum(counts.values())} of {TESTS} passed: {counts}")
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert not failures
    assert report.passed_all()
    assert set(report.results) == {capability.value for capability in Capability}
    assert sum(counts.values()) == TESTS
    assert not any(result.tests_skipped for result in report.results.values())


def test_the_store_is_sound_afterwards(tmp_path: Path, opening: Callable[..., Any]) -> None:
    """The suite leaves deleted, copied and pruned threads behind: verify() still finds nothing."""

    @checkpointer_test(name="EverthreadSaver, one store")
    async def registered() -> AsyncIterator[EverthreadSaver]:
        async with opening(f"sqlite:///{tmp_path}/one.db", "sync") as saver:
            yield saver
            assert saver._store.verify()

    report = asyncio.run(validate(registered))
    assert report.passed_all()
