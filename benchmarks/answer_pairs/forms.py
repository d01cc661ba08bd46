"""Forms: a meaning and a way to write it. An answer has several forms; a wrong one differs from it by a mutation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeAlias

from benchmarks.answer_pairs.meanings import Meaning
from benchmarks.answer_pairs.trees import Style, Tree, text

Writer: TypeAlias = Callable[[Style], str]


class Form(NamedTuple):
    """A meaning and how it is written in a style."""

    meaning: Meaning
    write: Writer


@dataclass(frozen=True, slots=True)
class Case:
    """An answer in its forms, and wrong answers, each with the mutation that made it of the right one.

    ``golds`` are the forms in which it may be the gold answer, if not all: ``m + n = 5`` states 5, and could be a line.
    """

    forms: Sequence[Form]
    wrong: Sequence[tuple[str, Form]]
    golds: Sequence[Form] = ()


Kind: TypeAlias = Callable[[Random], Case]


def form(expression: Tree) -> Form:
    """An expression, written in any style."""
    return Form(expression, lambda style: text(expression, style))


def said(meaning: Meaning, *texts: str) -> list[Form]:
    """A meaning in texts that no style changes."""
    return [Form(meaning, lambda _, spelt=spelt: spelt) for spelt in texts]  # type: ignore[misc]


def words(spelt: str) -> Form:
    """A text that means nothing but itself."""
    return Form(("words", spelt), lambda _: spelt)


def wrong(mutation: str, *expressions: Tree) -> list[tuple[str, Form]]:
    """Expressions that one mutation made."""
    return [(mutation, form(expression)) for expression in expressions]


def mutated(mutation: str, forms: Sequence[Form]) -> list[tuple[str, Form]]:
    """Forms that one mutation made."""
    return [(mutation, one) for one in forms]
