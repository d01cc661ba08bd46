"""Whether two answers, once read, say the same. Stated for each kind of answer in docs/answer_checking.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from agent_rl.answers.evaluation import Undefined, order, variables_of
from agent_rl.answers.formulas import Apply, Formula, Name, renamed
from agent_rl.answers.numbers import agree, closed_value, ratio_of, same
from agent_rl.answers.reading import readings
from agent_rl.answers.sets import ascending, is_real_set, sets_equal
from agent_rl.answers.slices import squeezed
from agent_rl.answers.statements import (
    Answer,
    Bracketed,
    Comparison,
    Listing,
    Matrix,
    Named,
    Region,
    Value,
    Words,
    in_base,
)
from agent_rl.answers.text import is_sentence, located, mentioned

_OPTION = re.compile(
    r"\W*(?:\\text(?:bf)?\s*\{)?\s*(?:\(([A-J])\)[\s}~\\]+(?=\S)|([A-J])[.):][\s}~\\]+(?=\S)|([A-J]), (?=[a-z]{2}))"
)
"""A choice, as the label of what is chosen: ``(C) 12``, ``D. none of these``, ``D, since ...``."""
_OTHER_OPTION = re.compile(r"\s*(?:or|and|,|/|&|[A-J]\b)|.*(?:\([A-J]\)|\b[A-J][.):])", re.DOTALL)

_FINAL_OPTION = re.compile(r"(?:\bis|'s|:)\s+\(?([A-J])\)?[\s.!]*$")
"""A choice at the end of a sentence: ``so it's B``."""


def answers_agree(gold: str, prediction: str) -> bool:
    """Whether the answers that the two texts state are the same under one reading of each."""
    ours = _answers(gold)
    if not ours:
        return False
    if isinstance(ours[0], Value) and re.fullmatch("[A-J]", ours[0].letters):
        option = _chosen(prediction)
        if option is not None:
            return option == ours[0].letters
    theirs = _answers(prediction)
    return any(_equal(a, b) for a in ours for b in theirs)


def _chosen(text: str) -> str | None:
    """The option that a text chooses by its label; None if it has no such form, or labels others too."""
    part, _ = located(text)
    option = _OPTION.match(part)
    if option and not _OTHER_OPTION.match(part, option.end()):
        return option[1] or option[2] or option[3]
    final = _FINAL_OPTION.search(part)
    return final[1] if final else None


def _answers(text: str) -> list[Answer]:
    """The readings of a text; of a sentence, those of the last formula or number it mentions."""
    part, announced = located(text)
    found = readings(part)
    if is_sentence(part) and (not found or isinstance(found[0], Words)):
        mention = mentioned(part, announced=announced)
        if mention is not None and (stated := readings(mention)):
            return stated
    return found


def _equal(gold: Answer, prediction: Answer) -> bool:
    if isinstance(gold, Listing) or isinstance(prediction, Listing):
        return _listings_equal(gold, prediction)
    if isinstance(gold, Named) and isinstance(prediction, Named):
        return _named_equal(gold, prediction)
    if isinstance(gold, Comparison) or isinstance(prediction, Comparison):
        return _comparisons_equal(gold, prediction)
    if isinstance(gold, Named):
        return _equal(gold.answer, prediction)
    if isinstance(prediction, Named):
        return _equal(gold, prediction.answer)
    if isinstance(gold, Region) or isinstance(prediction, Region):
        return sets_equal(gold, prediction)
    if isinstance(gold, Words) or isinstance(prediction, Words):
        return _words_of(gold) == _words_of(prediction) != ""
    if isinstance(gold, Matrix) or isinstance(prediction, Matrix):
        return _matrices_equal(gold, prediction)
    if isinstance(gold, Bracketed) and isinstance(prediction, Bracketed):
        return _brackets_equal(gold, prediction)
    if isinstance(gold, Value) and isinstance(prediction, Value):
        return _values_equal(gold, prediction)
    return False


def _words_of(answer: Answer) -> str:
    if isinstance(answer, Words):
        return answer.text
    return squeezed(answer.letters) if isinstance(answer, Value) else ""


