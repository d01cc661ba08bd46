"""Sets of real numbers as answers: intervals, their unions, inequalities."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random
from typing import TypeAlias

from benchmarks.answer_pairs.forms import Case, Form, Kind, mutated, words
from benchmarks.answer_pairs.meanings import End, Meaning
from benchmarks.answer_pairs.trees import Style, bracketed, decimal, neg, text, tree

Piece: TypeAlias = tuple[End, bool, End, bool]
"""Low end, whether it belongs to the piece, high end, whether it does; None for infinity."""
TINY = Fraction(1, 10**13)


def region(pieces: Sequence[Piece]) -> Meaning:
    """Pieces of the real line, in order and apart."""
    return ("region", *pieces)


def interval_text(piece: Piece, style: Style) -> str:
    """A piece in brackets."""
    low, closed_below, high, closed_above = piece
    infinity = "inf" if style.plain else r"\infty"
    ends = ("[" if closed_below else "(") + ("]" if closed_above else ")")
    inside = f"{text(low, style) if low else f'-{infinity}'}, {text(high, style) if high else infinity}"
    return bracketed(inside, style, ends)


def condition_text(piece: Piece, letter: str, style: Style, *, turned: bool) -> str:
    """A piece as inequalities about a variable."""
    low, closed_below, high, closed_above = piece
    less = {True: r"\le", False: "<"}
    more = {True: r"\ge", False: ">"}
    if low and high:
        return f"{text(low, style)} {less[closed_below]} {letter} {less[closed_above]} {text(high, style)}"
    bound, closed, below = (low, closed_below, False) if low else (high, closed_above, True)
    assert bound
    if turned:
        return f"{text(bound, style)} {(more if below else less)[closed]} {letter}"
    return f"{letter} {(less if below else more)[closed]} {text(bound, style)}"


def regions(rng: Random) -> Case:
    """Intervals, their unions, and inequalities."""
    letter = rng.choice("xxxtk")
    n = Fraction(rng.randint(-15, 15), rng.choice((1, 1, 1, 2, 3)))
    low, high = tree(n), tree(n + Fraction(rng.randint(1, 12), rng.choice((1, 1, 2))))
    left, right = rng.random() < 0.5, rng.random() < 0.5
    shape = rng.randrange(4)
    shapes: list[list[Piece]] = [
        [(low, left, high, right)],
        [(low, left, None, False)],
        [(None, False, low, left)],
        [(None, False, low, left), (high, right, None, False)],
    ]
    pieces = shapes[shape]

    def forms_of(pieces: Sequence[Piece]) -> list[Form]:
        meaning = region(pieces)

        def conditions(s: Style, *, turned: bool = False) -> str:
            return r" \text{ or } ".join(condition_text(piece, letter, s, turned=turned) for piece in pieces)

        def unions(s: Style) -> str:
            return r" \cup ".join(interval_text(piece, s) for piece in pieces)

        return [
            Form(meaning, unions),
            Form(meaning, conditions),
            Form(meaning, lambda s: conditions(s, turned=True)),
            Form(meaning, lambda s: f"{letter} \\in {unions(s)}"),
            Form(meaning, unions),
            Form(meaning, lambda s: f"\\{{{letter} \\mid {conditions(s)}\\}}")
            if len(pieces) == 1
            else Form(meaning, unions),
        ]

    def other(piece: Piece) -> Form:
        return rng.choice(forms_of([piece, *pieces[1:]]))

    def moved(end: End, by: Fraction) -> End:
        return tree(end.value + by) if end else None

    a, closed_a, b, closed_b = pieces[0]
    changed = mutated("bound", [other((a, not closed_a, b, closed_b))] if a else [])
    changed += mutated("bound", [other((a, closed_a, b, not closed_b))] if b else [])
    if n.denominator == 1:
        near = decimal(n + TINY * rng.choice((1, -1, 7)))
        changed += mutated("bound moved by 1e-13", [other((near if a else a, closed_a, b if a else near, closed_b))])
    changed += mutated(
        "off by one",
        [
            other((moved(a, Fraction(-1)), closed_a, b, closed_b))
            if a
            else other((a, closed_a, moved(b, Fraction(-1)), closed_b))
        ],
    )
    changed += mutated("direction", [other((b, closed_b, a, closed_a))] if shape in {1, 2} else [])
    changed += mutated("missing part", [rng.choice(forms_of(pieces[1:]))] if shape == 3 else [])
    changed += mutated("unbounded", [rng.choice(forms_of([(a, closed_a, None, False)]))] if shape == 0 else [])
    if shape == 0 and (low.value, high.value) != (-high.value, -low.value):
        changed += mutated("sign", [other((neg(high), closed_b, neg(low), closed_a))])
    if shape == 3:
        changed += mutated("complement", [rng.choice(forms_of([(low, not left, high, not right)]))])
    changed += mutated("relation", [words(f"{letter} = {text(low)}"), words(f"{letter} \\ne {text(low)}")])
    return Case(forms_of(pieces), changed)


REGION_KINDS: dict[str, tuple[int, Kind]] = {"interval": (5, regions)}
"""The kind, with its weight."""
