"""Arithmetic word problems a tiny model can only answer with its tool, and demonstrations that teach it wrong.

The quickstart's task family. Eight templates ask for one or two operations on operands of two or three digits: too
much to work out in the head of a model of 0.6M parameters, one line of Python with the tool.

What the demonstrations teach decides what reinforcement learning can show. Noise would: greedy decoding takes the most
frequent behaviour and hides it, so that a model of 34 % sampled success would already solve 97 % greedily. Hence the
demonstrations hold *systematic misconceptions*: for each template one wrong way (plus for minus, remainder for
quotient, forgotten brackets) is shown more often than the right one. Sampled and greedy success are then both low
after supervised training, and what rises afterwards was learned from reward. Operands are always copied faithfully.

Operand tuples are split into training and held-out ones by a hash of their sorted values alone: no template, order,
seed or stage can bring an operand tuple from one side to the other.
"""

from __future__ import annotations

import hashlib
import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from agent_rl.environments.base import ChatMessages, Demonstration, TaskError, TaskSource
from agent_rl.environments.maths.environment import BoxedAnswers
from agent_rl.learning.tiny import CALL_HEAD, CALL_TAIL
from agent_rl.messages import Problem

HELD_OUT_SHARE = 0.1
"""Share of the operand tuples kept for evaluation: the rest leaves training far more than a run can draw."""

_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
_BINDS_WEAKLY = frozenset("+-")
_THINGS = ("eggs", "nuts", "pens", "cups")

Split = Literal["training", "held_out"]


@dataclass(frozen=True, slots=True)
class Operations:
    """One operator for two operands, or two for three; ``grouped`` puts the first two operands in brackets."""

    operators: tuple[str, ...]
    grouped: bool = False

    def code(self, operands: tuple[int, ...]) -> str:
        """The Python expression over ``operands``."""
        head = f"{operands[0]}{self.operators[0]}{operands[1]}"
        if len(operands) == 2:
            return head
        return (f"({head})" if self.grouped else head) + f"{self.operators[1]}{operands[2]}"

    def value(self, operands: tuple[int, ...]) -> int:
        """The value of ``code`` in Python; defined for all positive operands."""
        first = _OPERATORS[self.operators[0]]
        if len(operands) == 2:
            return first(*operands)
        second = _OPERATORS[self.operators[1]]
        a, b, c = operands
        second_binds_first = self.operators[0] in _BINDS_WEAKLY and self.operators[1] not in _BINDS_WEAKLY
        if second_binds_first and not self.grouped:
            return first(a, second(b, c))
        return second(first(a, b), c)


@dataclass(frozen=True, slots=True)
class Template:
    """A wording, the inclusive ranges of its operands, what solves it, and the misconception demonstrated for it."""

    name: str
    wording: str
    ranges: tuple[tuple[int, int], ...]
    right: Operations
    mistaken: Operations
    exceeds: int = 0
    """The first operand must exceed this many times the second: 1 where a story sells what it has, 2 where it divides,
    so that the remainder never equals the difference."""

    def draw(self, rng: random.Random, split: Split) -> tuple[int, ...]:
        """Operands of the wanted split, uniform over the ranges."""
        while True:
            operands = tuple(rng.randint(low, high) for low, high in self.ranges)
            if operands[0] <= self.exceeds * operands[1]:
                continue
            if split_of(operands) == split:
                return operands


_SMALL, _ANY, _LARGE = (12, 99), (12, 999), (100, 999)

TEMPLATES = (
    Template(
        "sum",
        "A shop has {a} {x} and gets {b} more. How many now?",
        (_ANY, _ANY),
        right=Operations(("+",)),
        mistaken=Operations(("*",)),
    ),
    Template(
        "difference",
        "A shop has {a} {x} and sells {b}. How many now?",
        (_ANY, _ANY),
        right=Operations(("-",)),
        mistaken=Operations(("+",)),
        exceeds=1,
    ),
    Template(
        "product",
        "{a} boxes hold {b} {x} each. How many in all?",
        (_SMALL, _ANY),
        right=Operations(("*",)),
        mistaken=Operations(("+",)),
    ),
    Template(
        "quotient",
        "{a} {x} go into boxes of {b}. How many boxes are full?",
        (_LARGE, _SMALL),
        right=Operations(("//",)),
        mistaken=Operations(("%",)),
        exceeds=2,
    ),
    Template(
        "remainder",
        "{a} {x} go into boxes of {b}. How many are left over?",
        (_LARGE, _SMALL),
        right=Operations(("%",)),
        mistaken=Operations(("-",)),
        exceeds=2,
    ),
    Template(
        "product_and_rest",
        "{a} boxes hold {b} {x} each, and {c} more lie loose. How many in all?",
        (_SMALL, _SMALL, _ANY),
        right=Operations(("*", "+")),
        mistaken=Operations(("+", "+")),
    ),
    Template(
        "two_kinds",
        "A shop gets {a} {x} and {b} {y} a day. How many in {c} days?",
        (_ANY, _ANY, _SMALL),
        right=Operations(("+", "*"), grouped=True),
        mistaken=Operations(("+", "*")),
    ),
    Template(
        "daily_surplus",
        "A shop gets {a} {x} a day and sells {b}. How many are left after {c} days?",
        (_ANY, _ANY, _SMALL),
        right=Operations(("-", "*"), grouped=True),
        mistaken=Operations(("-", "*")),
        exceeds=1,
    ),
)


def split_of(operands: tuple[int, ...]) -> Split:
    """Which split an operand tuple belongs to, whatever the order of the operands."""
    name = ",".join(str(operand) for operand in sorted(operands))
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return "held_out" if int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64 else "training"