def _values_equal(gold: Value, prediction: Value) -> bool:
    """Equal numbers. One unit may be left out, two must be of one dimension; percent and degree are numbers too."""
    ours, theirs = gold.unit, prediction.unit
    if ours is not None and theirs is not None:
        return ours.dimension == theirs.dimension and same(in_base(gold), in_base(prediction))
    if gold.label and prediction.label and not (gold.label <= prediction.label or gold.label >= prediction.label):
        return False
    if (ours and prediction.label) or (theirs and gold.label):
        return False
    unit = ours or theirs
    if unit is None or unit.dimension not in ("%", "°"):
        return same(gold.formula, prediction.formula)
    if same(in_base(gold), in_base(prediction)):
        return True
    return same(gold.formula, prediction.formula) and (unit.dimension == "°" or _exceeds_one(gold.formula))


def _exceeds_one(formula: Formula) -> bool:
    try:
        return not variables_of(formula) and abs(closed_value(formula)) > 1
    except Undefined:
        return False


def _matrices_equal(gold: Answer, prediction: Answer) -> bool:
    """Equal entries in the same places; a single row or column is also the tuple of its entries."""
    if isinstance(gold, Matrix) and isinstance(prediction, Matrix):
        return len(gold.rows) == len(prediction.rows) and all(map(_pairwise, gold.rows, prediction.rows))
    matrix, other = (gold, prediction) if isinstance(gold, Matrix) else (prediction, gold)
    if (
        not isinstance(matrix, Matrix)
        or not isinstance(other, Bracketed)
        or (other.opening, other.closing) != ("(", ")")
    ):
        return False
    if len(matrix.rows) > 1 and any(len(row) != 1 for row in matrix.rows):
        return False
    return _pairwise([entry for row in matrix.rows for entry in row], other.items)


def _brackets_equal(gold: Bracketed, prediction: Bracketed) -> bool:
    """Equal entries in order, in equal brackets; three or more entries are no interval, and brackets a matter of taste."""
    ours, theirs = gold.opening + gold.closing, prediction.opening + prediction.closing
    matched = len(gold.items) > 2 and {ours, theirs} <= {"()", "[]"}
    return (ours == theirs or matched) and _pairwise(gold.items, prediction.items)


def _named_equal(gold: Named, prediction: Named) -> bool:
    """The same about the same name, parameters of functions renamed; or one equation solved for two of its variables."""
    if gold.name != prediction.name:
        ours, theirs = _as_equation(gold), _as_equation(prediction)
        return ours is not None and theirs is not None and _equations_equal(ours, theirs)
    if len(gold.parameters) != len(prediction.parameters):
        return not (gold.parameters and prediction.parameters) and _equal(gold.answer, prediction.answer)
    return _equal(_with_numbered_parameters(gold), _with_numbered_parameters(prediction))


def _with_numbered_parameters(named: Named) -> Answer:
    """What a function is defined to be, its parameters named by their places, so that no other variable is meant."""
    if not isinstance(named.answer, Value):
        return named.answer
    names = {name: f"parameter {place}" for place, name in enumerate(named.parameters)}
    return replace(named.answer, formula=renamed(named.answer.formula, names))


def _each_named(answer: Answer) -> Answer:
    """``(x, y) = (1, 2)`` as ``x = 1, y = 2``."""
    if not isinstance(answer, Named) or not isinstance(answer.answer, Bracketed) or answer.name[0] != "(":
        return answer
    names, items = answer.name[1:-1].split(","), answer.answer.items
    return Listing(tuple(map(Named, names, items))) if len(names) == len(items) else answer


def _listings_equal(gold: Answer, prediction: Answer) -> bool:
    """As multisets; as sets where one is an explicit set, or gold repeats nothing. In order where a tuple, or names for each item, on one side say so."""
    if any(isinstance(side, Region | Comparison) or _is_union(side) for side in (gold, prediction)):
        return sets_equal(gold, prediction)
    if isinstance(gold, Listing) and _all_named(gold.items):
        prediction = _each_named(prediction)
    elif isinstance(prediction, Listing) and _all_named(prediction.items):
        gold = _each_named(gold)
    if not isinstance(gold, Listing) or not isinstance(prediction, Listing):
        listing, single = (gold, prediction) if isinstance(gold, Listing) else (prediction, gold)
        assert isinstance(listing, Listing)
        if isinstance(single, Bracketed):
            ordered = not listing.braces and (_is_tuple(single) or _different_names(listing.items))
            return ordered and _pairwise(*_sides(gold, prediction))
        return bool(listing.items) and all(_equal(*_sides_of(gold, prediction, item)) for item in listing.items)
    ours, theirs = list(gold.items), list(prediction.items)
    if gold.braces or prediction.braces:
        ours = _distinct(ours)
    if len(_distinct(ours)) == len(ours) < len(theirs):
        theirs = _distinct(theirs)
    if len(ours) != len(theirs):
        return False
    if _all_named(ours) != _all_named(theirs) and _different_names(ours if _all_named(ours) else theirs):
        return _pairwise(ours, theirs)
    for item in ours:
        match = next((index for index, other in enumerate(theirs) if _equal(item, other)), None)
        if match is None:
            return False
        del theirs[match]
    return True


