"""Whether two numbers with their units and labels, or two times of day, are the same."""

from __future__ import annotations

from fractions import Fraction

from agent_rl.environments.maths.answers.evaluation import Undefined, variables_of
from agent_rl.environments.maths.answers.formulas import (
    Apply,
    Formula,
    Name,
    Number,
    called_in,
    holds,
    names_in,
    with_products,
)
from agent_rl.environments.maths.answers.numbers import closed_value, same
from agent_rl.environments.maths.answers.statements import MARKS, Answer, Clock, Value, in_base
from agent_rl.environments.maths.answers.units import same_dimension

PI = Name("pi")


def clocks_equal(gold: Answer, prediction: Answer) -> bool:
    """The same time of day, its half of the day told by both or by none; or equal ratios, if one can't be a time."""
    if isinstance(gold, Clock) and isinstance(prediction, Clock):
        same_half = gold.marked == prediction.marked or (gold.ratio is not None and prediction.ratio is not None)
        return gold.seconds == prediction.seconds and same_half
    clock, other = (gold, prediction) if isinstance(gold, Clock) else (prediction, gold)
    if not isinstance(clock, Clock) or not clock.ratio or not isinstance(other, Value) or other.unit or other.label:
        return False
    first, second = (Number(Fraction(number)) for number in clock.ratio)
    return same(Apply("div", (first, second)), other.formula)


def values_equal(gold: Value, prediction: Value) -> bool:
    """Equal numbers. One unit may be left out, two must be of one dimension; percent and degree are numbers too."""
    if not _letters_agree(gold.letters, prediction.letters):
        return False
    ours, theirs = gold.unit, prediction.unit
    if ours is not None and theirs is not None:
        alike = same_dimension(ours, theirs) or {ours.dimension, theirs.dimension} == {"°", "radian^1"}
        return alike and same(in_base(gold), in_base(prediction))
    if gold.lax_unit or prediction.lax_unit or (ours and prediction.label) or (theirs and gold.label):
        return False
    if gold.label and prediction.label and not _labels_agree(gold.label, prediction.label):
        return False
    unit = ours or theirs
    if unit is None or unit.dimension not in MARKS:
        return _same_formula(gold.formula, prediction.formula)
    if same(in_base(gold), in_base(prediction)):
        return True
    if unit.dimension == "°" and (holds(gold.formula, PI) or holds(prediction.formula, PI)):
        return False
    return same(gold.formula, prediction.formula) and (unit.dimension == "°" or _exceeds_one(gold.formula))


def _letters_agree(gold: str, prediction: str) -> bool:
    """Capital letters side by side are points or choices, in order; a single one is a choice and equals no formula."""
    if gold.isupper() and prediction.isupper():
        return gold == prediction
    return not any(len(letters) == 1 and letters.isupper() for letters in (gold, prediction))


def _labels_agree(gold: frozenset[str], prediction: frozenset[str]) -> bool:
    """Whether labels count the same; one may say less, but not leave out what the number is a share of."""
    return gold == prediction if {"per", "of"} & (gold | prediction) else gold <= prediction or gold >= prediction


def _same_formula(gold: Formula, prediction: Formula) -> bool:
    """Equal formulas; a letter that is a variable in one is no function in the other: ``h(a + b)`` is ``ha + hb``."""
    if same(gold, prediction):
        return True
    letters = (called_in(gold) | called_in(prediction)) & (names_in(gold) | names_in(prediction))
    return bool(letters) and same(with_products(gold, letters), with_products(prediction, letters))


def _exceeds_one(formula: Formula) -> bool:
    try:
        return not variables_of(formula) and abs(closed_value(formula)) > 1
    except Undefined:
        return False
