"""What an answer means, and whether two meanings are the same: the proof that a pair is what it is said to be.

A meaning is an expression, or words, or a tuple of a tag and what belongs to it:

| tag | then |
|---|---|
| ``set`` | meanings, in any order, repeated or not |
| ``tuple`` | meanings, in order; a matrix is a tuple of rows, tagged ``matrix`` |
| ``region`` | pieces of the real line in order: (low end or None, closed, high end or None, closed) |
| ``quantity`` | a dimension, and an expression in its base unit |
| ``curve`` | an expression whose zeros are the points; any multiple means the same |
| any other, as ``words`` | words and meanings that are the same one by one |

Meanings of different kinds are different. Whatever a teacher could discuss (``5`` for ``5 cm``, ``50`` for ``50 %``,
``(1, 2)`` for ``{1, 2}``) is therefore generated nowhere, neither as equal nor as unequal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from benchmarks.answer_pairs.trees import Tree, close, same_value, values, variables

End: TypeAlias = "Tree | None"
Meaning: TypeAlias = "Tree | str | bool | tuple[Meaning, ...] | None"


def same(first: Meaning, second: Meaning) -> bool:
    """Whether two meanings are the same."""
    if isinstance(first, Tree) and isinstance(second, Tree):
        return same_value(first, second)
    if not isinstance(first, tuple) or not isinstance(second, tuple):
        return type(first) is type(second) and first == second
    if first[:1] == second[:1] == ("set",):
        return _same_elements(first[1:], second[1:])
    if len(first) != len(second) or not first or isinstance(first[0], str) != isinstance(second[0], str):
        return False
    if first[0] == second[0] == "curve":
        return _same_zeros(first[1], second[1])
    return all(map(same, first, second))


def _same_elements(first: Sequence[Meaning], second: Sequence[Meaning]) -> bool:
    """Whether each element of either is one of the other: order and repetitions say nothing."""
    return all(any(same(a, b) for b in second) for a in first) and all(any(same(a, b) for a in first) for b in second)


def _same_zeros(first: Meaning, second: Meaning) -> bool:
    """Whether one expression is a constant multiple of the other. Both are irreducible, so their zeros decide."""
    assert isinstance(first, Tree)
    assert isinstance(second, Tree)
    names = variables(first) | variables(second)
    pairs = list(zip(values(first, names), values(second, names), strict=True))
    upper, lower = next(pair for pair in pairs if pair[0] and pair[1])
    return all(close(a * lower, b * upper) for a, b in pairs)
