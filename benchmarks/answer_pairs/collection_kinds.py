"""Kinds of answers that hold several: solutions, sets, tuples, matrices, and sets of real numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from random import Random
from typing import TypeAlias

from benchmarks.answer_pairs.forms import Case, Form, Kind, Meaning, Wrong, altered_items, said, words, wrong
from benchmarks.answer_pairs.trees import Style, Tree, add, bracketed, decimal, mul, neg, root, text, tree

Row: TypeAlias = Sequence[Tree]
Piece: TypeAlias = "tuple[Tree | None, bool, Tree | None, bool]"
"""Low end, whether it belongs to the piece, high end, whether it does; None for infinity."""
BREAK = r" \\ "
TINY = Fraction(1, 10**13)


def entries(rng: Random, count: int) -> list[Tree]:
    """Different numbers: mostly whole, some fractions."""
    found: list[Fraction] = []
    while len(found) < count:
        n = Fraction(rng.randint(-20, 20), rng.choice((1, 1, 1, 1, 2, 3)))
        if n not in found:
            found.append(n)
    return list(map(tree, found))


def joined(items: Row, style: Style, joint: str = ", ") -> str:
    """Expressions side by side."""
    return joint.join(text(item, style) for item in items)


def mutated(rng: Random, items: Row, forms_of: Callable[[Row], list[Form]], *, ordered: bool = False) -> list[Wrong]:
    """All forms of several answers of which one is missing, too many, mutated or at another place."""
    return [
        one
        for mutation, other in altered_items(rng, items, ordered=ordered)
        if other
        for one in wrong(mutation, *forms_of(other))
    ]


def solutions(rng: Random) -> Case:
    """All solutions of an equation in one variable."""
    items = entries(rng, rng.randint(2, 4))
    if rng.random() < 0.25:
        surd, centre = rng.choice((2, 3, 5, 7, 11)), rng.randint(-6, 6)
        items = [add(centre, root(surd)), add(centre, neg(root(surd)))] if centre else [root(surd), neg(root(surd))]
    letter = rng.choice("xxxntm")

    def forms_of(items: Row) -> list[Form]:
        meaning: Meaning = ("set", *items) if len(items) > 1 else items[0]
        turned = rng.sample(items, len(items))

        def each(joint: str, names: Sequence[str] = letter * 9) -> Form:
            pairs = list(zip(names, turned, strict=False))
            return Form(meaning, lambda s: joint.join(f"{name} = {text(item, s)}" for name, item in pairs))

        found = [Form(meaning, lambda s: joined(items, s)), Form(meaning, lambda s: joined(turned, s))]
        found += [each(joint) for joint in (", ", r" \text{ or } ", " or ")]
        found += [each(", ", [f"{letter}_{k}" for k in range(1, len(items) + 1)])] if len(items) > 1 else []
        found += [Form(meaning, lambda s: f"{letter} = {joined(items, s)}")]
        found += [Form(meaning, lambda s: f"{letter} \\in {bracketed(joined(items, s), s, '{}')}")]
        if len(items) == 2:
            found += [Form(meaning, lambda s: joined(items, s, r" \text{ and } "))]
            found += [Form(meaning, lambda s: f"{letter} = " + joined(items, s, r" \text{ or } "))]
        return found

    plain = list(map(text, items))
    changed = wrong("nesting", *words(f"\\{{\\{{{', '.join(plain)}\\}}\\}}"))
    changed += wrong("relation", *words(r" \text{ or } ".join(f"{letter} \\ne {item}" for item in plain)))
    changed += wrong("sum for list", *words(" + ".join(f"({item})" for item in plain)))
    return Case(forms_of(items), [*changed, *mutated(rng, items, forms_of)])


def both_signs(rng: Random) -> Case:
    """A number and its negative."""
    n, letter = rng.randint(2, 90), rng.choice("xyz")
    size = rng.choice((tree(n), root(rng.choice((2, 3, 5, 6, 7, 10))), tree(Fraction(n, 91))))

    def forms_of(size: Tree) -> list[Form]:
        pair = (size, neg(size))
        meaning: Meaning = ("set", *pair)
        signed = ("\\pm {}", "±{}", f"{letter} = \\pm {{}}")
        found = [Form(meaning, lambda s, t=t: t.format(text(size, s))) for t in signed]  # type: ignore[misc]
        found += [Form(meaning, lambda s: joined(pair, s)), Form(meaning, lambda s: joined(pair[::-1], s))]
        found += [Form(meaning, lambda s: f"{letter} = {text(pair[1], s)} \\text{{ or }} {letter} = {text(size, s)}")]
        return [*found, Form(meaning, lambda s: bracketed(joined(pair[::-1], s), s, "{}"))]

    changed = wrong("missing part", size, neg(size)) + wrong("off by one", *forms_of(add(size, 1)))
    changed += wrong("extra part", *words(f"0, \\pm {text(size)}")) + wrong("scale", *forms_of(mul(2, size)))
    changed += wrong("relation", *words(f"|{letter}| < {text(size)}", f"{letter} \\ne \\pm {text(size)}"))
    return Case(forms_of(size), changed)


def sets(rng: Random) -> Case:
    """Explicit sets."""
    items = entries(rng, rng.randint(2, 5))
    first, *rest = map(text, items)
    together = ", ".join((first, *rest))

    def forms_of(items: Row) -> list[Form]:
        orders = (items, rng.sample(items, len(items)))
        return [Form(("set", *items), lambda s, o=o: bracketed(joined(o, s), s, "{}")) for o in orders]  # type: ignore[misc]

    nested = [f"\\{{{together}\\}}", ", ".join(f"\\{{{one}\\}}" for one in (first, *rest)), f"({together})"]
    nested += [f"{first}, \\{{{', '.join(rest)}\\}}"]
    changed = wrong("nesting", *words(*(f"\\{{{inner}\\}}" for inner in nested))) + wrong("empty", *words(r"\emptyset"))
    texts = [f"\\lbrace {together} \\rbrace", f"\\{{ {together} \\}}", f"\\left\\{{{together}\\right\\}}"]
    return Case([*forms_of(items), *said(("set", *items), *texts)], [*changed, *mutated(rng, items, forms_of)])


def tuples(rng: Random) -> Case:
    """Points and other tuples that can't be intervals."""
    items = entries(rng, rng.randint(2, 4))
    if len(items) == 2 and items[0].value < items[1].value:
        items.reverse()
    names = {2: "xy", 3: "xyz", 4: "abcd"}[len(items)]
    plain = list(map(text, items))

    def bare(items: Row) -> list[Form]:
        return [Form(("tuple", *items), lambda s: bracketed(joined(items, s, ", " if s.spaced else ","), s))]

    def named(items: Row) -> list[Form]:
        meaning: Meaning = ("tuple", *items)
        pairs = list(zip(names, items, strict=False))
        turned = rng.sample(pairs, len(pairs))
        found = [
            Form(meaning, lambda s, p=p: ", ".join(f"{n} = {text(i, s)}" for n, i in p))  # type: ignore[misc]
            for p in (pairs, turned)
        ]
        return [*found, Form(meaning, lambda s: f"({', '.join(names)}) = {bracketed(joined(items, s), s)}")]

    changed = [(name, one) for name, one in mutated(rng, items, bare, ordered=True)]
    changed += [(name, one) for name, one in mutated(rng, items, named, ordered=True) if "part" not in name]
    swapped = ", ".join(f"{n} = {one}" for n, one in zip(reversed(names), plain, strict=True))
    changed += wrong("swapped names", *words(swapped)) + wrong("missing part", *words(f"x = {plain[0]}"))
    inner, turned = ", ".join(plain), ", ".join(reversed(plain))
    nested = [f"(({inner}), ({inner}))", f"\\{{({inner}), ({turned})\\}}", f"({plain[0]}, ({plain[1]}, 0))"]
    nested += [f"(({', '.join(plain[:-1])}), {plain[-1]})"] if len(plain) > 2 else []
    changed += wrong("nesting", *words(*nested))
    return Case([*bare(items), *bare(items), *named(items)], changed)


