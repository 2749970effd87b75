"""Usage is kept for each turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import everthread


def test_each_turn_keeps_what_it_counted(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with everthread.open(url) as store:
        with store.session("bot") as session:
            for number in (1, 2):
                with session.turn() as turn:
                    turn.add_usage(input_tokens=10 * number)
                    turn.add_usage(input_tokens=1, output_tokens=number)
            session.add_usage(input_tokens=5)
            with session.turn():
                pass
            first = session.run_id
        with store.session("bot") as session, session.turn() as turn:
            turn.add_usage(output_tokens=7)
    with everthread.open(url) as store:
        records = store.session_records("bot")
        found = records.turn_usage()
        assert [(one.turn, dict(one.usage)) for one in found] == [
            (4, {"output_tokens": 7}),
            (2, {"input_tokens": 21, "output_tokens": 2}),
            (1, {"input_tokens": 11, "output_tokens": 1}),
        ]
        assert [one.run == first for one in found] == [False, True, True]
        assert records.turn_usage(limit=2) == found[:2]
        assert records.usage.input_tokens == 37


def test_usage_of_turns_stays_after_a_rewind_and_is_not_a_forks() -> None:
    with everthread.open("memory:") as store:
        with store.session("bot") as session:
            before = session.save("before")
            with session.turn() as turn:
                turn.add_usage(tokens=3)
            session.rewind(before)
        store.thread("bot").fork("other")
        with store.session("other") as session, session.turn() as turn:
            turn.add_usage(tokens=4)
        assert [dict(one.usage) for one in store.session_records("bot").turn_usage()] == [{"tokens": 3}]
        assert [dict(one.usage) for one in store.session_records("other").turn_usage()] == [{"tokens": 4}]


def test_async_turns_keep_what_they_counted() -> None:
    async def main() -> None:
        async with everthread.open_async("memory:") as store:
            async with store.session("bot") as session, session.turn() as turn:
                await turn.add_usage(tokens=3)
            (found,) = await (await store.session_records("bot")).turn_usage()
            assert (found.turn, found.usage.tokens) == (1, 3)

    asyncio.run(main())
