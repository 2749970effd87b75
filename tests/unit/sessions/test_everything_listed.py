"""Lists of a session's records hold everything unless the caller limits them."""

from __future__ import annotations

import asyncio

import everthread

COUNT = 27


def fill(store: everthread.Store) -> None:
    for number in range(COUNT):
        with store.session("bot") as session:
            session.call(f"pay-{number}", lambda: None)
            session.record_error("too late")
            session.decide("pay")


def test_records_hold_everything_without_a_limit() -> None:
    with everthread.open("memory:") as store:
        fill(store)
        records = store.session_records("bot")
        for listed in (records.runs, records.effects, records.errors, records.decisions):
            assert len(listed()) == COUNT  # type: ignore[operator]
            assert len(listed(limit=5)) == 5  # type: ignore[operator]
        with store.session("bot") as session:
            assert len(session.effects()) == COUNT
            assert len(session.errors) == COUNT


def test_async_records_hold_everything_without_a_limit() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store, store.session("bot") as session:
            for number in range(COUNT):
                await session.call(f"pay-{number}", lambda: None)
                await session.record_error("too late")
                await session.decide("pay")
            records = await store.session_records("bot")
            assert len(await records.effects()) == len(await records.errors()) == COUNT
            assert len(await records.decisions()) == len(await session.effects()) == COUNT

    asyncio.run(main())
