"""An async agent: tools that are awaited, several at once, each at most once; killed in between or not.

python examples/async_session.py
"""

from __future__ import annotations

import asyncio
import tempfile

import everthread

CALLED: list[str] = []


async def fetch(city: str) -> str:
    """A tool that takes its time."""
    CALLED.append(city)
    await asyncio.sleep(0.01)
    return f"{city}: 21 °C"


async def run(url: str) -> list[str]:
    """One run of the agent. What an earlier one has fetched isn't fetched again."""
    async with everthread.open_async(url) as store, store.session("weather", agent="reporter") as s:
        if await s.resumed is None:
            await s.work.add_todo("report the weather")
        # Parallel tools: each is recorded before it is called, and again with its result.
        calls = [s.call(f"fetch-{city}", fetch, city) for city in ("Lisbon", "Oslo", "Turin")]
        found = await asyncio.gather(*calls)
        await s.messages.append({"role": "assistant", "content": "; ".join(found)})
        return found


async def look(url: str) -> str:
    """What a new run would be told, without beginning one."""
    async with everthread.open_async(url) as store:
        report = await store.resume("weather")
        briefing = await store.briefing("weather", max_tokens=600)
        return f"{report.status}, {len(report.todos['pending'])} todo, briefing of {briefing.tokens} tokens"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/agent.db"
        first = asyncio.run(run(url))
        again = asyncio.run(run(url))
        assert first == again
        print("\n".join(again))
        print(f"fetched {len(CALLED)} times in two runs")
        told = asyncio.run(look(url))
        assert told.startswith("completed, 1 todo")
        print(told)


if __name__ == "__main__":
    main()
