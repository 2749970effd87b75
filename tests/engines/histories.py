"""Writes the histories that ``test_saved_histories_replay`` replays: ``python -m
tests.engines.histories``."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from tests.engines.runs import Bench, until
from tests.engines.workflows import Agent
from tests.servers.temporal import TemporalServer

SAVED = Path(__file__).parent / "histories"


async def write(bench: Bench) -> None:
    SAVED.mkdir(exist_ok=True)
    async with bench.worker():
        tools = await bench.begin("work 2 3")
        taken_back = await bench.begin("retry")
        chat = await bench.begin(None, is_chat=True)
        await chat.execute_update(Agent.tell, {"id": "m1", "role": "user", "content": "hello"})
        await until(lambda: chat.query(Agent.waiting), "the answer")
        await chat.signal(Agent.finish)
        for name, handle in (("tools", tools), ("taken_back", taken_back), ("chat", chat)):
            await handle.result()
            (SAVED / f"{name}.json").write_text((await handle.fetch_history()).to_json() + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = folder
        server = TemporalServer(Path(folder) / "temporal")
        server.start()
        try:
            asyncio.run(write(Bench(server.address, Path(folder))))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