def _sides(gold: Answer, prediction: Answer) -> tuple[Sequence[Answer], Sequence[Answer]]:
    return tuple(side.items if isinstance(side, Listing | Bracketed) else (side,) for side in (gold, prediction))  # type: ignore[return-value]


def _sides_of(gold: Answer, prediction: Answer, item: Answer) -> tuple[Answer, Answer]:
    """Gold and prediction, the listing among them replaced by its item."""
    return (item, prediction) if isinstance(gold, Listing) else (gold, item)


def _is_tuple(brackets: Bracketed) -> bool:
    """Whether brackets can't be an interval: more than two entries, or not in ascending order."""
    return (brackets.opening, brackets.closing) == ("(", ")") and not is_real_set(brackets)


def _is_union(answer: Answer) -> bool:
    return isinstance(answer, Listing) and any(isinstance(_unnamed(item), Comparison | Region) for item in answer.items)


def _all_named(items: Sequence[Answer]) -> bool:
    return all(isinstance(item, Named) for item in items)


def _different_names(items: Sequence[Answer]) -> bool:
    return len({item.name for item in items if isinstance(item, Named)}) == len(items) > 1


def _unnamed(answer: Answer) -> Answer:
    return answer.answer if isinstance(answer, Named) else answer


def _distinct(items: Sequence[Answer]) -> list[Answer]:
    found: list[Answer] = []
    for item in items:
        if not any(_equal(item, other) for other in found):
            found.append(item)
    return found


def _pairwise(gold: Sequence[Answer], prediction: Sequence[Answer]) -> bool:
    return len(gold) == len(prediction) and all(map(_equal, map(_unnamed, gold), map(_unnamed, prediction)))


def _comparisons_equal(gold: Answer, prediction: Answer) -> bool:
    """The same solution set where both are solved; else the same relation, its terms moved across or its sides swapped."""
    ours, theirs = _as_equation(gold), _as_equation(prediction)
    if ours is not None and theirs is not None:
        return _equations_equal(ours, theirs)
    if sets_equal(gold, prediction):
        return True
    if not isinstance(gold, Comparison) or not isinstance(prediction, Comparison):
        return False
    ours, theirs = ascending(gold), ascending(prediction)
    if len(ours.sides) == 3:
        return ours.relations == theirs.relations and all(map(same, ours.sides, theirs.sides))
    return len(theirs.sides) == 2 and _equations_equal(ours, theirs)


def _as_equation(answer: Answer) -> Comparison | None:
    if isinstance(answer, Comparison) and answer.relations == ("=",):
        return answer
    if (
        isinstance(answer, Named)
        and not answer.parameters
        and isinstance(answer.answer, Value)
        and len(answer.name) == 1
    ):
        return Comparison((Name(answer.name), answer.answer.formula), ("=",))
    return None


def _equations_equal(gold: Comparison, prediction: Comparison) -> bool:
    """Two-sided relations whose differences of sides are multiples of each other.

    Any multiple describes the same curve or half-plane. In one variable only terms may have changed sides: a multiple
    could be the problem itself, restated instead of solved.
    """
    if gold.relations != prediction.relations:
        return False
    ours, theirs = (Apply("add", (side.sides[0], Apply("neg", (side.sides[1],)))) for side in (gold, prediction))
    variables = variables_of(ours)
    if not variables or variables != variables_of(theirs):
        return False
    ratio = ratio_of(ours, theirs)
    if ratio is None:
        return False
    symmetric = gold.relations[0] in ("=", "!=")
    try:
        if not symmetric and order(ratio) <= 0:
            return False
    except Undefined:
        return False
    return len(variables) > 1 or agree(abs(ratio), Fraction(1))