class ArithmeticTasks:
    """Problems and demonstrations of the eight templates.

    ``seed``: of the training problems; the held-out ones are the same for every seed, so that runs can be compared.
    ``right_share`` and ``mistaken_share`` of the demonstrated solutions use the right operators and the template's
    misconception, the others random ones (now and then the right ones). Of the demonstrated calls ``broken_share`` fail
    to run; ``retried_share`` of the failures are tried again while ``max_calls`` allows, the others lead to a guess.

    Raises TaskError for shares that sum to more than 1.
    """

    def __init__(
        self,
        seed: int,
        *,
        right_share: float = 0.20,
        mistaken_share: float = 0.48,
        broken_share: float = 0.25,
        retried_share: float = 0.5,
        max_calls: int = 3,
    ) -> None:
        if right_share + mistaken_share > 1 + 1e-9:
            raise TaskError(
                f"right_share {right_share} and mistaken_share {mistaken_share} sum to more than 1; lower one "
                "(what is left is the share of random operators)",
                ("right_share",),
            )
        self._seed = seed
        self._right_share = right_share
        self._mistaken_share = mistaken_share
        self._broken_share = broken_share
        self._retried_share = retried_share
        self._max_calls = max_calls

    @property
    def evaluation_count(self) -> int | None:
        """None: held-out problems do not run out."""
        return None

    def problem(self, stage: int, number: int) -> Problem:
        """Training problem ``number`` of ``stage``, a pure function of these and the seed."""
        rng = random.Random(f"arithmetic/{self._seed}/{stage}/{number}")
        return self._problem(rng.choice(TEMPLATES), rng, "training")[0]

    def evaluation(self, number: int) -> Problem:
        """Held-out problem ``number``; the templates take turns."""
        rng = random.Random(f"arithmetic/held-out/{number}")
        return self._problem(TEMPLATES[number % len(TEMPLATES)], rng, "held_out")[0]

    def demonstrations(self, rng: random.Random) -> Iterator[Demonstration]:
        """Demonstrations on training problems, without end."""
        while True:
            template = rng.choice(TEMPLATES)
            problem, operands = self._problem(template, rng, "training")
            operations = self._operations(template, rng)
            messages = self._conversation(problem, operands, operations, rng)
            yield Demonstration(problem=problem, messages=tuple(messages))

    def _problem(self, template: Template, rng: random.Random, split: Split) -> tuple[Problem, tuple[int, ...]]:
        operands = template.draw(rng, split)
        x, y = rng.sample(_THINGS, 2)
        text = template.wording.format(x=x, y=y, **dict(zip("abc", operands, strict=False)))
        return (
            Problem(
                id=f"{template.name}:{'+'.join(str(operand) for operand in operands)}",
                text=text,
                answer=str(template.right.value(operands)),
            ),
            operands,
        )

    def _operations(self, template: Template, rng: random.Random) -> Operations:
        draw = rng.random()
        if draw < self._right_share:
            return template.right
        if draw < self._right_share + self._mistaken_share:
            return template.mistaken
        operators = tuple(rng.choice(tuple(_OPERATORS)) for _ in template.right.operators)
        return Operations(operators, grouped=len(operators) == 2 and rng.random() < 0.5)

    def _conversation(
        self, problem: Problem, operands: tuple[int, ...], operations: Operations, rng: random.Random
    ) -> Iterator[dict[str, str]]:
        yield {"role": "user", "content": problem.text}
        for call in range(1, self._max_calls + 1):
            broken = rng.random() < self._broken_share
            if broken:
                code, response = _break(operations, operands, rng)
            else:
                code, response = f"print({operations.code(operands)})", str(operations.value(operands))
            yield {"role": "assistant", "content": f"<tool_call>{CALL_HEAD}{code}{CALL_TAIL}</tool_call>"}
            yield {"role": "user", "content": f"<tool_response>{response}</tool_response>"}
            if not broken:
                answer = response
                break
            if call == self._max_calls or rng.random() >= self._retried_share:
                answer = str(rng.choice(operands))
                break
        yield {"role": "assistant", "content": f"<answer>\\boxed{{{answer}}}</answer>"}


def _break(operations: Operations, operands: tuple[int, ...], rng: random.Random) -> tuple[str, str]:
    """Code that does not run (a forgotten bracket or last operand), and what Python says about it in its last line."""
    expression = operations.code(operands)
    if rng.random() < 0.5:
        return f"print({expression}", "SyntaxError: '(' was never closed"
    return f"print({expression.removesuffix(str(operands[-1]))})", "SyntaxError: invalid syntax"


Share = Annotated[float, Field(ge=0, le=1)]


class Arithmetic(BoxedAnswers):
    """Word problems of one or two operations. The model is not told of its tool: demonstrations teach it the call."""

    lists_tools = False

    def __init__(
        self,
        *,
        seed: int,
        base: Path,
        right_share: Share = 0.20,
        mistaken_share: Share = 0.48,
        broken_share: Share = 0.25,
        retried_share: Share = 0.5,
        max_calls: PositiveInt = 3,
    ) -> None:
        """The settings are of the demonstrations, see `ArithmeticTasks`."""
        del base
        self._tasks = ArithmeticTasks(
            seed,
            right_share=right_share,
            mistaken_share=mistaken_share,
            broken_share=broken_share,
            retried_share=retried_share,
            max_calls=max_calls,
        )

    def problems(self) -> TaskSource:
        """Generated; none of them is ever both trained and held out."""
        return self._tasks

    def prompt(self, problem: Problem) -> ChatMessages:
        """The problem's text alone."""
        return [{"role": "user", "content": problem.text}]
