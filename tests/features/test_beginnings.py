"""Beginnings of sessions that may be repeated, on every store."""

from __future__ import annotations

import pytest

from everthread import ThreadExistsError
from tests.servers.colours import Url


def test_a_beginning_repeated_with_its_key_goes_on(url: Url) -> None:
    for number in (1, 2):
        with url.open() as store:
            with store.session("bot", mode="new", key="job 7", initial={"n": 7}) as session:
                assert (session.run.number, session.state["n"]) == (number, 7)
                session.messages.append({"content": f"run {number}"})
            with store.session("what if", mode="fork", source="bot", at=1, key="try 1") as fork:
                assert (fork.run.number, fork.state["n"]) == (number, 7)
                fork.messages.append({"content": f"fork {number}"})
    with url.open() as store:
        assert [each["content"] for each in store.thread("bot").messages] == ["run 1", "run 2"]
        assert [each["content"] for each in store.thread("what if").messages] == ["fork 1", "fork 2"]
        with pytest.raises(ThreadExistsError):
            store.session("bot", mode="new", key="job 8")
        with pytest.raises(ThreadExistsError):
            store.session("what if", mode="fork", source="bot", at=1, key="try 2")