def points(rng: Random) -> Case:
    """Several points, in any order."""
    items = [entries(rng, 2) for _ in range(rng.randint(2, 3))]

    def forms_of(items: Sequence[Row]) -> list[Form]:
        inner: list[Meaning] = [("tuple", *item) for item in items]
        meaning: Meaning = ("set", *inner) if len(items) > 1 else inner[0]
        turned = rng.sample(items, len(items))
        joints = ((items, ", "), (turned, ", "), (turned, r" \text{ and } "), (turned, "; "))
        return [
            Form(meaning, lambda s, o=o, j=j: j.join(bracketed(joined(item, s), s) for item in o))  # type: ignore[misc]
            for o, j in joints
        ]

    (a, b), (c, d), *more = items
    others = [("order", [[b, a], [c, d]]), ("order", [[b, a], [d, c]]), ("mixed points", [[a, d], [c, b]])]
    others += [
        ("mixed points", [[a, c], [b, d]]),
        ("missing part", [[a, b]]),
        ("extra part", [[a, b], [c, d], [d, tree(31)]]),
    ]
    others += [(name, [point, [c, d]]) for name, point in altered_items(rng, [a, b]) if len(point) == 2]
    changed = [one for name, pair in others for one in wrong(name, *forms_of([*pair, *more]))]
    changed += wrong("nesting", *words(", ".join(text(n) for item in items for n in item)))
    return Case(forms_of(items), changed)


