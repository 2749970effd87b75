"""Decisions under a key are made once; a decision that an effect carries out is closed with it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import everthread
from everthread.testing.faults import open_faulty


def test_a_decision_made_again_under_its_key_is_the_same() -> None:
    with everthread.open("memory:") as store, store.session("bot") as session:
        first = session.decide("use FIFO", key="method")
        head = session.thread.head
        assert session.decide("use FIFO, of course", key="method").id == first.id
        assert session.thread.head == head
        assert session.decide("use LIFO", key="other").id != first.id
        assert len(session.incomplete_decisions()) == 2


def test_a_decision_of_an_earlier_run_keeps_its_outcome(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url) as store, store.session("bot") as session:
        first = session.decide("use FIFO", rationale="auditor", key="method")
        session.record_outcome(first.id, "recomputed")
    with everthread.open(url) as store, store.session("bot") as session:
        again = session.decide("use FIFO", key="method")
        assert (again.id, again.rationale, again.outcome) == (first.id, "auditor", "recomputed")
        with session.decide("use FIFO", key="method"):
            pass
        assert store.session_records("bot").decided_count == 1


@pytest.mark.parametrize("landed", ["before", "after"])
def test_a_decision_that_failed_and_is_repeated_is_made_once(landed: str, tmp_path: Path) -> None:
    store, faults = open_faulty(f"sqlite:///{tmp_path}/a.db")
    with store, store.session("bot") as session:
        faults.fail(f"append:{landed}")
        with pytest.raises(everthread.StorageWriteError):
            session.decide("use FIFO", key="method")
        session.decide("use FIFO", key="method")
        assert len(store.session_records("bot").decisions()) == 1
        assert len(session.incomplete_decisions()) == 1


def test_two_processes_of_one_run_decide_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url) as one, everthread.open(url) as two:
        with one.session("bot", run="r1") as first, two.session("bot", run="r1") as second:
            second.state["busy"] = True
            made = first.decide("by the first", key="method")
            found = second.decide("by the second", key="method")
            assert (found.id, found.decision) == (made.id, "by the first")
        records = one.session_records("bot")
        assert [decision.decision for decision in records.decisions()] == ["by the first"]
        assert one.thread("bot").state["busy"] is True


def test_a_rewind_before_a_decision_lets_it_be_made_again() -> None:
    with everthread.open("memory:") as store, store.session("bot") as session:
        before = session.save("before")
        first = session.decide("use FIFO", key="method")
        session.record_outcome(first.id, "done")
        session.rewind(before)
        assert session.decide("use LIFO", key="method").decision == "use LIFO"


def test_a_decision_is_closed_when_its_effect_is_done() -> None:
    with everthread.open("memory:") as store, store.session("bot") as session:
        session.decide("pay it", effect="pay-802")
        session.decide("file it", effect="file-802")
        assert session.call("pay-802", lambda: "receipt") == "receipt"
        assert [open_.decision for open_ in session.incomplete_decisions()] == ["file it"]
        paid = store.session_records("bot").decisions()[-1]
        assert (paid.effect, paid.outcome, paid.failed) == ("pay-802", "done", False)


def test_a_block_that_fails_after_its_effect_raises_its_own_error() -> None:
    with everthread.open("memory:") as store, store.session("bot") as session:

        def pay_and_fail() -> None:
            with session.decide("pay it", effect="pay-802"):
                session.call("pay-802", lambda: "receipt")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            pay_and_fail()
        assert store.session_records("bot").decisions()[0].outcome == "done"


def test_a_decision_stays_open_while_its_effect_is_in_doubt() -> None:
    with everthread.open("memory:") as store, store.session("bot") as session:
        session.decide("pay it", effect="pay-802")

        def pay() -> None:
            raise TimeoutError

        with pytest.raises(TimeoutError):
            session.call("pay-802", pay)
        assert len(session.incomplete_decisions()) == 1
        session.settle("pay-802", True)
        assert session.incomplete_decisions() == []


def test_a_run_killed_right_after_the_effect_leaves_no_open_decision(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    store, faults = open_faulty(url)
    with store, store.session("bot") as session:
        session.decide("pay it", effect="pay-802")
        # Intention and result are in the ledger; that the decision has an outcome can't be written any more.
        faults.fail("append:before", nth=3, times=None)
        assert session.call("pay-802", lambda: "receipt") == "receipt"
        faults.heal()
        faults.fail("append:before", times=None)
        with pytest.raises(everthread.StorageWriteError):
            session.close()
    with everthread.open(url) as again:
        assert again.resume("bot").decisions == ()
        assert again.session_records("bot").open_decisions() == []


def test_async_decisions_have_keys_and_effects() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store, store.session("bot") as session:
            first = await session.decide("pay it", key="pay", effect="pay-802")
            async with session.decide("pay it", key="pay") as again:
                assert again.id == first.id
                await session.call("pay-802", lambda: None)
            assert await session.incomplete_decisions() == []

    asyncio.run(main())
