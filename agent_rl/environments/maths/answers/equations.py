"""Equations and inequalities with two sides, compared as a whole."""

from __future__ import annotations

from fractions import Fraction

from agent_rl.environments.maths.answers.evaluation import Undefined, order, variables_of
from agent_rl.environments.maths.answers.formulas import Apply, Formula, Name
from agent_rl.environments.maths.answers.numbers import agree, ratio_of
from agent_rl.environments.maths.answers.statements import Answer, Comparison, Named, Value


def is_combination(formula: Formula) -> bool:
    """Whether a formula is a sum, difference, product or quotient of several variables, each once: that of ``m + n =
    37``.
    """
    names: list[str] = []

    def visit(part: Formula, operation: str) -> bool:
        if isinstance(part, Name):
            names.append(part.text)
            return True
        if operation == "add" and isinstance(part, Apply) and part.function == "neg":
            return visit(part.arguments[0], "")
        return (
            isinstance(part, Apply)
            and part.function == operation
            and all(visit(each, operation) for each in part.arguments)
        )

    operation = formula.function if isinstance(formula, Apply) else ""
    return operation in ("add", "mul", "div") and visit(formula, operation) and len(set(names)) == len(names) > 1


def as_equation(answer: Answer) -> Comparison | None:
    """An equation, or what is said of a variable, as one; None of anything else."""
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


def equations_equal(gold: Comparison, prediction: Comparison) -> bool:
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