def matrices(rng: Random) -> Case:
    """Matrices of two or three rows."""
    height, width = rng.choice(((2, 2), (2, 2), (2, 3), (3, 3), (3, 2)))
    rows: list[list[Tree]] = [[tree(rng.randint(-9, 9)) for _ in range(width)] for _ in range(height)]
    rows[0][0], rows[0][1], rows[1][0] = map(tree, rng.sample(range(-9, 10), 3))  # it is not symmetric

    def body(rows: Sequence[Row], style: Style) -> str:
        return BREAK.join(" & ".join(text(entry, style) for entry in row) for row in rows)

    def forms_of(rows: Sequence[Row]) -> list[Form]:
        lines: list[Meaning] = [("row", *row) for row in rows]
        columns = f"{{{'c' * len(rows[0])}}}"
        frames = [("\\begin{pmatrix} ", " \\end{pmatrix}"), ("\\begin{bmatrix} ", " \\end{bmatrix}")] * 2
        frames += [(f"\\left{o}\\begin{{array}}{columns} ", f" \\end{{array}}\\right{c}") for o, c in ("()", "[]")]
        frames += [("\\left[\\begin{matrix} ", " \\end{matrix}\\right]")]
        found = [Form(("matrix", *lines), lambda s, o=o, c=c: o + body(rows, s) + c) for o, c in frames]  # type: ignore[misc]
        return [*found, Form(("matrix", *lines), lambda s: f"[{', '.join(f'[{joined(row, s)}]' for row in rows)}]")]

    (first, *others), *below = rows
    changed: list[tuple[str, Sequence[Row]]] = [
        ("order", [list(row) for row in zip(*rows, strict=True)]),
        ("order", rows[::-1]),
        ("order", [row[::-1] for row in rows]),
        ("sign", [[neg(one) for one in row] for row in rows]),
        ("missing part", rows[:-1] if height > 2 else [[first]]),
        *((name, [[*row, *others], *below]) for name, row in altered_items(rng, [first]) if len(row) == 1),
    ]
    found = [one for name, other in changed for one in wrong(name, *forms_of(other)[: 7 if len(other) == 1 else 8])]
    inner = body(rows, Style())
    found += wrong("determinant", *words(f"\\begin{{vmatrix}} {inner} \\end{{vmatrix}}"))
    found += wrong("nesting", *words(", ".join(text(entry) for row in rows for entry in row)))
    around = ("{}^T", "{}^2", "{}^{{-1}}", "2{}")
    found += wrong("exponent", *words(*(a.format(f"\\begin{{pmatrix}} {inner} \\end{{pmatrix}}") for a in around)))
    return Case(forms_of(rows), found)


def vectors(rng: Random) -> Case:
    """Column vectors."""
    items = entries(rng, rng.randint(2, 3))

    def forms_of(items: Row) -> list[Form]:
        frames = [(f"\\begin{{{name}}} ", f" \\end{{{name}}}") for name in ("pmatrix", "bmatrix")]
        frames += [(r"\left(\begin{array}{c} ", r" \end{array}\right)")]
        return [Form(("vector", *items), lambda s, o=o, c=c: o + joined(items, s, BREAK) + c) for o, c in frames]  # type: ignore[misc]

    changed = mutated(rng, items, forms_of, ordered=True)
    return Case(forms_of(items), changed + wrong("scale", *forms_of([tree(2 * one.value) for one in items])))


