r"""Whether two answers, once read, say the same. Stated for each kind of answer in docs/answer_checking.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from math import isqrt
from typing import Literal

from agent_rl.environments.maths.answers.evaluation import (
    Undefined,
    agree,
    closed_value,
    identical,
    order,
    ratio_of,
    same,
)
from agent_rl.environments.maths.answers.formulas import (
    PI,
    Apply,
    Formula,
    Name,
    additions_in,
    bare,
    called_in,
    factors_in,
    functions_among,
    is_integer,
    names_in,
    neg,
    operations_of,
    parts_of,
    renamed,
    shape_of,
    with_products,
)
from agent_rl.environments.maths.answers.notation import spelt, squeezed
from agent_rl.environments.maths.answers.reading import may_be_left_out, readings
from agent_rl.environments.maths.answers.sets import sets_equal
from agent_rl.environments.maths.answers.statements import (
    DEGREE,
    Answer,
    Bracketed,
    Comparison,
    Listing,
    Matrix,
    Named,
    Region,
    Value,
    Words,
    all_named,
    formulas_in,
    same_dimension,
)

_FUNCTION_NAME = re.compile(r"[a-zA-Z]|\\[a-zA-Z]+")
_ROOT = re.compile(r"([a-zA-Z])_([0-9])")
_OPTION = re.compile(
    r"\W*(?:\\text(?:bf)?\s*\{\s*)?(?:(?:(?:[Oo]ption|[Cc]hoice)\s+)?(?:\(([A-J])\)|([A-J])[.):])[\s}~\\]+(?=\S)"
    r"|([A-J])\s+(?=[A-Z][a-z])(?!.*\b(?:or|and|not)\b)"
    r"|(?:(?:[Oo]ption|[Cc]hoice)\s*\(?([A-J])\)?|([A-J])[):])[\s}.]*$)",
    re.DOTALL,
)
"""A choice, as the label of what is chosen: ``(C) 12``, ``D. none of these``, ``A Peter``, ``option B``, ``C)``."""
_MATHS = re.compile(
    r"\$\$?(.+?)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]|\\begin\{(?:align|equation|gather)\*?\}(.+?)\\end"
    r"|(?<![\w.])([0-9]+(?:\.[0-9]+|/[0-9]+))(?![\w.])",
    re.DOTALL,
)
"""The formulas of a problem, and the decimals and fractions of its text."""
_ORDER = re.compile(
    r"\b(?:\w+est|least|most) to (?:the )?(?:\w+est|least|most)\b|\border (?:of|from)\b"
    r"|\b(?:(?:in|de)creasing|(?:a|de)scending|alphabetical|chronological) order\b",
    re.IGNORECASE,
)
"""Words by which a problem asks for an order."""
_OTHER_OPTION = re.compile(
    r"\s*(?:or|and|,|/|&|(?!I(?: only| and I|, I)|A (?!or|and|is|are|was|may|can|could|if|but|not|as|also)[a-z]{3})"
    r"[A-J]\b)|.*(?:\([A-J]\)|\b[A-J][.):]|\bor\W+[A-J]\W*$)",
    re.DOTALL,
)
"""What makes a choice doubtful: another one. "I only" and "A line" are the text of one."""


def check(gold: str, prediction: str, problem: str = "") -> Literal["equal", "right by value", "different"]:
    """Whether the content of a box states the gold answer; "right by value" if it is not worked out, or is copied from
    the text of the problem.
    """
    # 1. Read both. A text may have two readings, as where a comma could separate thousands.
    ours = [_with_one_function_name(answer) for answer in readings(gold, trusted=True)]
    theirs = [_with_one_function_name(answer) for answer in readings(prediction)]
    # 2. A choice is told by its letter, with or without the text of the option.
    letters = _bare_choice(ours, gold), _bare_choice(theirs, prediction)
    if any(letters):
        choices = letters[0] or chosen_option(gold), letters[1] or chosen_option(prediction)
        if letters[0] or all(choices):
            return "equal" if choices[0] == choices[1] else "different"
    # 3. Any other answer is what it means; a list is in the order that the problem asks for.
    ordered = _ORDER.search(problem)
    found = [(a, b) for a in ours for b in theirs if _equal(a, b) and not (ordered and not _keeps_order(a, b))]
    # 4. A number is worked out. What stands in the problem is no answer, unless it is gold, in whatever notation.
    for a, b in found:
        own = not problem or _forms(a) == _forms(b)
        if _is_worked_out(a, b) and (own or not (_stands(prediction, b, problem) or _is_rewritten(a, b, problem))):
            return "equal"
    return "right by value" if found else "different"


def _is_worked_out(gold: Answer, prediction: Answer) -> bool:
    r"""Whether the numbers in a prediction need no other operations, and no more sums, than gold's: 1572 is not ``781 +
    791``, 3 is neither ``6/2`` nor ``\sqrt 9``, and ``\sqrt8 + \sqrt{50}`` not ``7\sqrt2``. Bases are the same, and
    factors of a product of primes.
    """
    ours, theirs = ([each for each in formulas_in(side) if not names_in(each)] for side in (gold, prediction))
    if not ours:
        return True
    operations, more = (set[str]().union(*map(operations_of, each)) for each in (ours, theirs))
    marked = isinstance(gold, Value) and gold.marked
    allowed = operations | ({"oo", "pi"} if marked else {"oo"})
    if marked or not all(map(is_integer, ours)):
        allowed.add("plain div")
    if functions_among(operations):  # laws of logarithms, factorials and trigonometry
        allowed |= functions_among(more) | {"root", "pi", "e"}
    parts, more_parts = ([factors_in(each) for each in side] for side in (ours, theirs))
    for wanted, given in zip(parts, more_parts, strict=False):
        primes = wanted is not None and len(dict(wanted)) == len(wanted) > 1 and all(map(_is_prime, dict(wanted)))
        if primes and given is not None and (len(given) > 1 or given[0][1] != 1) and given != wanted:
            return False  # another factorization
    bases = {operation for operation in operations if operation.startswith("plain base")}
    sums, more_sums = (sum(map(additions_in, each)) for each in (ours, theirs))
    return more_sums <= sums and bases <= more <= allowed


def _is_prime(number: int) -> bool:
    return 1 < number < 10**6 and all(number % divisor for divisor in range(2, isqrt(number) + 1))


def _forms(answer: Answer) -> list[Formula]:
    """The formulas of an answer, bare: signs have many places."""
    return [*map(bare, formulas_in(answer))]


def _stands(text: str, answer: Answer, problem: str) -> bool:
    """Whether an answer, without the names that it has in its text, stands in the problem."""
    said = spelt(text)
    said = said.rpartition(" = ")[2] if isinstance(answer, Named | Value) else said
    return f" {said} " in f" {spelt(problem)} "


def _is_rewritten(gold: Answer, prediction: Answer, problem: str) -> bool:
    r"""Whether a prediction is a formula of the problem; or has not gold's shape, where one that equals gold has not.

    "Simplify ``\sqrt{242}``" is answered by a product, "factor ``x^2 - 1``" by no sum, "expand" by no longer one.
    """
    said = [next(filter(None, match.groups())) for match in _MATHS.finditer(problem)]
    stated = [*chain.from_iterable(readings(part) for text in said for part in {text, *text.split("=")})]
    ours, theirs, forms = _shapes(gold), _shapes(prediction), _forms(prediction)
    like_gold = len(ours) == len(theirs) and all(
        shape == other and sums >= more_sums and names >= more_names
        for (shape, sums, names), (other, more_sums, more_names) in zip(ours, theirs, strict=True)
    )
    return any(
        forms == _forms(each) or (not like_gold and ours != _shapes(each) and _equal(gold, each)) for each in stated
    )


def _shapes(answer: Answer) -> list[tuple[str, int, int]]:
    """Of each formula: what it is at its outside, and how many sums and variables are in it."""
    return [
        (
            shape_of(formula),
            sum(isinstance(part, Apply) and part.function == "add" for part in parts_of(formula)),
            sum(isinstance(part, Name) and part.text in names_in(part) for part in parts_of(formula)),
        )
        for formula in _forms(answer)
    ]


def chosen_option(text: str) -> str | None:
    """The option that a text chooses by its label; None if it has no such form, or labels others too."""
    option = _OPTION.match(text)
    return None if not option or _OTHER_OPTION.match(text, option.end()) else next(filter(None, option.groups()))


def _bare_choice(answers: Sequence[Answer], text: str) -> str | None:
    """The letter of a choice that stands alone."""
    option = _OPTION.match(text)
    if option and option.end() == len(text):  # C), option C
        return chosen_option(text)
    first = answers[0] if answers else None
    return first.letters if isinstance(first, Value) and re.fullmatch("[A-J]", first.letters) else None


def _with_one_function_name(answer: Answer) -> Answer:
    """A function that is defined, under a name that says nothing: ``g(t) = t^2`` is ``f(t) = t^2``. Of several, each
    keeps its own, and so does one that is constant: ``E(x) = 5``.
    """
    items = answer.items if isinstance(answer, Listing) else (answer,)
    functions = [item for item in items if isinstance(item, Named) and item.parameters]
    defined = any(name in names_in(formula) for f in functions for formula in formulas_in(f) for name in f.parameters)
    names = {function.name for function in functions}
    if not defined or len(names) != 1 or not _FUNCTION_NAME.fullmatch(name := names.pop()):
        return answer

    def change(item: Answer) -> Answer:
        if not isinstance(item, Named) or item.name != name:
            return item
        return replace(item, name="function", answer=_with_names(item.answer, {name: "function"}))

    changed = tuple(map(change, items))
    return replace(answer, items=changed) if isinstance(answer, Listing) else changed[0]


def _with_names(answer: Answer, names: dict[str, str]) -> Answer:
    return replace(answer, formula=renamed(answer.formula, names)) if isinstance(answer, Value) else answer


def _equal(gold: Answer, prediction: Answer) -> bool:
    if isinstance(gold, Listing) or isinstance(prediction, Listing):
        return _listings_equal(gold, prediction)
    if isinstance(gold, Named) and isinstance(prediction, Named):
        return _named_equal(gold, prediction)
    if isinstance(gold, Comparison) or isinstance(prediction, Comparison):
        return _comparisons_equal(gold, prediction)
    if isinstance(gold, Named):
        return _is_left_out(gold.name, prediction) and _equal(gold.answer, prediction)
    if isinstance(prediction, Named):
        return _is_left_out(prediction.name, gold) and _equal(gold, prediction.answer)
    if isinstance(gold, Region) or isinstance(prediction, Region):
        return sets_equal(gold, prediction)
    if isinstance(gold, Words) or isinstance(prediction, Words):
        return _words_of(gold) == _words_of(prediction) != ""
    if isinstance(gold, Matrix) or isinstance(prediction, Matrix):
        return _matrices_equal(gold, prediction)
    if isinstance(gold, Bracketed) and isinstance(prediction, Bracketed):
        return _brackets_equal(gold, prediction)
    return isinstance(gold, Value) and isinstance(prediction, Value) and _values_equal(gold, prediction)


def _is_left_out(name: str, other: Answer) -> bool:
    """Whether an answer may leave this name out; a letter before another letter, ``C = B``, is no name for it."""
    choice = isinstance(other, Value) and other.letters.isupper() and name.isupper()
    return not choice and may_be_left_out(name)


def _words_of(answer: Answer) -> str:
    if isinstance(answer, Words):
        return answer.text
    return squeezed(answer.letters) if isinstance(answer, Value) else ""


def _values_equal(gold: Value, prediction: Value) -> bool:
    """Equal numbers. One unit may be left out, two must be of one dimension; percent and degree are numbers too."""
    letters = gold.letters, prediction.letters
    if all(each.isupper() for each in letters):  # points or choices, in order
        return gold.letters == prediction.letters
    if any(len(each) == 1 and each.isupper() for each in letters):  # a choice equals no formula
        return False
    if gold.unit is not None and prediction.unit is not None:
        return same_dimension(gold.unit, prediction.unit) and same(gold.in_base, prediction.in_base)
    if not names_in(gold.formula) and names_in(prediction.formula):  # x/x is not 1
        return False
    if not gold.marked and not prediction.marked:
        return _formulas_equal(gold.formula, prediction.formula)
    marked, bare = (gold, prediction) if gold.marked else (prediction, gold)
    by_figures = _exceeds_one(bare.formula)
    if marked.unit == DEGREE:
        by_figures = not same(gold.in_base, prediction.in_base)
        if PI in parts_of(gold.formula) or PI in parts_of(prediction.formula):
            return not by_figures
    return same(gold.formula, prediction.formula) if by_figures else same(gold.in_base, prediction.in_base)


def _exceeds_one(formula: Formula) -> bool:
    try:
        return not names_in(formula) and abs(closed_value(formula)) > 1
    except Undefined:
        return False


def _formulas_equal(gold: Formula, prediction: Formula) -> bool:
    """Equal formulas; a letter that is a variable in one is no function in the other: ``h(a + b)`` is ``ha + hb``."""
    if same(gold, prediction):
        return True
    letters = (called_in(gold) | called_in(prediction)) & (names_in(gold) | names_in(prediction))
    return bool(letters) and same(with_products(gold, letters), with_products(prediction, letters))


def _matrices_equal(gold: Answer, prediction: Answer) -> bool:
    """Equal entries in the same places; a single row or column is also a tuple, and a tuple of tuples the rows."""
    if isinstance(gold, Matrix) and isinstance(prediction, Matrix):
        return len(gold.rows) == len(prediction.rows) and all(map(_pairwise, gold.rows, prediction.rows))
    matrix, other = (gold, prediction) if isinstance(gold, Matrix) else (prediction, gold)
    if not isinstance(matrix, Matrix) or not isinstance(other, Bracketed) or other.brackets != "()":
        return False
    rows = [row.items for row in other.items if isinstance(row, Bracketed) and row.brackets == "()"]
    if rows:
        return len(matrix.rows) == len(rows) == len(other.items) and all(map(_pairwise, matrix.rows, rows))
    if matrix.nested or (len(matrix.rows) > 1 and len(matrix.rows[0]) > 1):
        return False
    return _pairwise([entry for row in matrix.rows for entry in row], other.items)


def _brackets_equal(gold: Bracketed, prediction: Bracketed) -> bool:
    """Equal entries in order, in equal brackets; three or more entries are no interval, and brackets a matter of
    taste.
    """
    if gold.brackets == prediction.brackets and sets_equal(gold, gold):  # the bounds of an interval are exact
        return sets_equal(gold, prediction)
    taste = len(gold.items) > 2 and {gold.brackets, prediction.brackets} <= {"()", "[]"}
    return (gold.brackets == prediction.brackets or taste) and _pairwise(gold.items, prediction.items)


def _pairwise(gold: Sequence[Answer], prediction: Sequence[Answer]) -> bool:
    return len(gold) == len(prediction) and all(map(_equal, map(_unnamed, gold), map(_unnamed, prediction)))


def _unnamed(answer: Answer) -> Answer:
    return answer.answer if isinstance(answer, Named) and may_be_left_out(answer.name) else answer


def _named_equal(gold: Named, prediction: Named) -> bool:
    """The same about the same name, parameters of functions renamed; or one equation solved for two variables."""
    if gold.name != prediction.name:
        if "y" in (gold.name, prediction.name) and (gold.parameters or prediction.parameters):  # f(x) = x^2, y = x^2
            return _graph_of(gold) == _graph_of(prediction) != () and _equal(gold.answer, prediction.answer)
        ours, theirs = _as_equation(gold), _as_equation(prediction)
        return ours is not None and theirs is not None and _equations_equal(ours, theirs)
    if len(gold.parameters) != len(prediction.parameters):
        return not (gold.parameters and prediction.parameters) and _equal(gold.answer, prediction.answer)
    numbered = (
        _with_names(each.answer, {name: f"parameter {place}" for place, name in enumerate(each.parameters)})
        for each in (gold, prediction)
    )
    return _equal(*numbered)


def _graph_of(named: Named) -> tuple[str, ...]:
    """The variable of a function of one, ``f(x)`` or ``y``; nothing if there is another."""
    variables = tuple(names_in(named.answer.formula)) if isinstance(named.answer, Value) else ()
    return variables if len(variables) == 1 and named.parameters in ((), variables) else ()


def _listings_equal(gold: Answer, prediction: Answer) -> bool:
    """As multisets; as sets where one is an explicit set, or all are points. In the order of the names where a
    tuple, or names for each item on one side, say so.
    """
    if any(isinstance(side, Region | Comparison) or _is_union(side) for side in (gold, prediction)):
        return sets_equal(gold, prediction)
    if isinstance(gold, Listing) and isinstance(prediction, Listing):
        return _lists_equal(gold, prediction)
    listing, single = (gold, prediction) if isinstance(gold, Listing) else (prediction, gold)
    assert isinstance(listing, Listing)
    if _different_names(listing.items):
        if not isinstance(single, Bracketed) or single.brackets != "()" or listing.joint == "or":
            return False
        return _pairwise(
            *((_in_order(listing), single.items) if listing is gold else (single.items, _in_order(listing)))
        )
    if isinstance(single, Bracketed) or any(map(_is_set, listing.items)) or len(listing.items) != 1:
        return False
    return _equal(*((listing.items[0], single) if listing is gold else (single, listing.items[0])))


def _lists_equal(gold: Listing, prediction: Listing) -> bool:
    if _are_roots(gold.items) != _are_roots(prediction.items):
        gold, prediction = _without_numbers(gold), _without_numbers(prediction)
    ours, theirs = list(gold.items), list(prediction.items)
    named = _different_names(ours), _different_names(theirs)
    if any(named) and all_named(gold.items) != all_named(prediction.items):
        other = prediction if all_named(gold.items) else gold
        unordered = other.braces or "or" in (gold.joint, prediction.joint)[named.index(True) :][:1]
        return not unordered and _pairwise(ours, _in_order(prediction))
    if (gold.joint == "or") != (prediction.joint == "or") and any(named):
        return False
    if {gold.joint, prediction.joint} == {"and", "or"} and not all(map(_is_solution, ours)):
        return False
    if gold.braces or prediction.braces or all(isinstance(item, Bracketed) for item in (*ours, *theirs)):
        ours, theirs = _distinct(ours), _distinct(theirs)
    for item in ours:
        match = next((other for other in theirs if _is_set(item) == _is_set(other) and _equal(item, other)), None)
        if match is None:
            return False
        theirs.remove(match)
    return not theirs


def _keeps_order(gold: Answer, prediction: Answer) -> bool:
    """Whether a list has the order of gold's. If gold's numbers are in no order, the problem orders something else."""
    if not isinstance(gold, Listing) or not isinstance(prediction, Listing) or gold.braces or prediction.braces:
        return True
    try:
        sizes = [order(closed_value(item.in_base)) for item in map(_unnamed, gold.items) if isinstance(item, Value)]
    except Undefined:  # letters, which are in the order that gold gives them
        sizes = []
    ordered = sizes in (sorted(sizes), sorted(sizes, reverse=True))
    return not ordered or _pairwise(gold.items, prediction.items)


def _is_solution(answer: Answer) -> bool:
    """What an unknown can be: 1 "or" 2 are the solutions 1 "and" 2, but "p and q" is not "p or q"."""
    return not isinstance(answer, Words) and not (isinstance(answer, Value) and names_in(answer.formula))


def _is_set(answer: Answer) -> bool:
    """Whether an answer is an explicit set, which within a list is no number, even if it holds but one."""
    return isinstance(answer, Listing) and answer.braces


def _is_union(answer: Answer) -> bool:
    return isinstance(answer, Listing) and any(isinstance(_unnamed(item), Comparison | Region) for item in answer.items)


def _in_order(listing: Listing) -> Sequence[Answer]:
    """The items of a list that names them, in the order that their names have as the variables of a tuple."""

    def place(item: Answer) -> list[object]:
        name = item.name.lstrip("\\") if isinstance(item, Named) else ""
        return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]

    return sorted(listing.items, key=place) if _different_names(listing.items) else listing.items


def _different_names(items: Sequence[Answer]) -> bool:
    return len({item.name for item in items if isinstance(item, Named)}) == len(items) > 1


def _are_roots(items: Sequence[Answer]) -> bool:
    """Whether the names only number the solutions of one unknown: ``x_1``, ``x_2``."""
    found = [match for item in items if isinstance(item, Named) and (match := _ROOT.fullmatch(item.name))]
    numbers = sorted(int(match[2]) for match in found)
    return len({match[1] for match in found}) == 1 and numbers == list(range(1, len(items) + 1))


def _without_numbers(listing: Listing) -> Listing:
    """Numbered solutions as several values of their unknown."""
    if not _are_roots(listing.items):
        return listing
    items = [replace(item, name=item.name[0]) for item in listing.items if isinstance(item, Named)]
    return replace(listing, items=tuple(items))


def _distinct(items: Iterable[Answer]) -> list[Answer]:
    found: list[Answer] = []
    for item in items:
        if not any(_equal(item, other) for other in found):
            found.append(item)
    return found


def _comparisons_equal(gold: Answer, prediction: Answer) -> bool:
    """The same solution set where both are solved; else the same relation, its terms moved across or its sides
    swapped.
    """
    if isinstance(gold, Value) and isinstance(prediction, Comparison):  # m + n = 37
        named = prediction.relations == ("=",) and _is_combination(prediction.sides[0])
        return named and same(gold.formula, prediction.sides[1])
    ours, theirs = _as_equation(gold), _as_equation(prediction)
    if ours is not None and theirs is not None:
        solved = isinstance(gold, Named) and not names_in(ours.sides[1])  # x - 3 = 2 does not state x = 5
        return not solved and _equations_equal(ours, theirs)
    if sets_equal(gold, prediction):
        return True
    if not isinstance(gold, Comparison) or not isinstance(prediction, Comparison):
        return False
    ours, theirs = gold.ascending, prediction.ascending
    if len(ours.sides) == 3:
        return ours.relations == theirs.relations and all(map(identical, ours.sides, theirs.sides))
    return len(theirs.sides) == 2 and _equations_equal(ours, theirs)


def _is_combination(formula: Formula) -> bool:
    r"""Whether a formula is a sum, difference, product or quotient of several variables, each once: that of ``m + n =
    37``; or a ratio between points: ``\frac{AB}{AC}``.
    """
    operation = formula.function if isinstance(formula, Apply) else ""
    names: list[str] = []

    def visit(part: Formula, *, term: bool) -> bool:
        if isinstance(part, Name):
            names.append(part.text)
            return True
        if not isinstance(part, Apply):
            return False
        if operation == "add" and part.function == "neg" and term:
            return visit(part.arguments[0], term=False)
        deeper = (part.function == operation and term) or (operation, part.function) == ("div", "mul")
        return deeper and all(visit(each, term=True) for each in part.arguments)

    if operation not in ("add", "mul", "div") or not visit(formula, term=True):
        return False
    points = operation == "div" and all(name[0].isupper() for name in names)
    return (points or len(set(names)) == len(names)) and len(names) > 1


def _as_equation(answer: Answer) -> Comparison | None:
    """An equation, or what is said of a variable, as one; None of anything else."""
    if isinstance(answer, Comparison) and answer.relations == ("=",):
        return answer
    named = isinstance(answer, Named) and not answer.parameters and len(answer.name) == 1
    if named and isinstance(answer, Named) and isinstance(answer.answer, Value):
        return Comparison((Name(answer.name), answer.answer.formula), ("=",))
    return None


def _equations_equal(gold: Comparison, prediction: Comparison) -> bool:
    """Two-sided relations whose differences of sides are multiples of each other.

    Any multiple describes the same curve or half-plane. In one variable only terms may have changed sides: a multiple
    could be the problem itself, restated instead of solved.
    """
    if gold.relations != prediction.relations:
        return False
    ours, theirs = (Apply("add", (side.sides[0], neg(side.sides[1]))) for side in (gold, prediction))
    try:
        variables = names_in(ours)
        if not variables or variables != names_in(theirs):
            return False
        ratio = ratio_of(ours, theirs)
        if ratio is None or (gold.relations[0] not in ("=", "!=") and order(ratio) <= 0):
            return False
    except Undefined:
        return False
    return len(variables) > 1 or agree(abs(ratio), Fraction(1))
