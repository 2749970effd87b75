"""Choosing what a briefing says within its budget."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections.abc import Callable, Container, Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Literal

from everthread.briefing.facts import Background, Fact, Kind
from everthread.briefing.text import (
    FOOT,
    NAMED_MAX,
    SECTIONS,
    Row,
    bare_head,
    body,
    group_line,
    head,
    heading,
    more_line,
    not_shown,
    only_named,
    short_ids,
    write_row,
)
from everthread.errors import InvalidValueError

# ── counting tokens ─────────────────────────────────────────────────────────────────────────────────
# How many tokens a text has: an estimate that rather counts too many, or the caller's own tokenizer.


Counter = Callable[[str], int]

_LETTERS_PER_TOKEN = 4
_DIGITS_PER_TOKEN = 2
_RUNS = re.compile(
    r"(?P<letters>[A-Za-z]+)|(?P<digits>[0-9]+)|(?P<gap> (?=[0-9])| {2,})|(?P<other>[^A-Za-z0-9 ])"
)


def estimate(text: str) -> int:
    """About how many tokens ``text`` has, without a tokenizer: rather too many than too few.

    Four letters, two digits, one sign or line end, or a byte less than a character beyond ASCII takes, count
    as a token. A single blank is part of the word or sign that follows, as in the vocabularies of today.
    """
    tokens = 0
    for found in _RUNS.finditer(text):
        length = found.end() - found.start()
        match found.lastgroup:
            case "letters":
                tokens += -(-length // _LETTERS_PER_TOKEN)
            case "digits":
                tokens += -(-length // _DIGITS_PER_TOKEN)
            case "gap":
                tokens += 1
            case _:
                tokens += max(1, len(found[0].encode(errors="replace")) - 1)
    return tokens


def counter(tokenizer: Any = None) -> Counter:
    """The counting function for what a caller hands in.

    None: :func:`estimate`. A function from text to a number or to a list of tokens, or an object with
    ``encode(text)`` that gives one. Raises :class:`InvalidValueError` for anything else, and when the
    function returns something else.
    """
    if tokenizer is None:
        return estimate
    function = getattr(tokenizer, "encode", tokenizer)
    if isinstance(tokenizer, str | bytes) or not callable(function):
        raise InvalidValueError(
            "tokenizer must be a function from text to its number of tokens, or have encode()",
            path="tokenizer",
        )

    def count(text: str) -> int:
        answer = function(text)
        if isinstance(answer, int) and not isinstance(answer, bool) and answer >= 0:
            return answer
        if isinstance(answer, Sized) and not isinstance(answer, str | bytes):
            return len(answer)
        raise InvalidValueError(
            f"the tokenizer returned a {type(answer).__name__}; expected a number or a list of tokens",
            path="tokenizer",
        )

    return count


#: What a run can't do without, in the order in which it gets its share of the budget, each with its greatest
#: number of characters.
_ESSENTIAL = {Kind.RUN: 160, Kind.GOAL: 160, Kind.NEXT: 160, Kind.CALL: 110, Kind.DRIFT: 110}
#: The rest takes turns, so that a long list of one kind never crowds out another.
_TURNS = (
    (Kind.DECISION, 2),
    (Kind.TODO, 3),
    (Kind.LOOP, 2),
    (Kind.DECIDED, 2),
    (Kind.CONTEXT, 3),
    (Kind.FAILURE, 2),
    (Kind.EXCHANGE, 1),
)
#: What somebody still has to do something about. The next action names some of it already.
_OPEN = (Kind.CALL, Kind.DECISION, Kind.TODO, Kind.LOOP)
#: What is over joins once nothing open waits any more.
_LATE_TURNS = ((Kind.SETTLED, 1), (Kind.FINISHED, 1))
_HEADINGS = {kind: (title, heading(title) if title else "") for title, kinds in SECTIONS for kind in kinds}
#: ``counted`` counts what isn't shown, but doesn't say where it is; ``bare`` does so in its first line and
#: explains nothing.
Style = Literal["full", "counted", "bare"]
_STYLES: tuple[Style, ...] = ("full", "counted", "bare")
#: Named at least, where there is no room for a line.
_NAMED = (Kind.CALL, Kind.DRIFT)
#: How often what didn't fit is looked at again.
_ROUNDS = 3
#: Characters of a line's text: a share of the budget, between bounds.
_CHARACTERS_MIN, _CHARACTERS_MAX, _TOKENS_PER_CHARACTER = 80, 400, 6
#: So many are left of something open that has no room otherwise.
_CHARACTERS_SHORT = 40


class Briefing(str):
    """The text of a briefing, and how it came out.

    ``tokens``: by the tokenizer that was used. ``shown`` and ``omitted``: how many facts of each kind, which
    together are all that is known; what the next action names is shown. ``ids``: the whole id behind each one
    in the text. ``complete``: whether goal, next action and every constraint are in it, and each call without
    an outcome and each contradicted fact at least named: a name without a line is enough for that, though
    ``omitted`` counts what has no line.
    """

    tokens: int
    shown: dict[str, int]
    omitted: dict[str, int]
    ids: dict[str, str]
    complete: bool


def brief(background: Background, *, max_tokens: int = 1_500, tokenizer: object = None) -> Briefing:
    """The briefing of a background, with at most ``max_tokens`` tokens as the tokenizer counts them.

    The same background, budget and tokenizer give the same text. Constraints are shown whole or, where they
    don't fit, the text says how many are missing. Raises :class:`InvalidValueError` if not even the envelope
    fits.
    """
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise InvalidValueError("max_tokens must be a whole number from 1 on", path="max_tokens")
    return _Selection(background, max_tokens, counter(tokenizer)).briefing()


class _Selection:
    """One choice within one budget."""

    def __init__(self, background: Background, max_tokens: int, count: Counter) -> None:
        self.background = background
        self.budget = max_tokens
        self.count = count
        self._characters = min(_CHARACTERS_MAX, max(_CHARACTERS_MIN, max_tokens // _TOKENS_PER_CHARACTER))
        self.by_kind: dict[Kind, list[Fact]] = {kind: [] for kind in Kind}
        for fact in background.facts:
            self.by_kind[fact.kind].append(fact)
        self._ids = short_ids(background.facts)
        self._places = {id(fact): place for place, fact in enumerate(background.facts)}
        self.constraints = [self._line(fact) for fact in self.by_kind[Kind.CONSTRAINT]]
        self._needed = sum(map(self._tokens_of, self.constraints))

    def briefing(self) -> Briefing:
        # An opening that takes a third of the budget is too long for it.
        opening = self.count(head(self.background) + FOOT)
        styles = _STYLES if opening <= self.budget // 3 else _STYLES[-1:]
        # Only an opening that takes little of the budget may cost something open its line.
        little = opening <= self.budget // 8
        # The constraints may not fit: then what is essential, and as many of them as have room.
        essentials = [fact for kind in _ESSENTIAL for fact in self.by_kind[kind]]
        without = essentials + self.by_kind[Kind.CONSTRAINT]
        for fixed, order in ((self.constraints, [*self._others()]), ((), without)):
            bare = self._filled(fixed, order, "bare") if not little else None
            for style in styles:
                lines = self._filled(fixed, order, style)
                if lines is None:
                    continue
                costs_open = bare is not None and self._open_left(lines) > self._open_left(bare)
                if style == "bare" or (self._says_what_matters(lines) and not costs_open):
                    return self._made(lines, style)
        raise InvalidValueError(
            f"max_tokens is {self.budget:,}, which is too little for a briefing; "
            f"the least is {self.count(self._text((), 'bare')):,}",
            path="max_tokens",
        )

    def _filled(self, fixed: Sequence[Row], order: Sequence[Fact], style: Style) -> list[Row] | None:
        """``fixed`` and as much of ``order`` as fits, the first first; None if ``fixed`` doesn't fit.

        What is over is only among it if nothing that is open is left out.
        """
        chosen = self._fitted(fixed, order, style)
        late = dict(_LATE_TURNS)
        if not any(line.fact.kind in late for line in chosen or ()) or not self._open_left(chosen or ()):
            return chosen
        return self._fitted(fixed, [fact for fact in order if fact.kind not in late], style)

    def _fitted(self, fixed: Sequence[Row], order: Iterable[Fact], style: Style) -> list[Row] | None:
        """``fixed`` and as much of ``order`` as fits, whatever its kind."""
        chosen, waiting = list(fixed), list(order)
        if self.count(self._text(chosen, style)) > self.budget:
            return None
        for _ in range(_ROUNDS):
            before = len(chosen)
            waiting = self._add(chosen, waiting, style)
            if len(chosen) == before:
                break
        # The naming of what is missing may have grown, or a tokenizer count a whole higher than its parts.
        while len(chosen) > len(fixed) and self.count(self._text(chosen, style)) > self.budget:
            chosen.pop()
        return chosen

    def _add(self, chosen: list[Row], waiting: Sequence[Fact], style: Style) -> list[Fact]:
        """Add what fits to the chosen lines; what is left.

        What is said elsewhere about what is missing mostly gets shorter by a line, so that there may be room
        for more in the next round.
        """
        text = self._text(chosen, style)
        labels = {(line.fact.kind, line.label) for line in chosen}
        used, left = self.count(text), []
        for fact in waiting:
            _, title = _HEADINGS[fact.kind]
            lengths = (_CHARACTERS_MAX, _CHARACTERS_SHORT) if fact.kind in _OPEN else (_CHARACTERS_MAX,)
            for length in lengths:
                line = self._line(fact, length)
                cost = self._cost(line, labels) + (self.count(title) if title not in text else 0)
                if used + cost <= self.budget:
                    chosen.append(line)
                    labels.add((fact.kind, line.label))
                    text += title
                    used += cost
                    break
            else:
                left.append(fact)
        return left

    def _cost(self, line: Row, labels: Container[tuple[Kind, str]]) -> int:
        """How many tokens a line takes at most beside lines with these labels."""
        kind = line.fact.kind
        if not line.label or ((kind, line.label) in labels and kind is not Kind.EXCHANGE):
            return self.count(line.short)
        # Two lines that share a label have it in a line of its own, which takes this much at most.
        return self.count(line.full) + self.count(group_line(""))

    def _others(self) -> Iterator[Fact]:
        """Everything but constraints, the most important first; last what the next action names already."""
        named = {(fact.id, fact.source) for fact in self.by_kind[Kind.NEXT]}
        again: list[Fact] = []

        def once(kind: Kind) -> Iterator[Fact]:
            for fact in self.by_kind[kind]:
                # A plan is named as the next action; why it was made and what was rejected isn't.
                if kind in _OPEN and kind is not Kind.DECISION and (fact.id, fact.source) in named:
                    again.append(fact)
                else:
                    yield fact

        for kind in _ESSENTIAL:
            yield from once(kind)
        turns = [(once(kind), count) for kind, count in _TURNS]
        late = [(once(kind), count) for kind, count in _LATE_TURNS]
        for turn, _ in enumerate(self.background.facts, 1):
            for facts, count in turns:
                yield from islice(facts, count)
            if all(turn * count >= len(self.by_kind[kind]) for kind, count in _TURNS if kind in _OPEN):
                for facts, count in late:
                    yield from islice(facts, count)
        yield from again

    def _line(self, fact: Fact, characters_max: int = _CHARACTERS_MAX) -> Row:
        # What comes first is kept short, so that all of it stands in the first 2,000 characters.
        characters = min(self._characters, _ESSENTIAL.get(fact.kind, _CHARACTERS_MAX), characters_max)
        return write_row(fact, self._ids[fact.id, fact.source], self.background.now_us, characters)

    def _tokens_of(self, line: Row) -> int:
        return self.count(line.full)

    def _left(self, lines: Sequence[Row]) -> dict[Kind, int]:
        """How many facts of each kind neither are among the lines nor named by a next action that is."""
        left = Tally(self.background.more)
        shown = {id(line.fact) for line in lines}
        named = {(line.fact.id, line.fact.source) for line in lines if line.fact.kind is Kind.NEXT}
        for fact in self.background.facts:
            if id(fact) not in shown and not (fact.kind in _OPEN and (fact.id, fact.source) in named):
                left[fact.kind] += 1
        return left

    def _open_left(self, lines: Sequence[Row]) -> int:
        left = self._left(lines)
        return sum(left[kind] for kind in _OPEN)

    def _says_what_matters(self, lines: Sequence[Row]) -> bool:
        """Whether goal and next action are among the lines: they are worth more than what else is said."""
        left = self._left(lines)
        return not (left[Kind.GOAL] or left[Kind.NEXT])

    def _unnamed(self, kind: Kind, lines: Sequence[Row]) -> list[str]:
        """What facts of a kind are called that no line is about."""
        shown = {(line.fact.id, line.fact.source) for line in lines}
        things = dict.fromkeys((fact.id, fact.source) for fact in self.by_kind[kind])
        return [self._ids[thing] for thing in things if thing not in shown]

    def _text(self, lines: Sequence[Row], style: Style) -> str:
        left = self._left(lines)
        lines = sorted(lines, key=lambda line: self._places[id(line.fact)])
        missing = left[Kind.CONSTRAINT]
        if style == "bare":
            return bare_head(left) + body(lines, {}) + FOOT
        notices = {Kind.CONSTRAINT: not_shown(missing, self._needed)} if missing else {}
        for kind in _NAMED:
            if unnamed := self._unnamed(kind, lines):
                notices[kind] = only_named(unnamed)
        opening = head(self.background, unshown_constraints=missing)
        more = more_line(left, self.background.thread if style == "full" else None)
        return opening + body(lines, notices) + more + FOOT

    def _made(self, lines: Sequence[Row], style: Style) -> Briefing:
        briefing = Briefing(self._text(lines, style))
        left = self._left(lines)
        briefing.tokens = self.count(str(briefing))
        known = Tally(fact.kind for fact in self.background.facts) + Tally(self.background.more)
        briefing.shown = {kind.value: known[kind] - left[kind] for kind in Kind if known[kind] > left[kind]}
        briefing.omitted = {kind.value: left[kind] for kind in Kind if left[kind]}
        facts = [line.fact for line in lines] + [fact for kind in _NAMED for fact in self.by_kind[kind]]
        briefing.ids = {self._ids[fact.id, fact.source]: fact.id for fact in facts}
        if style == "bare":
            named = not any(left[kind] for kind in _NAMED)
        else:
            beside = self.background.more
            named = not any(
                len(self._unnamed(kind, lines)) > NAMED_MAX or beside.get(kind) for kind in _NAMED
            )
        briefing.complete = named and not any(left[kind] for kind in (Kind.GOAL, Kind.NEXT, Kind.CONSTRAINT))
        return briefing