def regions(rng: Random) -> Case:
    """Intervals, their unions, and inequalities."""
    letter = rng.choice("xxxtk")
    n = Fraction(rng.randint(-15, 15), rng.choice((1, 1, 1, 2, 3)))
    low, high = tree(n), tree(n + Fraction(rng.randint(1, 12), rng.choice((1, 1, 2))))
    left, right = rng.random() < 0.5, rng.random() < 0.5
    union = rng.random() < 0.25
    first = rng.choice([(low, left, high, right), (low, left, None, False), (None, False, low, left)])
    pieces: list[Piece] = [(None, False, low, left), (high, right, None, False)] if union else [first]

    def interval(piece: Piece, style: Style) -> str:
        infinity = "inf" if style.plain else r"\infty"
        ends = ("[" if piece[1] else "(") + ("]" if piece[3] else ")")
        low, high = (
            text(end, style) if end else f"{sign}{infinity}" for end, sign in ((piece[0], "-"), (piece[2], ""))
        )
        return bracketed(f"{low}, {high}", style, ends)

    def condition(piece: Piece, style: Style, *, turned: bool) -> str:
        low, closed_below, high, closed_above = piece
        less, more = (r"\le", "<"), (r"\ge", ">")
        if low and high:
            signs = less[not closed_below], less[not closed_above]
            return f"{text(low, style)} {signs[0]} {letter} {signs[1]} {text(high, style)}"
        bound, closed = (low, closed_below) if low else (high, closed_above)
        assert bound
        if turned:
            return f"{text(bound, style)} {(less if low else more)[not closed]} {letter}"
        return f"{letter} {(more if low else less)[not closed]} {text(bound, style)}"

    def forms_of(pieces: Sequence[Piece]) -> list[Form]:
        def conditions(s: Style, *, turned: bool = False) -> str:
            return r" \text{ or } ".join(condition(piece, s, turned=turned) for piece in pieces)

        def unions(s: Style) -> str:
            return r" \cup ".join(interval(piece, s) for piece in pieces)

        writers: list[Callable[[Style], str]] = [unions, conditions, lambda s: conditions(s, turned=True)]
        writers += [unions, lambda s: f"{letter} \\in {unions(s)}"]
        writers += [lambda s: f"\\{{{letter} \\mid {conditions(s)}\\}}"] if len(pieces) == 1 else []
        return [Form(("region", *pieces), write) for write in writers]

    a, closed_a, b, closed_b = pieces[0]
    others: list[tuple[str, list[Piece]]] = []
    others += [("bound", [(a, not closed_a, b, closed_b)])] if a else []
    others += [("bound", [(a, closed_a, b, not closed_b)])] if b else []
    for mutation, by in (("off by one", Fraction(-1)), ("bound moved by 1e-13", TINY * rng.choice((1, -1, 7)))):
        if by != -1 and n.denominator > 1:
            continue
        end = a or b
        assert end
        moved = tree(end.value + by) if by == -1 else decimal(end.value + by)
        if by == -1 or end.value.denominator == 1:
            others += [(mutation, [(moved if a else a, closed_a, b if a else moved, closed_b)])]
    others += [("direction", [(b, closed_b, a, closed_a)])] if not (a and b) and not union else []
    others += [("unbounded", [(a, closed_a, None, False)])] if a and b else []
    others += [("sign", [(neg(b), closed_b, neg(a), closed_a)])] if a and b and a.value != -b.value else []
    changed = [one for name, other in others for one in wrong(name, *forms_of([*other, *pieces[1:]]))]
    if union:
        changed += wrong("missing part", *forms_of(pieces[1:]))
        changed += wrong("complement", *forms_of([(low, not left, high, not right)]))
    changed += wrong("relation", *words(f"{letter} = {text(low)}", f"{letter} \\ne {text(low)}"))
    return Case(forms_of(pieces), changed)


COLLECTION_KINDS: dict[str, tuple[int, Kind]] = {
    "solutions": (4, solutions),
    "both signs": (1, both_signs),
    "set": (3, sets),
    "tuple": (3, tuples),
    "points": (2, points),
    "matrix": (3, matrices),
    "vector": (1, vectors),
    "interval": (5, regions),
}
"""The kinds, each with its weight."""
