"""Kinds of answers that hold several: solutions, sets, tuples, matrices."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from random import Random

from benchmarks.answer_pairs.forms import Case, Form, Kind, mutated, said, words
from benchmarks.answer_pairs.meanings import Meaning
from benchmarks.answer_pairs.trees import Style, Tree, add, bracketed, mul, neg, root, text, tree

Row = Sequence[Tree]
BREAK = r" \\ "


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


def one_of_set(items: Row) -> Form:
    """An explicit set."""
    return Form(("set", *items), lambda style: bracketed(joined(items, style), style, "{}"))


def shuffled(items: Row, rng: Random) -> list[Tree]:
    """The items in another order, if there is one."""
    return rng.sample(list(items), len(items))


def solutions(rng: Random) -> Case:
    """All solutions of an equation in one variable."""
    items = entries(rng, rng.randint(2, 4))
    if rng.random() < 0.25:
        surd, centre = rng.choice((2, 3, 5, 7, 11)), rng.randint(-6, 6)
        items = [add(centre, root(surd)), add(centre, neg(root(surd)))] if centre else [root(surd), neg(root(surd))]
    letter = rng.choice("xxxntm")

    def forms_of(items: Row) -> list[Form]:
        meaning: Meaning = ("set", *items)

        def each(joint: str, turned: Row) -> Form:
            return Form(meaning, lambda s: joint.join(f"{letter} = {text(item, s)}" for item in turned))

        numbered = [f"{letter}_{k}" for k in range(1, len(items) + 1)]
        found = [Form(meaning, lambda s: joined(items, s)), Form(meaning, lambda s: joined(shuffled(items, rng), s))]
        found += [each(joint, shuffled(items, rng)) for joint in (", ", r" \text{ or } ", " or ")]
        found += [Form(meaning, lambda s: f"{letter} = {joined(items, s)}")]
        found += [Form(meaning, lambda s: f"{letter} \\in {bracketed(joined(items, s), s, '{}')}")]
        found += [
            Form(meaning, lambda s: ", ".join(f"{n} = {text(i, s)}" for n, i in zip(numbered, items, strict=True)))
        ]
        if len(items) == 2:
            found += [Form(meaning, lambda s: f"{text(items[0], s)} \\text{{ and }} {text(items[1], s)}")]
            found += [Form(meaning, lambda s: f"{letter} = {text(items[0], s)} \\text{{ or }} {text(items[1], s)}")]
        return found

    def other(items: Row) -> Form:
        return rng.choice(forms_of(items))

    first, *rest = items
    changed = mutated(
        "missing solution",
        [other(rest), other(items[:-1])]
        if len(items) > 2
        else [words(f"{letter} = {text(first)}"), words(text(rest[0]))],
    )
    changed += mutated("extra solution", [other([*items, tree(37)]), other([tree(Fraction(1, 7)), *items])])
    changed += mutated("sign", [other([neg(first), *rest])]) + mutated(
        "off by one", [other([add(first, 1) if first.head != "number" else tree(first.value + 1), *rest])]
    )
    changed += mutated("scale", [other([mul(10, first) if first.head != "number" else tree(10 * first.value), *rest])])
    changed += mutated("nesting", [words(f"\\{{\\{{{', '.join(map(text, items))}\\}}\\}}")])
    changed += mutated("relation", [words(r" \text{ or } ".join(f"{letter} \\ne {text(item)}" for item in items))])
    changed += mutated("sum for list", [words(" + ".join(f"({text(item)})" for item in items))])
    return Case(forms_of(items), changed)


def both_signs(rng: Random) -> Case:
    """A number and its negative."""
    n = rng.randint(2, 90)
    size = rng.choice((tree(n), root(rng.choice((2, 3, 5, 6, 7, 10))), tree(Fraction(n, 91))))
    letter = rng.choice("xyz")

    def forms_of(size: Tree) -> list[Form]:
        meaning: Meaning = ("set", size, neg(size))
        return [
            Form(meaning, lambda s: f"\\pm {text(size, s)}"),
            Form(meaning, lambda s: f"±{text(size, s)}"),
            Form(meaning, lambda s: f"{letter} = \\pm {text(size, s)}"),
            Form(meaning, lambda s: joined((size, neg(size)), s)),
            Form(meaning, lambda s: joined((neg(size), size), s)),
            Form(meaning, lambda s: f"{letter} = {text(neg(size), s)} \\text{{ or }} {letter} = {text(size, s)}"),
            Form(meaning, lambda s: bracketed(joined((neg(size), size), s), s, "{}")),
        ]

    changed = mutated(
        "missing solution", [Form(size, lambda s: text(size, s)), Form(neg(size), lambda s: text(neg(size), s))]
    )
    changed += mutated(
        "extra solution", [Form(("set", size, neg(size), tree(0)), lambda s: f"0, \\pm {text(size, s)}")]
    )
    larger = add(size, 1) if size.head != "number" else tree(size.value + 1)
    changed += mutated("off by one", [rng.choice(forms_of(larger))])
    changed += mutated("scale", [rng.choice(forms_of(mul(2, size)))])
    changed += mutated("relation", [words(f"|{letter}| < {text(size)}"), words(f"{letter} \\ne \\pm {text(size)}")])
    return Case(forms_of(size), changed)


def sets(rng: Random) -> Case:
    """Explicit sets."""
    items = entries(rng, rng.randint(2, 5))
    first, *rest = items

    def spelt(items: Row) -> Form:
        return one_of_set(items)

    def nested(inner: str) -> Form:
        return words(f"\\{{{inner}\\}}")

    plain = [text(item) for item in items]
    together = ", ".join(plain)
    changed = mutated(
        "nesting",
        [
            nested(f"\\{{{together}\\}}"),
            nested(", ".join(f"\\{{{one}\\}}" for one in plain)),
            nested(f"{plain[0]}, \\{{{', '.join(plain[1:])}\\}}"),
            nested(f"({together})"),
        ],
    )
    changed += mutated("missing solution", [spelt(rest), spelt(items[:-1])])
    changed += mutated("extra solution", [spelt([*items, tree(41)]), spelt([tree(-31), *items])])
    changed += mutated("sign", [spelt([neg(first), *rest])]) + mutated(
        "off by one", [spelt([tree(first.value + 1), *rest])]
    )
    changed += mutated("empty", [words(r"\emptyset")])
    forms = [spelt(items), spelt(items), spelt(shuffled(items, rng)), spelt(shuffled(items, rng))]
    forms += said(
        ("set", *items), f"\\lbrace {together} \\rbrace", f"\\{{ {together} \\}}", f"\\left\\{{{together}\\right\\}}"
    )
    return Case(forms, changed)


def tuples(rng: Random) -> Case:
    """Points and other tuples that can't be intervals."""
    items = entries(rng, rng.randint(2, 4))
    if len(items) == 2 and items[0].value < items[1].value:
        items.reverse()
    plain = [text(item) for item in items]

    def spelt(items: Row) -> Form:
        return Form(("tuple", *items), lambda s: bracketed(joined(items, s, ", " if s.spaced else ","), s))

    names = {2: ("x", "y"), 3: ("x", "y", "z"), 4: ("a", "b", "c", "d")}[len(items)]

    def named(items: Row, names: Sequence[str]) -> list[Form]:
        meaning: Meaning = ("tuple", *items)
        pairs = list(zip(names, items, strict=True))
        return [
            Form(meaning, lambda s: ", ".join(f"{n} = {text(i, s)}" for n, i in pairs)),
            Form(meaning, lambda s: f"({', '.join(names)}) = {bracketed(joined(items, s), s)}"),
            Form(meaning, lambda s: ", ".join(f"{n} = {text(i, s)}" for n, i in rng.sample(pairs, len(pairs)))),
        ]

    swapped = [items[1], items[0], *items[2:]]
    turned = [*items[1:], items[0]]
    first, *rest = items
    changed = mutated("order", [spelt(swapped), spelt(turned), spelt(items[::-1]), *named(swapped, names)[:2]])
    changed += mutated(
        "swapped names", [words(", ".join(f"{n} = {one}" for n, one in zip(reversed(names), plain, strict=True)))]
    )
    changed += mutated("sign", [spelt([neg(first), *rest]), *named([*items[:-1], neg(items[-1])], names)[:1]])
    changed += mutated("off by one", [spelt([*items[:-1], tree(items[-1].value + 1)])])
    changed += mutated(
        "missing part", [spelt([*items[:-1], *([] if len(items) > 2 else [tree(7)])]), words(f"x = {plain[0]}")]
    )
    changed += mutated("extra part", [spelt([*items, tree(0)])])
    changed += mutated(
        "nesting",
        [
            words(f"(({', '.join(plain[:-1])}), {plain[-1]})")
            if len(plain) > 2
            else words(f"({plain[0]}, ({plain[1]}, 0))")
        ],
    )
    changed += mutated(
        "nesting",
        [
            words(f"(({', '.join(plain)}), ({', '.join(plain)}))"),
            words(f"\\{{({', '.join(plain)}), ({', '.join(reversed(plain))})\\}}"),
        ],
    )
    return Case(
        [spelt(items), spelt(items), *said(("tuple", *items), f"({','.join(plain)})"), *named(items, names)], changed
    )


