"""Sets of real numbers as sorted, merged pieces: intervals, unions, solved inequalities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cmp_to_key

from agent_rl.environments.maths.answers.evaluation import Undefined, infinite, order, variables_of
from agent_rl.environments.maths.answers.formulas import Apply, Formula, Name
from agent_rl.environments.maths.answers.numbers import closed_value, identical
from agent_rl.environments.maths.answers.statements import (
    MARKS,
    Answer,
    Bracketed,
    Comparison,
    Listing,
    Named,
    Region,
    Value,
    in_base,
)


@dataclass(frozen=True, slots=True)
class _Piece:
    """An interval, or a point where both ends are the same."""

    low: Formula
    low_closed: bool
    high: Formula
    high_closed: bool


def sets_equal(gold: Answer, prediction: Answer) -> bool:
    """Whether both are sets of real numbers, about the same variable if both name one, and the same."""
    try:
        (ours, names), (theirs, other_names) = _set_of(gold), _set_of(prediction)
    except (_NoSet, Undefined):
        return False
    if names and other_names and names != other_names:
        return False
    return len(ours) == len(theirs) and all(
        (a.low_closed, a.high_closed) == (b.low_closed, b.high_closed)
        and identical(a.low, b.low)
        and identical(a.high, b.high)
        for a, b in zip(ours, theirs, strict=True)
    )


def is_real_set(answer: Answer) -> bool:
    """Whether an answer can be read as a set of real numbers."""
    try:
        _set_of(answer)
    except (_NoSet, Undefined):
        return False
    return True


class _NoSet(Exception):  # noqa: N818  it is an outcome of reading, not a fault
    """The answer is no set of real numbers with known ends."""


_INFINITY = Name("oo")
_MINUS_INFINITY = Apply("neg", (_INFINITY,))


def _set_of(answer: Answer) -> tuple[list[_Piece], set[str]]:
    """The pieces of a set, in order, merged; and the names it is said to be about."""
    if isinstance(answer, Named):
        pieces, names = _set_of(answer.answer)
        return pieces, names | {answer.name}
    if isinstance(answer, Comparison):
        return _solved(answer)
    if isinstance(answer, Value):
        return [_point(_bare(answer))], set()
    if isinstance(answer, Bracketed):
        if len(answer.items) != 2 or answer.opening not in "([" or answer.closing not in ")]":
            raise _NoSet
        low, high = answer.items
        if not isinstance(low, Value) or not isinstance(high, Value):
            raise _NoSet
        return [_valid(_Piece(_bare(low), answer.opening == "[", _bare(high), answer.closing == "]"))], set()
    if isinstance(answer, Listing | Region):
        if isinstance(answer, Listing) and not answer.braces and answer.joint != "or":
            return _common(answer)
        parts = [_set_of(part) for part in (answer.items if isinstance(answer, Listing) else answer.parts)]
        names = set[str]().union(*(part[1] for part in parts))
        if len(names) > 1:
            raise _NoSet
        pieces = _merged([piece for part in parts for piece in part[0]])
        for taken in answer.without if isinstance(answer, Region) else ():
            for point in _set_of(taken)[0]:
                pieces = _less(pieces, point)
        return pieces, names
    raise _NoSet


def _common(listing: Listing) -> tuple[list[_Piece], set[str]]:
    """What satisfies all of several relations: ``x > 1 and x < 2``; ``x != 1, x != 2``."""
    relations = [item for item in listing.items if isinstance(item, Comparison)]
    exclusions = all(relation.relations == ("!=",) for relation in relations)
    if len(relations) < max(2, len(listing.items)) or not (listing.joint == "and" or exclusions):
        raise _NoSet
    solved = [_solved(relation) for relation in relations]
    names = set[str]().union(*(each[1] for each in solved))
    if len(names) > 1:
        raise _NoSet
    pieces = solved[0][0]
    for others, _ in solved[1:]:
        pieces = [common for piece in pieces for other in others if (common := _overlap(piece, other))]
    return pieces, names


def _overlap(first: _Piece, second: _Piece) -> _Piece | None:
    """What two pieces have in common."""
    low, high = _compared(first.low, second.low), _compared(first.high, second.high)
    found = _Piece(
        first.low if low >= 0 else second.low,
        (first.low_closed or low < 0) and (second.low_closed or low > 0),
        first.high if high <= 0 else second.high,
        (first.high_closed or high > 0) and (second.high_closed or high < 0),
    )
    try:
        return _valid(found)
    except _NoSet:
        return None


def _bare(value: Value) -> Formula:
    """A number without a unit."""
    if value.label or (value.unit is not None and value.unit.dimension not in MARKS):
        raise _NoSet
    return in_base(value)


def _solved(comparison: Comparison) -> tuple[list[_Piece], set[str]]:
    """The solutions of a comparison between a variable and numbers."""
    comparison = ascending(comparison)
    sides, relations = comparison.sides, comparison.relations
    variable = sides[1] if len(sides) == 3 or not isinstance(sides[0], Name) or not variables_of(sides[0]) else sides[0]
    if (
        not isinstance(variable, Name)
        or not variables_of(variable)
        or any(variables_of(side) for side in sides if side != variable)
    ):
        raise _NoSet
    names = {variable.text}
    if len(sides) == 3:
        return [_valid(_Piece(sides[0], relations[0] == "<=", sides[2], relations[1] == "<="))], names
    bound = sides[1] if variable == sides[0] else sides[0]
    if relations[0] == "!=":
        return _less([_Piece(_MINUS_INFINITY, False, _INFINITY, False)], _point(bound)), names
    closed = relations[0] == "<="
    if variable == sides[0]:
        return [_valid(_Piece(_MINUS_INFINITY, False, bound, closed))], names
    return [_valid(_Piece(bound, closed, _INFINITY, False))], names


def _compared(first: Formula, second: Formula) -> int:
    """Which of two ends is less. Raises Undefined if they are no real numbers."""
    if identical(first, second):
        return 0
    return -1 if _place(first) < _place(second) else 1


def _place(formula: Formula) -> float:
    if variables_of(formula):
        raise Undefined("an end that depends on a variable")
    return infinite(formula) * math.inf if infinite(formula) else order(closed_value(formula))


def _valid(piece: _Piece) -> _Piece:
    direction = _compared(piece.low, piece.high)
    if direction > 0 or (direction == 0 and not (piece.low_closed and piece.high_closed)):
        raise _NoSet
    return piece


def _point(formula: Formula) -> _Piece:
    return _valid(_Piece(formula, low_closed=True, high=formula, high_closed=True))


def _merged(pieces: list[_Piece]) -> list[_Piece]:
    """The pieces in order, those that overlap or touch made one."""

    def compared(a: _Piece, b: _Piece) -> int:
        return _compared(a.low, b.low) or b.low_closed - a.low_closed

    found: list[_Piece] = []
    for piece in sorted(pieces, key=cmp_to_key(compared)):
        gap = _compared(piece.low, found[-1].high) if found else 1
        if gap > 0 or (gap == 0 and not (piece.low_closed or found[-1].high_closed)):
            found.append(piece)
            continue
        last, farther = found[-1], _compared(piece.high, found[-1].high)
        closed = piece.high_closed if farther > 0 else last.high_closed or (farther == 0 and piece.high_closed)
        found[-1] = _Piece(last.low, last.low_closed, piece.high if farther > 0 else last.high, closed)
    return found


def _less(pieces: list[_Piece], point: _Piece) -> list[_Piece]:
    """The pieces without a point."""
    if not identical(point.low, point.high):
        raise _NoSet
    found: list[_Piece] = []
    for piece in pieces:
        low, high = _compared(point.low, piece.low), _compared(point.low, piece.high)
        if low < 0 or high > 0:
            found.append(piece)
            continue
        if low > 0:
            found.append(_Piece(piece.low, piece.low_closed, point.low, False))
        if high < 0:
            found.append(_Piece(point.low, False, piece.high, piece.high_closed))
    return found


def ascending(comparison: Comparison) -> Comparison:
    """The comparison without > and >=."""
    if comparison.relations[0][0] != ">":
        return comparison
    relations = tuple(relation.replace(">", "<") for relation in reversed(comparison.relations))
    return Comparison(tuple(reversed(comparison.sides)), relations)
