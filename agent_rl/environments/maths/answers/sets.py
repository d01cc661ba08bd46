r"""Whether two answers are the same set of real numbers: intervals, unions, inequalities and points on a line."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cmp_to_key, reduce
from itertools import chain

from agent_rl.environments.maths.answers.evaluation import Undefined, closed_value, identical, infinite, order
from agent_rl.environments.maths.answers.formulas import INFINITY, Formula, Name, names_in, neg
from agent_rl.environments.maths.answers.statements import (
    Answer,
    Bracketed,
    Comparison,
    Listing,
    Named,
    Region,
    Value,
    items_of,
)


class _NoSet(Exception):  # noqa: N818  it is an outcome of reading, not a fault
    """The answer is no set of real numbers with known ends."""


def sets_equal(gold: Answer, prediction: Answer) -> bool:
    """Whether both are sets of real numbers, about the same variable if both name one, and the same."""
    try:
        names, other_names = _names(gold), _names(prediction)
        line = _Line([*_ends(gold), *_ends(prediction)])
        return (not names or not other_names or names == other_names) and line.places(gold) == line.places(prediction)
    except (_NoSet, Undefined):
        return False


def _names(answer: Answer) -> set[str]:
    """The variable that a set is said to be about, if any. Raises _NoSet if there are several."""
    names = set[str]().union(*map(_names, items_of(answer)))
    if isinstance(answer, Named):
        names = _names(answer.answer) | {answer.name}
    elif isinstance(answer, Comparison):
        names = set[str]().union(*map(names_in, answer.sides))
    if len(names) > 1:
        raise _NoSet
    return names


def _ends(answer: Answer) -> Iterator[Formula]:
    """The finite ends of the intervals, and the points, that an answer is built of. Raises _NoSet."""
    if isinstance(answer, Named):
        yield from _ends(answer.answer)
    elif isinstance(answer, Comparison):
        yield from (side for side in answer.sides if not names_in(side) and not infinite(side))
    elif isinstance(answer, Value):
        if answer.unit is not None and not answer.marked:
            raise _NoSet
        if not infinite(answer.in_base):
            yield answer.in_base
    elif isinstance(answer, Bracketed) and len(answer.items) == 2:
        yield from chain(*map(_ends, answer.items))
    elif isinstance(answer, Listing | Region):
        yield from chain(*map(_ends, items_of(answer)))
    else:
        raise _NoSet


class _Line:
    """The ends that two sets name, in order."""

    def __init__(self, ends: list[Formula]) -> None:
        self.ends: list[Formula] = []
        for end in sorted(ends, key=cmp_to_key(_compared)):
            if not self.ends or _compared(self.ends[-1], end):
                self.ends.append(end)

    def place(self, end: Formula) -> int:
        if infinite(end):
            return -1 if infinite(end) < 0 else 2 * len(self.ends) + 1
        return next(2 * k + 1 for k, other in enumerate(self.ends) if not _compared(other, end))

    def interval(self, low: Formula, high: Formula, *, closed: tuple[bool, bool]) -> frozenset[int]:
        first, last = self.place(low), self.place(high)
        if first > last or (first == last and not all(closed)) or (infinite(low) and closed[0]):
            raise _NoSet
        if infinite(high) and closed[1]:
            raise _NoSet
        return frozenset(range(first + (not closed[0]), last + closed[1]))

    def places(self, answer: Answer) -> frozenset[int]:
        """The places that belong to a set. Raises _NoSet."""
        if isinstance(answer, Named):
            return self.places(answer.answer)
        if isinstance(answer, Comparison):
            return self.solutions(answer.ascending)
        if isinstance(answer, Value):
            return self.interval(answer.in_base, answer.in_base, closed=(True, True))
        if isinstance(answer, Bracketed):
            low, high = answer.items
            if not isinstance(low, Value) or not isinstance(high, Value) or answer.brackets[0] not in "([":
                raise _NoSet
            closed = answer.brackets[0] == "[", answer.brackets[1] == "]"
            return self.interval(low.in_base, high.in_base, closed=closed)
        if isinstance(answer, Region):
            return self.union(answer.parts) - self.union(answer.without)
        assert isinstance(answer, Listing)
        return self.union(answer.items) if answer.braces or answer.joint == "or" else self.common(answer)

    def union(self, parts: tuple[Answer, ...]) -> frozenset[int]:
        return frozenset().union(*map(self.places, parts))

    def common(self, listing: Listing) -> frozenset[int]:
        """What satisfies all of several relations: ``x > 1 and x < 2``; ``x != 1, x != 2``."""
        relations = [item for item in listing.items if isinstance(item, Comparison)]
        exclusions = all(relation.relations == ("!=",) for relation in relations)
        if len(relations) < max(2, len(listing.items)) or not (listing.joint == "and" or exclusions):
            raise _NoSet
        return reduce(frozenset.intersection, map(self.places, relations))

    def solutions(self, comparison: Comparison) -> frozenset[int]:
        """The solutions of a comparison between a variable and numbers."""
        sides, relations = comparison.sides, comparison.relations
        variables = [place for place, side in enumerate(sides) if names_in(side)]
        if len(variables) != 1 or not isinstance(sides[variables[0]], Name) or relations[0] == "=":
            raise _NoSet
        if len(sides) == 3:
            if variables != [1]:
                raise _NoSet
            return self.interval(sides[0], sides[2], closed=(relations[0] == "<=", relations[1] == "<="))
        bound, closed = sides[1 - variables[0]], relations[0] == "<="
        if relations[0] == "!=":
            point = self.interval(bound, bound, closed=(True, True))
            return self.interval(neg(INFINITY), INFINITY, closed=(False, False)) - point
        if variables == [0]:
            return self.interval(neg(INFINITY), bound, closed=(False, closed))
        return self.interval(bound, INFINITY, closed=(closed, False))


def _compared(first: Formula, second: Formula) -> int:
    """Which of two ends is less. Raises Undefined if they are no real numbers."""
    if identical(first, second):
        return 0
    return -1 if _size(first) < _size(second) else 1


def _size(formula: Formula) -> float:
    if names_in(formula):
        raise Undefined("an end that depends on a variable")
    return order(closed_value(formula))