def points(rng: Random) -> Case:
    """Several points, in any order."""
    items = [entries(rng, 2) for _ in range(rng.randint(2, 3))]
    if len({(p.value, q.value) for p, q in items}) < len(items):
        return points(rng)

    def spelt(items: Sequence[Row], joint: str = ", ") -> Form:
        tuples: list[Meaning] = [("tuple", *item) for item in items]
        meaning: Meaning = ("set", *tuples)
        return Form(meaning, lambda s: joint.join(bracketed(joined(item, s), s) for item in items))

    turned = rng.sample(items, len(items))
    (a, b), (c, d), *more = items
    changed = mutated("order", [spelt([[b, a], [c, d], *more]), spelt([[b, a], [d, c], *more])])
    changed += mutated("mixed points", [spelt([[a, d], [c, b], *more]), spelt([[a, c], [b, d], *more])])
    changed += mutated("missing solution", [spelt(items[1:]), spelt(items[:-1])])
    changed += mutated("extra solution", [spelt([*items, [tree(0), tree(31)]])])
    changed += mutated("sign", [spelt([[neg(a), b], [c, d], *more]), spelt([[a, b], [c, neg(d)], *more])])
    changed += mutated("off by one", [spelt([[a, tree(b.value + 1)], [c, d], *more])])
    changed += mutated("nesting", [words(", ".join(text(n) for item in items for n in item))])
    return Case(
        [spelt(items), spelt(items), spelt(turned), spelt(turned, r" \text{ and } "), spelt(turned, "; ")], changed
    )


