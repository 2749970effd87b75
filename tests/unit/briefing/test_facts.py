"""Stored values as short texts, with personal ones masked."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from everthread import Erased, Opaque, Personal
from everthread.briefing.facts import message_text, shown
from everthread.values import Tagged

SECRET = Personal("ann", "ann@example.org")


@dataclass
class Order:
    number: int
    buyer: Any


class Ticket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    buyer: Personal


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a text", "a text"),
        (None, "None"),
        (7, "7"),
        ({"a": [1, "b"]}, '{a: [1, "b"]}'),
        ([], "[]"),
        (b"xyz", "(3 bytes)"),
        ({3, 1, 2}, "{1, 2, 3}"),
        (set(range(1000)), "(1,000 items)"),
        (list(range(20)), "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … 8 more]"),
        ([[[[[1]]]]], "[[[[…]]]]"),
        (Erased(), "(erased)"),
        (Opaque(Tagged(7, b"x")), "(of a type that isn't known here)"),
        (object(), "(object)"),
        (Decimal("1.50"), "1.50"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (Order(1, "x"), 'Order{number: 1, buyer: "x"}'),
    ],
)
def test_values(value: Any, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    "value",
    [
        SECRET,
        [SECRET],
        {"a": {"b": (SECRET,)}},
        Order(1, SECRET),
        Ticket(buyer=SECRET),
        {"x": Order(1, [SECRET])},
    ],
)
def test_personal_values_are_masked_wherever_they_are(value: Any) -> None:
    assert "ann@" not in shown(value)
    assert "•••" in shown(value)
    assert "ann@" not in message_text({"role": "user", "content": value})[1]


def test_long_values_are_cut() -> None:
    assert shown([10**5000]) == "[(large number)]"
    assert len(shown({"x" * 100_000: "y" * 100_000})) <= 2_000


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "content": "hello"}, ("user", "hello")),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            ("user", "a b"),
        ),
        ({"role": "model", "parts": [{"text": "hi"}]}, ("model", "hi")),
        ({"type": "human", "content": "x"}, ("human", "x")),
        (
            {"role": "assistant", "tool_calls": [{"name": "pay"}]},
            ("assistant", '{tool_calls: [{name: "pay"}]}'),
        ),
        (
            {"shape": "langchain", "message": {"type": "human", "data": {"content": "pay"}}},
            ("user", "pay"),
        ),
        (
            {"type": "ai", "data": {"content": "", "tool_calls": [{"name": "pay", "args": {"n": 0}}]}},
            ("ai", "pay({n: 0})"),
        ),
        (
            {
                "role": "assistant",
                "content": "I pay.",
                "tool_calls": [{"function": {"name": "pay", "arguments": SECRET}}, 7],
            },
            ("assistant", "I pay. pay(•••)"),
        ),
        ({"role": "assistant", "content": "x", "tool_calls": "odd"}, ("assistant", "x")),
        ({"role": "user", "content": [{"type": "text", "text": SECRET}]}, ("user", "•••")),
        ({"role": "user", "content": Erased()}, ("user", "(erased)")),
        ({"role": 7, "content": "x"}, ("", "x")),
        ("bare", ("", "bare")),
        ({}, ("", "{}")),
    ],
)
def test_messages_of_many_shapes(message: Any, said: tuple[str, str]) -> None:
    assert message_text(message) == said
