r"""Generated pairs of answers: equal ones in other notation, and near-misses that one mutation made wrong.

Each pair is proved. Its two sides are built from meanings (``forms.py``) that this package computes itself, with
nothing of the checker: those of an equal pair are the same, those of a near-miss differ. The same seed gives the same
pairs.

What careful teachers could discuss is in neither set: a unit or label on one side only, ``50`` for ``50\%``, ``1.5``
for ``150\%`` or ``90`` for ``90^\circ``, an integer of which something is still to be worked out, rounding, tuples in
other brackets, an interval for a point, bare lists in another order than a tuple, one name of a variable for another,
a digit string in a base without the base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from benchmarks.answer_pairs.collection_kinds import COLLECTION_KINDS
from benchmarks.answer_pairs.forms import Case, Form, differ, same
from benchmarks.answer_pairs.formula_kinds import FORMULA_KINDS
from benchmarks.answer_pairs.number_kinds import NUMBER_KINDS
from benchmarks.answer_pairs.trees import Style

KINDS = NUMBER_KINDS | FORMULA_KINDS | COLLECTION_KINDS
_WEIGHTS = [weight for weight, _ in KINDS.values()]
_TRIES = 200


class Pair(NamedTuple):
    """A gold answer and a prediction, their kind, and the mutation between them ("" if they are equal)."""

    kind: str
    mutation: str
    gold: str
    prediction: str


def equal_pair(rng: Random) -> Pair:
    """Two texts of one meaning."""
    for _ in range(_TRIES):
        kind, case = _drawn(rng)
        first, second = rng.choice(case.golds or case.forms), rng.choice(case.forms)
        assert same(first.meaning, second.meaning), (kind, first, second)
        gold, prediction = _written(first, rng), _written(second, rng)
        gold, prediction = _framed_gold(gold, rng), _framed(prediction, rng)
        if gold != prediction:
            return Pair(kind, "", gold, prediction)
    raise AssertionError("no two notations differ")


def near_miss(rng: Random) -> Pair:
    """An answer, and another that a mutation made of it."""
    for _ in range(_TRIES):
        kind, case = _drawn(rng)
        mutation = rng.choice(sorted({mutation for mutation, _ in case.wrong}))
        right = rng.choice(case.golds or case.forms)
        wrong = rng.choice([form for name, form in case.wrong if name == mutation])
        if not differ(right.meaning, wrong.meaning):  # as 2 + 2 and 2 * 2
            continue
        gold, prediction = _written(right, rng), _written(wrong, rng)
        return Pair(kind, mutation, _framed_gold(gold, rng), _framed(prediction, rng))
    raise AssertionError("no mutation makes another answer")


def pairs(draw: Callable[[Random], Pair], count: int, seed: int) -> Iterator[Pair]:
    """``count`` different pairs."""
    rng, seen = Random(seed), set[Pair]()
    while len(seen) < count:
        pair = draw(rng)
        if pair not in seen:
            seen.add(pair)
            yield pair


def _drawn(rng: Random) -> tuple[str, Case]:
    (kind,) = rng.choices(list(KINDS), _WEIGHTS)
    return kind, KINDS[kind][1](rng)


def _written(form: Form, rng: Random) -> str:
    return form.write(Style.drawn(rng))


def _framed_gold(text: str, rng: Random) -> str:
    """As data sets hold it: bare, or between dollar signs."""
    return f"${text}$" if "$" not in text and rng.random() < 0.15 else text


def _framed(text: str, rng: Random) -> str:
    """As models write it: bare, between delimiters, with spaces, with a mark left at the end."""
    frames = ["{}"] * 8 + ["{}.", " {} ", "{},", "{};", r"{}\\", r"\displaystyle {}", r"\boxed{{{}}}", "\n{}\n"]
    frames += [r"{}\,", "{} ."]
    if "$" not in text:
        frames += ["${}$", r"\({}\)", "$${}$$", r"\[{}\]", "$ {} $", "${}$.", "${}.$"]
    if text.endswith("."):
        frames = ["{}", " {} "]
    return rng.choice(frames).format(text)
