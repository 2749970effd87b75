"""How places inside a document are written."""

from __future__ import annotations

import pytest

from everthread.arguments import KEY_CHARS_MAX, format_path


@pytest.mark.parametrize(
    ("path", "root", "shown"),
    [
        ((), "", ""),
        ((), "state", "state"),
        (("todos", 3, "content"), "state", "state.todos[3].content"),
        (("todos", 3, "content"), "", "todos[3].content"),
        ((0, "a"), "", "[0].a"),
        (("odd key",), "state", 'state["odd key"]'),
        (("odd key", "b"), "", '["odd key"].b'),
        (("", "1a", "ä"), "state", 'state[""]["1a"].ä'),
        (('say "hi"',), "state", "state['say \"hi\"']"),
        (("line\nbreak",), "state", 'state["line\\nbreak"]'),
        ((None, True, 1.5, b"x", (1, "y")), "", "[None][True][1.5][b'x'][(1, 'y')]"),
    ],
)
def test_rendering(path: tuple[object, ...], root: str, shown: str) -> None:
    assert format_path(path, root) == shown


class _Sulky:
    def __repr__(self) -> str:
        raise RuntimeError("no comment")


@pytest.mark.parametrize(
    "key",
    ["x" * 5_000_000, "x y" * 1_000_000, b"x" * 5_000_000, 10**10_000, ("long",) * 100_000, "\ud800" * 1_000],
    ids=["identifier", "text", "bytes", "integer", "tuple", "surrogates"],
)
def test_a_huge_key_is_shortened(key: object) -> None:
    shown = format_path((key,), "state")
    assert shown.startswith("state[")
    assert len(shown) <= len("state[]") + KEY_CHARS_MAX
    shown.encode()


def test_a_key_whose_repr_fails_is_named_by_its_class() -> None:
    assert "_Sulky" in format_path((_Sulky(), "a"), "state")
