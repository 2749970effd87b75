"""The tests that every store must pass, for whoever writes one.

Subclass the suite in a test module of your own and give it a fixture ``open_store``: a function that opens
the store under test and, called again, opens the same place again (options go to ``everthread.open``).
A test that needs what the store declares not to have (``store.capabilities``) is skipped; nothing else is.

    import pytest
    from everthread.testing.conformance import ConformanceSuite

    class TestMyStore(ConformanceSuite):
        @pytest.fixture
        def open_store(self, tmp_path):
            stores = []

            def open_it(**options):
                stores.append(everthread.open(f"mystore://{tmp_path}", **options))
                return stores[-1]

            yield open_it
            for store in stores:
                store.close()

A second class runs the same rules on the async colour of the store, which looks blocking to them
(:mod:`everthread.testing.driver` says how, and what it bridges):

    from everthread.testing.driver import open_driven

    class TestMyStoreAsync(TestMyStore):
        @pytest.fixture
        def open_store(self, tmp_path):
            stores = []

            def open_it(**options):
                stores.append(open_driven(f"mystore://{tmp_path}", **options))
                return stores[-1]
            ...

For failures that show both sides of a comparison, call
``pytest.register_assert_rewrite("everthread.testing")`` before the import.
"""

from __future__ import annotations

from everthread.testing.rules.cells_and_streams import CellAndStreamRules
from everthread.testing.rules.commits import CompareAndSetRules, KeyRules, VersionRules
from everthread.testing.rules.expectations import OpenStore
from everthread.testing.rules.forks import BranchingRules, MergeRules
from everthread.testing.rules.lifetimes import DeletionRules, ExpiryRules, PruningRules
from everthread.testing.rules.locks import LockRules
from everthread.testing.rules.logs import LogRules
from everthread.testing.rules.people import ErasedPeopleRules, ErasureRules
from everthread.testing.rules.processes import ProcessRules
from everthread.testing.rules.runs import MergedEffectRules, RunRules
from everthread.testing.rules.steps import StepRules
from everthread.testing.rules.store import (
    HandleRules,
    NameRules,
    RedactionRules,
    WatchRules,
    WholeStoreRules,
)

__all__ = ["ConformanceSuite", "OpenStore"]


class ConformanceSuite(
    HandleRules,
    CompareAndSetRules,
    KeyRules,
    LogRules,
    VersionRules,
    BranchingRules,
    MergeRules,
    StepRules,
    LockRules,
    RunRules,
    MergedEffectRules,
    DeletionRules,
    NameRules,
    RedactionRules,
    WholeStoreRules,
    ProcessRules,
    CellAndStreamRules,
    WatchRules,
    ExpiryRules,
    PruningRules,
    ErasureRules,
    ErasedPeopleRules,
):
    """Every rule of threads, one test each."""
