"""Secrets that get into agents' state by accident: found when they are about to be stored.

A detector says where in a text something stands that doesn't belong there, and what to do about it: ``warn``,
``mask`` it, or ``seal`` the text. Stores that are opened without detectors don't look at all.

The patterns here are bounded: a fixed beginning, then one class of characters with a largest length. None of
them can make the search take longer than a few passes over the text.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Literal, get_args

from everthread.arguments import check_name, check_several
from everthread.errors import InvalidValueError
from everthread.values import Erased, Opaque, Personal, Tagged

Action = Literal["warn", "mask", "seal"]
#: Where in a text something was found: (start, stop), in order.
Spans = Iterable[tuple[int, int]]
Find = Callable[[str], Spans]

#: Longer texts are looked through in pieces; no secret that is found here is longer than their overlap.
_PIECE = 1 << 20
_OVERLAP = 1 << 14


#: What holds no text that could be looked at.
_OTHERS = (bool, int, float, bytes, Personal, Erased, Opaque, Tagged)


class SecretWarning(UserWarning):
    """Something that looks like a secret is about to be stored."""


class Detector:
    """Finds one kind of thing. ``find`` gives the spans in a text, ``action`` says what happens then.

    ``seal`` makes the whole text a ``Personal`` of ``subject``, so that it can be erased. Whatever ``find``
    raises is the caller's to see: nothing is stored then.
    """

    def __init__(self, name: str, find: Find, action: Action = "warn", *, subject: str = "secrets") -> None:
        self.name = check_name(name, "detector name")
        if action not in get_args(Action):
            raise InvalidValueError(f"action is 'warn', 'mask' or 'seal', not {action!r}", path="action")
        if not callable(find):
            raise InvalidValueError("find must be a function from a text to spans", path="find")
        self.find = find
        self.action: Action = action
        self.subject = check_name(subject, "subject")

    def __repr__(self) -> str:
        return f"<detector {self.name!r}: {self.action}>"


def _pattern(*patterns: tuple[str, str]) -> Find:
    """Finds patterns, each given with a text, in small letters, that every match holds in some case: looking
    for that takes a fraction of the time, and hardly any text has it."""
    compiled = [(hint, re.compile(pattern)) for hint, pattern in patterns]

    def find(text: str) -> Spans:
        small = text.lower()
        return [
            match.span() for hint, pattern in compiled if hint in small for match in pattern.finditer(text)
        ]

    return find


_API_KEYS = _pattern(
    ("akia", r"\bAKIA[0-9A-Z]{16}\b"),
    ("asia", r"\bASIA[0-9A-Z]{16}\b"),
    ("aiza", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("sk-", r"\bsk-[0-9A-Za-z_-]{20,256}"),
    ("k_live_", r"\b[rs]k_live_[0-9A-Za-z]{16,256}"),
    ("k_test_", r"\b[rs]k_test_[0-9A-Za-z]{16,256}"),
    ("gho_", r"\bgho_[0-9A-Za-z]{36,255}"),
    ("ghp_", r"\bghp_[0-9A-Za-z]{36,255}"),
    ("ghr_", r"\bghr_[0-9A-Za-z]{36,255}"),
    ("ghs_", r"\bghs_[0-9A-Za-z]{36,255}"),
    ("ghu_", r"\bghu_[0-9A-Za-z]{36,255}"),
    ("github_pat_", r"\bgithub_pat_[0-9A-Za-z_]{22,255}"),
    ("xox", r"\bxox[abeprs]-[0-9A-Za-z-]{10,256}"),
    ("hf_", r"\bhf_[0-9A-Za-z]{30,64}\b"),
)
_BEARER_TOKENS = _pattern(
    ("bearer ", r"\b[Bb][Ee][Aa][Rr][Ee][Rr] [0-9A-Za-z._~+/=-]{16,4096}"),
    ("eyj", r"\beyJ[0-9A-Za-z_-]{8,4096}\.[0-9A-Za-z_-]{8,4096}\.[0-9A-Za-z_-]{8,4096}"),
)
_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----")


def _private_keys(text: str) -> Spans:
    at = 0
    while (begun := _BEGIN.search(text, at)) is not None:
        end = text.find("-----END ", begun.end())
        stop = text.find("-----", end + 9) if end >= 0 else -1
        # One that was cut off counts as well, to the end of the text.
        at = stop + 5 if stop >= 0 else len(text)
        yield begun.start(), at


def api_keys(action: Action = "warn", *, subject: str = "secrets") -> Detector:
    """Keys of well-known services: AWS, Google, OpenAI, Anthropic, Stripe, GitHub, Slack, Hugging Face."""
    return Detector("api key", _API_KEYS, action, subject=subject)


def bearer_tokens(action: Action = "warn", *, subject: str = "secrets") -> Detector:
    """What follows ``Bearer`` in a header, and JSON web tokens."""
    return Detector("bearer token", _BEARER_TOKENS, action, subject=subject)


def private_keys(action: Action = "warn", *, subject: str = "secrets") -> Detector:
    """Private keys in PEM form."""
    return Detector("private key", _private_keys, action, subject=subject)


def secrets(action: Action = "warn", *, subject: str = "secrets") -> list[Detector]:
    """All of these."""
    return [make(action, subject=subject) for make in (api_keys, bearer_tokens, private_keys)]


class Screen:
    """What a store does with the values that are about to be stored: ``screen(value, where)``."""

    def __init__(self, detectors: Iterable[Detector]) -> None:
        check_several(detectors, "detectors", "detectors")
        self._detectors = list(detectors)
        if not all(isinstance(each, Detector) for each in self._detectors):
            raise InvalidValueError("detectors are everthread.detectors.Detector(…)", path="detectors")

    def __call__(self, value: Any, where: str) -> Any:
        """The value as it is to be stored; the very same object if nothing was found in it."""
        if isinstance(value, str):
            return self._text(value, where)
        if value is None or isinstance(value, _OTHERS):
            return value
        if isinstance(value, Mapping):
            changed = {key: self(each, where) for key, each in value.items()}
            same = all(changed[key] is each for key, each in value.items())
            return value if same else changed
        if type(value) in (tuple, list) or (isinstance(value, Sequence) and not isinstance(value, tuple)):
            items = [self(each, where) for each in value]
            if all(new is old for new, old in zip(items, value, strict=True)):
                return value
            return tuple(items) if type(value) is tuple else items
        if isinstance(value, set | frozenset):
            return self._set(value, where)
        return value

    def _set(self, value: Set[Any], where: str) -> Any:
        pairs = [(old, self(old, where)) for old in value]
        if all(new is old for old, new in pairs):
            return value
        subjects = [name for _, new in pairs for name in _subjects(new)]
        # What is sealed can't be told apart from others without opening it, so no set holds it: it is sealed
        # as a whole then, with what was masked in it.
        items = (old if _subjects(new) else new for old, new in pairs)
        changed = set(items) if isinstance(value, set) else frozenset(items)
        return Personal(subjects, changed) if subjects else changed

    def _text(self, text: str, where: str) -> Any:
        masked: list[tuple[int, int, str]] = []
        for detector in self._detectors:
            spans = _found(detector.find, text)
            if not spans:
                continue
            if detector.action == "seal":
                return Personal(detector.subject, text)
            if detector.action == "warn":
                words = f"{where or 'a value'}: {len(spans)} × {detector.name} is about to be stored in clear"
                warnings.warn(words, SecretWarning, stacklevel=2)
            else:
                masked += [(start, stop, detector.name) for start, stop in spans]
        return _masked(text, masked) if masked else text


def _subjects(value: Any) -> list[str]:
    """Whose an element of a set has become, which was nobody's before."""
    if isinstance(value, Personal):
        return list(value.subjects)
    return [name for each in value for name in _subjects(each)] if type(value) is tuple else []


def _found(find: Find, text: str) -> list[tuple[int, int]]:
    if len(text) <= _PIECE:
        return list(find(text))
    found: set[tuple[int, int]] = set()
    for at in range(0, len(text), _PIECE - _OVERLAP):
        found.update((at + start, at + stop) for start, stop in find(text[at : at + _PIECE]))
    return sorted(found)


def _masked(text: str, spans: list[tuple[int, int, str]]) -> str:
    parts: list[str] = []
    at = 0
    for start, stop, name in sorted(spans):
        if stop > at:
            parts += (text[at : max(start, at)], f"[{name}]" if start >= at else "")
            at = stop
    return "".join((*parts, text[at:]))