def matrices(rng: Random) -> Case:
    """Matrices of two or three rows."""
    height, width = rng.choice(((2, 2), (2, 2), (2, 3), (3, 3), (3, 2)))
    rows = [[tree(rng.randint(-9, 9)) for _ in range(width)] for _ in range(height)]
    rows[0][0], rows[0][1], rows[1][0] = map(tree, rng.sample(range(-9, 10), 3))

    def forms_of(rows: Sequence[Row]) -> list[Form]:
        lines: list[Meaning] = [("row", *row) for row in rows]
        meaning: Meaning = ("matrix", *lines)

        def inside(style: Style) -> str:
            return BREAK.join(" & ".join(text(entry, style) for entry in row) for row in rows)

        def within(name: str, options: str = "", around: tuple[str, str] = ("", "")) -> Form:
            begin, end = f"\\begin{{{name}}}{options}", f"\\end{{{name}}}"
            return Form(meaning, lambda s: f"{around[0]}{begin} {inside(s)} {end}{around[1]}")

        columns = f"{{{'c' * len(rows[0])}}}"
        return [
            within("pmatrix"),
            within("bmatrix"),
            within("pmatrix"),
            within("array", columns, (r"\left(", r"\right)")),
            within("array", columns, (r"\left[", r"\right]")),
            within("matrix", "", (r"\left[", r"\right]")),
            Form(meaning, lambda s: "[" + ", ".join(f"[{joined(row, s)}]" for row in rows) + "]"),
        ]

    def other(rows: Sequence[Row]) -> Form:
        return rng.choice(forms_of(rows))

    flipped = [list(row) for row in zip(*rows, strict=True)]
    (first, *others), *below = rows
    inside = BREAK.join(" & ".join(map(text, row)) for row in rows)
    changed = mutated("order", [other(flipped), other(rows[::-1]), other([row[::-1] for row in rows])])
    changed += mutated(
        "sign", [other([[neg(first), *others], *below]), other([[neg(one) for one in row] for row in rows])]
    )
    changed += mutated("off by one", [other([[tree(first.value + 1), *others], *below])])
    changed += mutated(
        "missing part",
        [other(rows[:-1]) if height > 2 else words(f"\\begin{{pmatrix}} {text(first)} \\end{{pmatrix}}")],
    )
    changed += mutated("determinant", [words(f"\\begin{{vmatrix}} {inside} \\end{{vmatrix}}")])
    changed += mutated("nesting", [words(", ".join(text(entry) for row in rows for entry in row))])
    changed += mutated(
        "exponent", [words(f"\\begin{{pmatrix}} {inside} \\end{{pmatrix}}^{power}") for power in ("T", "2", "{-1}")]
    )
    changed += mutated("scale", [words(f"2\\begin{{pmatrix}} {inside} \\end{{pmatrix}}")])
    return Case(forms_of(rows), changed)


def vectors(rng: Random) -> Case:
    """Column vectors."""
    items = entries(rng, rng.randint(2, 3))

    def forms_of(items: Row) -> list[Form]:
        meaning: Meaning = ("vector", *items)

        def within(begin: str, end: str) -> Form:
            return Form(meaning, lambda s: f"{begin} {joined(items, s, BREAK)} {end}")

        stacked = [within(f"\\begin{{{name}}}", f"\\end{{{name}}}") for name in ("pmatrix", "bmatrix", "pmatrix")]
        return [*stacked, within(r"\left(\begin{array}{c}", r"\end{array}\right)")]

    first, *rest = items
    changed = mutated("order", [rng.choice(forms_of(items[::-1])), rng.choice(forms_of([*rest, first]))])
    changed += mutated(
        "sign", [rng.choice(forms_of([neg(first), *rest])), rng.choice(forms_of([neg(one) for one in items]))]
    )
    changed += mutated("off by one", [rng.choice(forms_of([*items[:-1], tree(items[-1].value + 1)]))])
    changed += mutated("extra part", [rng.choice(forms_of([*items, tree(0)]))])
    changed += mutated("scale", [rng.choice(forms_of([tree(2 * one.value) for one in items]))])
    return Case(forms_of(items), changed)


COLLECTION_KINDS: dict[str, tuple[int, Kind]] = {
    "solutions": (4, solutions),
    "both signs": (1, both_signs),
    "set": (3, sets),
    "tuple": (3, tuples),
    "points": (2, points),
    "matrix": (3, matrices),
    "vector": (1, vectors),
}
"""The kinds, each with its weight."""
