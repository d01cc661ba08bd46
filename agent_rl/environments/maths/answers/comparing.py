"""Whether two answers, once read, say the same. Stated for each kind of answer in docs/answer_checking.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agent_rl.environments.maths.answers.choices import chosen_option
from agent_rl.environments.maths.answers.equations import as_equation, equations_equal, is_combination
from agent_rl.environments.maths.answers.formulas import names_in, renamed
from agent_rl.environments.maths.answers.names import may_be_left_out, place
from agent_rl.environments.maths.answers.numbers import identical, same
from agent_rl.environments.maths.answers.quantities import clocks_equal, values_equal
from agent_rl.environments.maths.answers.reading import readings
from agent_rl.environments.maths.answers.sets import ascending, is_real_set, sets_equal
from agent_rl.environments.maths.answers.slices import squeezed
from agent_rl.environments.maths.answers.statements import (
    Answer,
    Bracketed,
    Clock,
    Comparison,
    Listing,
    Matrix,
    Named,
    Region,
    Value,
    Words,
)
from agent_rl.environments.maths.answers.text import is_sentence, located, mentioned

_FUNCTION_NAME = re.compile(r"[a-zA-Z]|\\[a-zA-Z]+")
_ROOT = re.compile(r"([a-zA-Z])_([0-9])")


def answers_agree(gold: str, prediction: str) -> bool:
    """Whether the answers that the two texts state are the same under one reading of each."""
    ours = _answers(gold)
    if not ours:
        return False
    theirs = _answers(prediction)
    letters = _bare_choice(ours), _bare_choice(theirs)
    if any(letters):
        choices = letters[0] or chosen_option(gold), letters[1] or chosen_option(prediction)
        if all(choices):
            return choices[0] == choices[1]
    return any(_equal(a, b) for a in ours for b in theirs)


def _bare_choice(answers: Sequence[Answer]) -> str | None:
    """The letter of a choice that stands alone."""
    first = answers[0] if answers else None
    return first.letters if isinstance(first, Value) and re.fullmatch("[A-J]", first.letters) else None


def _answers(text: str) -> list[Answer]:
    """The readings of a text; of a sentence, those of the last formula or number it mentions."""
    part, announced = located(text)
    found = readings(part)
    if is_sentence(part) and (not found or isinstance(found[0], Words)):
        mention = mentioned(part, announced=announced)
        if mention is not None and (stated := readings(mention)):
            found = stated
    return list(map(_with_one_function_name, found))


def _with_one_function_name(answer: Answer) -> Answer:
    """A function that is defined, under a name that says nothing: ``g(t) = t^2`` is ``f(t) = t^2``. Of several, each
    keeps its own.
    """
    items = answer.items if isinstance(answer, Listing) else (answer,)
    names = {item.name for item in items if isinstance(item, Named) and item.parameters}
    if len(names) != 1 or not _FUNCTION_NAME.fullmatch(name := names.pop()):
        return answer
    changed = tuple(_renamed(item, name) for item in items)
    return replace(answer, items=changed) if isinstance(answer, Listing) else changed[0]


def _renamed(answer: Answer, name: str) -> Answer:
    if not isinstance(answer, Named) or answer.name != name:
        return answer
    inner = answer.answer
    if isinstance(inner, Value):
        inner = replace(inner, formula=renamed(inner.formula, {name: "function"}))
    return replace(answer, name="function", answer=inner)


def _equal(gold: Answer, prediction: Answer) -> bool:
    if isinstance(gold, Listing) or isinstance(prediction, Listing):
        return _listings_equal(gold, prediction)
    if isinstance(gold, Named) and isinstance(prediction, Named):
        return _named_equal(gold, prediction)
    if isinstance(gold, Comparison) or isinstance(prediction, Comparison):
        return _comparisons_equal(gold, prediction)
    if isinstance(gold, Named | Bracketed) and isinstance(prediction, Named | Bracketed):
        gold, prediction = _ordered(gold), _ordered(prediction)
    if isinstance(gold, Named):
        return not _is_choice(prediction, gold.name) and may_be_left_out(gold.name) and _equal(gold.answer, prediction)
    if isinstance(prediction, Named):
        return (
            not _is_choice(gold, prediction.name)
            and may_be_left_out(prediction.name)
            and _equal(gold, prediction.answer)
        )
    if isinstance(gold, Clock) or isinstance(prediction, Clock):
        return clocks_equal(gold, prediction)
    if isinstance(gold, Region) or isinstance(prediction, Region):
        return sets_equal(gold, prediction)
    if isinstance(gold, Words) or isinstance(prediction, Words):
        return _words_of(gold) == _words_of(prediction) != ""
    if isinstance(gold, Matrix) or isinstance(prediction, Matrix):
        return _matrices_equal(gold, prediction)
    if isinstance(gold, Bracketed) and isinstance(prediction, Bracketed):
        return _brackets_equal(gold, prediction)
    if isinstance(gold, Value) and isinstance(prediction, Value):
        return values_equal(gold, prediction)
    return False


def _is_choice(answer: Answer, name: str) -> bool:
    """Whether an answer is a letter, so that another letter before an equals sign, ``C = B``, is no name for it."""
    return isinstance(answer, Value) and answer.letters.isupper() and name.isupper()


def _words_of(answer: Answer) -> str:
    if isinstance(answer, Words):
        return answer.text
    return squeezed(answer.letters) if isinstance(answer, Value) else ""


def _matrices_equal(gold: Answer, prediction: Answer) -> bool:
    """Equal entries in the same places; a single row or column is also a tuple, and a tuple of tuples the rows."""
    if isinstance(gold, Matrix) and isinstance(prediction, Matrix):
        return len(gold.rows) == len(prediction.rows) and all(map(_pairwise, gold.rows, prediction.rows))
    matrix, other = (gold, prediction) if isinstance(gold, Matrix) else (prediction, gold)
    if not isinstance(matrix, Matrix) or not isinstance(other, Bracketed) or other.opening + other.closing != "()":
        return False
    rows = [row.items for row in other.items if isinstance(row, Bracketed) and row.opening + row.closing == "()"]
    if rows:
        return len(matrix.rows) == len(rows) == len(other.items) and all(map(_pairwise, matrix.rows, rows))
    if matrix.nested or (len(matrix.rows) > 1 and any(len(row) != 1 for row in matrix.rows)):
        return False
    return _pairwise([entry for row in matrix.rows for entry in row], other.items)


def _brackets_equal(gold: Bracketed, prediction: Bracketed) -> bool:
    """Equal entries in order, in equal brackets; three or more entries are no interval, and brackets a matter of
    taste.
    """
    ours, theirs = gold.opening + gold.closing, prediction.opening + prediction.closing
    matched = len(gold.items) > 2 and {ours, theirs} <= {"()", "[]"}
    if ours == theirs and is_real_set(gold):  # the bounds of an interval are exact
        return sets_equal(gold, prediction)
    return (ours == theirs or matched) and _pairwise(gold.items, prediction.items)


def _named_equal(gold: Named, prediction: Named) -> bool:
    """The same about the same name, parameters of functions renamed; or one equation solved for two variables."""
    if gold.name != prediction.name:
        if "y" in (gold.name, prediction.name) and (gold.parameters or prediction.parameters):  # f(x) = x^2, y = x^2
            return _graph_of(gold) == _graph_of(prediction) != () and _equal(gold.answer, prediction.answer)
        ours, theirs = as_equation(gold), as_equation(prediction)
        return ours is not None and theirs is not None and equations_equal(ours, theirs)
    if len(gold.parameters) != len(prediction.parameters):
        return not (gold.parameters and prediction.parameters) and _equal(gold.answer, prediction.answer)
    return _equal(_with_numbered_parameters(gold), _with_numbered_parameters(prediction))


def _graph_of(named: Named) -> tuple[str, ...]:
    """The variable of a function of one, ``f(x)`` or ``y``; nothing if there is another."""
    if not isinstance(named.answer, Value):
        return ()
    variables = tuple(names_in(named.answer.formula))
    return variables if len(variables) == 1 and named.parameters in ((), variables) else ()


def _with_numbered_parameters(named: Named) -> Answer:
    """What a function is defined to be, its parameters named by their places, so that no other variable is meant."""
    if not isinstance(named.answer, Value):
        return named.answer
    names = {name: f"parameter {place}" for place, name in enumerate(named.parameters)}
    return replace(named.answer, formula=renamed(named.answer.formula, names))


def _ordered(answer: Answer) -> Answer:
    """``(y, x) = (1, 2)`` as ``(x, y) = (2, 1)``."""
    named = _each_named(answer)
    if not isinstance(answer, Named) or not isinstance(answer.answer, Bracketed) or not isinstance(named, Listing):
        return answer
    items = _in_order(named).items
    name = f"({','.join(item.name for item in items)})"
    return Named(name, replace(answer.answer, items=tuple(item.answer for item in items)))


def _each_named(answer: Answer) -> Answer:
    """``(x, y) = (1, 2)`` as ``x = 1, y = 2``."""
    if not isinstance(answer, Named) or not isinstance(answer.answer, Bracketed) or answer.name[0] != "(":
        return answer
    names, items = answer.name[1:-1].split(","), answer.answer.items
    return Listing(tuple(map(Named, names, items))) if len(names) == len(items) else answer


def _listings_equal(gold: Answer, prediction: Answer) -> bool:
    """As multisets; as sets where one is an explicit set, or gold repeats nothing. In the order of the names where a
    tuple, or names for each item on one side, say so.
    """
    if any(isinstance(side, Region | Comparison) or _is_union(side) for side in (gold, prediction)):
        return sets_equal(gold, prediction)
    if isinstance(gold, Listing) and _all_named(gold.items):
        prediction = _each_named(prediction)
    elif isinstance(prediction, Listing) and _all_named(prediction.items):
        gold = _each_named(gold)
    if isinstance(gold, Listing) and isinstance(prediction, Listing):
        return _lists_equal(gold, prediction)
    listing, single = (gold, prediction) if isinstance(gold, Listing) else (prediction, gold)
    assert isinstance(listing, Listing)
    if _different_names(listing.items):
        if not isinstance(single, Bracketed) or single.opening + single.closing != "()" or listing.joint == "or":
            return False
        return _pairwise(*_sides(_in_order(gold), _in_order(prediction)))
    if isinstance(single, Bracketed) or any(map(_is_set, listing.items)):
        return False
    return len(listing.items) == 1 and _equal(*_sides_of(gold, prediction, listing.items[0]))


def _lists_equal(gold: Listing, prediction: Listing) -> bool:
    if _are_roots(gold.items) != _are_roots(prediction.items):
        gold, prediction = _without_numbers(gold), _without_numbers(prediction)
    ours, theirs = list(gold.items), list(prediction.items)
    if _all_named(ours) != _all_named(theirs) and _different_names(ours if _all_named(ours) else theirs):
        named, other = (gold, prediction) if _all_named(ours) else (prediction, gold)
        unordered = other.braces or named.joint == "or"
        return not unordered and _pairwise(ours, _in_order(prediction).items)
    if (gold.joint == "or") != (prediction.joint == "or") and (_different_names(ours) or _different_names(theirs)):
        return False
    if {gold.joint, prediction.joint} == {"and", "or"} and not all(map(_is_solution, ours)):
        return False
    if gold.braces or prediction.braces:
        ours = _distinct(ours)
    if len(_distinct(ours)) == len(ours) < len(theirs):
        theirs = _distinct(theirs)
    if len(ours) != len(theirs):
        return False
    for item in ours:
        match = next((index for index, other in enumerate(theirs) if _items_equal(item, other)), None)
        if match is None:
            return False
        del theirs[match]
    return True


def _items_equal(gold: Answer, prediction: Answer) -> bool:
    """Within a list a set is no number, even if it holds but one."""
    return _is_set(gold) == _is_set(prediction) and _equal(gold, prediction)


def _is_solution(answer: Answer) -> bool:
    """What an unknown can be: 1 "or" 2 are the solutions 1 "and" 2, but "p and q" is not "p or q"."""
    return not isinstance(answer, Words) and not (isinstance(answer, Value) and names_in(answer.formula))


def _is_set(answer: Answer) -> bool:
    return isinstance(answer, Listing) and answer.braces


def _in_order(answer: Answer) -> Any:
    """A list that names its items, in the order that its names have as the variables of a tuple."""
    if not isinstance(answer, Listing) or not _different_names(answer.items):
        return answer
    return replace(answer, items=tuple(sorted(answer.items, key=_place)))


def _place(item: Answer) -> tuple[object, ...]:
    return place(item.name) if isinstance(item, Named) else ()


def _are_roots(items: Sequence[Answer]) -> bool:
    """Whether the names only number the solutions of one unknown: ``x_1``, ``x_2``."""
    found = [_ROOT.fullmatch(item.name) for item in items if isinstance(item, Named)]
    numbers = sorted(int(match[2]) for match in found if match)
    return len({match[1] for match in found if match}) == 1 and numbers == list(range(1, len(items) + 1))


def _without_numbers(listing: Listing) -> Listing:
    """Numbered solutions as several values of their unknown."""
    if not _are_roots(listing.items):
        return listing
    items = [replace(item, name=item.name[0]) for item in listing.items if isinstance(item, Named)]
    return replace(listing, items=tuple(items))


def _sides(gold: Answer, prediction: Answer) -> tuple[Sequence[Answer], Sequence[Answer]]:
    def items(side: Answer) -> Sequence[Answer]:
        return side.items if isinstance(side, Listing | Bracketed) else (side,)

    return items(gold), items(prediction)


def _sides_of(gold: Answer, prediction: Answer, item: Answer) -> tuple[Answer, Answer]:
    """Gold and prediction, the listing among them replaced by its item."""
    return (item, prediction) if isinstance(gold, Listing) else (gold, item)


def _is_union(answer: Answer) -> bool:
    return isinstance(answer, Listing) and any(isinstance(_unnamed(item), Comparison | Region) for item in answer.items)


def _all_named(items: Sequence[Answer]) -> bool:
    return all(isinstance(item, Named) for item in items)


def _different_names(items: Sequence[Answer]) -> bool:
    return len({item.name for item in items if isinstance(item, Named)}) == len(items) > 1


def _unnamed(answer: Answer) -> Answer:
    return answer.answer if isinstance(answer, Named) and may_be_left_out(answer.name) else answer


def _distinct(items: Sequence[Answer]) -> list[Answer]:
    found: list[Answer] = []
    for item in items:
        if not any(_equal(item, other) for other in found):
            found.append(item)
    return found


def _pairwise(gold: Sequence[Answer], prediction: Sequence[Answer]) -> bool:
    return len(gold) == len(prediction) and all(map(_equal, map(_unnamed, gold), map(_unnamed, prediction)))


def _comparisons_equal(gold: Answer, prediction: Answer) -> bool:
    """The same solution set where both are solved; else the same relation, its terms moved across or its sides
    swapped.
    """
    if isinstance(gold, Value) and isinstance(prediction, Comparison):
        return (
            prediction.relations == ("=",)
            and is_combination(prediction.sides[0])
            and same(gold.formula, prediction.sides[1])
        )
    ours, theirs = as_equation(gold), as_equation(prediction)
    if ours is not None and theirs is not None:
        return equations_equal(ours, theirs)
    if sets_equal(gold, prediction):
        return True
    if not isinstance(gold, Comparison) or not isinstance(prediction, Comparison):
        return False
    ours, theirs = ascending(gold), ascending(prediction)
    if len(ours.sides) == 3:
        return ours.relations == theirs.relations and all(map(identical, ours.sides, theirs.sides))
    return len(theirs.sides) == 2 and equations_equal(ours, theirs)
