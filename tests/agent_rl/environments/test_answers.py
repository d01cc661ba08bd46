"""What answers_equal holds to be the same, kind by kind, and what it must never accept."""

from __future__ import annotations

import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.environments.maths.rewards import answers_equal, check
from agent_rl.evaluation import reward_audit


def cases_of(path: Path) -> list[tuple[str, str]]:
    """Two answers a line, between them a double bar; a line that begins with a number sign names the class below it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("||") for line in lines if not line.startswith("#")]
    return [(gold.strip(), prediction.strip()) for gold, prediction in pairs]


AUDITED = Path(reward_audit.__file__).parent
ONE_WAY = [("1,2", "y=1, x=2"), ("18", r"18\text{ ways}"), ("1", "x/x"), ("0", "x-x"), ("1", r"\sin^2 x + \cos^2 x")]
ONE_WAY += [("x=5", "x-3=2"), ("x=5", "0=5-x")]
"""Right with the sides exchanged: a gold may order what it names, say what it counts, and be unsolved."""


def test_equal_answers() -> None:
    assert answers_equal("100200", "100,200")
    assert answers_equal("1,000", "1000")
    assert not answers_equal("100,200", "100200")  # a list of two, as well as it can be told
    assert [pair for pair in cases_of(AUDITED / "answers_equal.txt") if not answers_equal(*pair)] == []


def test_different_answers() -> None:
    wrong = cases_of(AUDITED / "answers_different.txt")
    assert [pair for pair in wrong if answers_equal(*pair)] == []
    assert [pair for pair in wrong if answers_equal(*reversed(pair)) and pair not in ONE_WAY] == []


def test_a_number_is_worked_out() -> None:
    unfinished = cases_of(Path(__file__).with_name("unfinished.txt"))
    assert [pair for pair in unfinished if check(*pair) != "right by value"] == []
    number_first = [(gold, prediction) for prediction, gold in unfinished if "=" not in gold]
    assert [pair for pair in number_first if not answers_equal(*pair)] == []


def test_a_product_of_primes_has_these_factors() -> None:
    gold = r"2^3\cdot3"
    assert [each for each in (r"3\cdot2^3", r"2^{3}\times3", "24") if not answers_equal(gold, each)] == []
    others = (r"2\cdot12", r"4\cdot6", r"8\cdot3", r"2^2\cdot6")
    assert [each for each in others if check(gold, each) != "right by value"] == []


PROBLEM = r"Factor $x^2-1$. Reduce $\frac{30}{45}$, then $0.5 + \dfrac{1}{\sqrt{2}}$. Factor $2x+6$. Solve $y - 3x = 1$ for $f(x) = 2(x+3)$."


@pytest.mark.parametrize(
    ("gold", "copied", "own"),
    [
        ("(x-1)(x+1)", ["x^2-1", "y = x^{2} - 1", r"\left(x^2-1\right)", "-1 + x^2", "xx-1"], ["(x+1)(x-1)"]),
        (r"\frac23", [r"\frac{30}{45}", "30/45", r"x = \dfrac{30}{45}", r"\frac{60}{90}"], ["2/3", "0.666667"]),
        (r"\frac{\sqrt2}{2}", [r"\frac{1}{\sqrt 2}"], [r"\sqrt{2}/2", r"\frac12 \sqrt{2}"]),
        (r"\frac12", ["0.5", "x = 0.5"], ["1/2", r"50\%"]),
        ("y=3x+1", ["y-3x=1"], ["y = 1+3x"]),
        ("f(x)=2x+6", ["f(x)=2(x+3)", "2(x+3)"], ["g(t)=6+2t"]),
        ("2(x+3)", ["2x+6", r"\{-(-(6+2x))\}", "2x+6+0", r"\frac{6+2x}{1}"], ["(3+x)2"]),
        (r"45\text{ ways}", [], ["45", "45.0"]),
        (r"-\frac{30}{45}", [], ["-30/45", r"\frac{-30}{45}"]),
    ],
)
def test_what_is_copied_from_the_problem_is_no_answer(gold: str, copied: list[str], own: list[str]) -> None:
    assert [text for text in copied if check(gold, text, PROBLEM) != "right by value"] == []
    assert [text for text in [gold, *own] if not answers_equal(gold, text, PROBLEM)] == []
    assert [text for text in copied if not answers_equal(gold, text)] == []


@pytest.mark.parametrize("asked", ["from least to greatest", "in order of their size", "in decreasing order"])
def test_a_list_is_in_the_order_that_the_problem_asks_for(asked: str) -> None:
    for gold, other in [
        ("1, 2, 3", "2, 1, 3"),
        (r"\text{E, D, A}", r"\text{A, D, E}"),
        ("(0,1), (2,0)", "(2,0), (0,1)"),
    ]:
        assert answers_equal(gold, gold, f"List them {asked}.")
        assert not answers_equal(gold, other, f"List them {asked}.")
        assert answers_equal(gold, other, "List them in order that all are named.")
    assert answers_equal("1, -1, 7, -7", "-7, -1, 1, 7", f"Of three integers {asked}, find all possible sums.")


HOSTILE = {
    "a tower of powers": "9**9**9",
    "a longer tower": "2^" * 600 + "2",
    "a tower in braces": "10^{10^{10^{10}}}",
    "factorials": "3" + "!" * 500,
    "a large factorial": "(10^{9})!",
    "parentheses": "(" * 2000 + "2" + ")" * 2000,
    "roots": r"\sqrt{" * 300 + "4" + "}" * 300,
    "unclosed roots": r"\sqrt{" * 3000,
    "fractions": r"\frac" * 500,
    "signs": "-" * 1400 + "2",
    "factors": "x " * 700,
    "digits": "9" * 100_000,
    "a list": "1," * 50_000 + "2",
    "boxes": r"\boxed{1}," * 20_000,
    "openings": r"\(" * 20_000,
    "braces": "{" * 100_000,
    "spaces": "1" + " " * 50_000 + "2",
    "words": "5 " + "of the apples " * 100,
    "scale words": "5 " + "million " * 150,
    "spelt numbers": "one hundred and " * 90 + "one",
    "units": "5\\text{ m" + "/s" * 700 + "}",
    "units in pieces": "5" + r"\text{ m}\cdot" * 100 + r"\text{s}",
    "unit powers": "5 cm" + "^9" * 500,
    "colons": "1:" * 700 + "1",
    "rows": "[" + "1 2;" * 300 + "1 2]",
    "boxes in boxes": r"\boxed{" * 200 + "1, 3" + "}" * 200,
    "lines": "\n" * 50_000 + "x",
    "dollars": "$" * 50_000 + "x",
    "letters": "a" * 50_000,
    "code": "__import__('os').system('touch /tmp/owned')",
    "code in a box": r"\boxed{__import__('os').getpid()}",
    "a lambda": "(lambda: 2)()",
    "an assignment": "x := 3",
    "a conditional": "2 if True else 3",
    "attributes": "().__class__.__base__.__subclasses__()",
    "bytes": "2\x00\ud800\x1b",
    "a matrix over zero": r"\frac10\begin{pmatrix}1&2\\3&4\end{pmatrix}",
    "nothing": "",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_refused_at_once(text: str) -> None:
    started = time.process_time()
    assert not answers_equal("2", text)
    assert not answers_equal(text, "2")
    assert time.process_time() - started < 1


def test_nothing_that_is_written_is_run() -> None:
    """Neither eval, exec nor compile is called from within the checker."""
    program = r"""
import builtins, sys
from agent_rl.environments.maths.rewards import answers_equal
answers_equal("1", r"\lim_{x \to 0} \frac{\sin x}{x}"); answers_equal("2", "x^2+y")  # whatever imports compile, they have
caught = []
def watch(event, arguments):
    if event in ("exec", "compile", "os.system", "subprocess.Popen", "open"):
        caught.append((event, str(arguments)[:80]))
sys.addaudithook(watch)
for text in ("__import__('os').system('true')", "9+__import__('os').getpid()", "exec('1')", r"\sum_{k=1}^{3} __import__",
             r"\int_0^1 exec('1') dx", "lambda: 2", "x=2; import os"):
    assert not answers_equal("7", text), text
assert not caught, caught
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_finding_an_answer_imports_no_mathematics() -> None:
    program = (
        "import sys; from agent_rl.environments.maths.rewards import exactly_equal, final_answer; exactly_equal('1', '2'); final_answer('');"
        "assert not {'mpmath', 'sympy', 'math_verify', 'latex2sympy2_extended'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
    program = (
        "import sys; from agent_rl.environments.maths.rewards import answers_equal; assert answers_equal('x^2-1', '(x-1)(x+1)');"
        "assert not {'sympy', 'math_verify', 'latex2sympy2_extended'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


rationals = st.fractions(min_value=-50, max_value=50, max_denominator=60)


@given(value=rationals, other=rationals, style=st.integers(0, 3))
def test_fractions_are_compared_exactly_however_written(value: Fraction, other: Fraction, style: int) -> None:
    numerator, denominator = other.numerator, other.denominator
    written = (
        rf"\frac{{{numerator}}}{{{denominator}}}",
        f"{3 * numerator}/{3 * denominator}",
        rf"x = \dfrac{{{2 * numerator}}}{{{2 * denominator}}}",
        rf"\left({numerator}\right)\div{denominator}",
    )[style]
    assert answers_equal(f"{value.numerator}/{value.denominator}", written) is (value == other)


@given(
    coefficients=st.lists(st.integers(-9, 9), min_size=1, max_size=4),
    change=st.integers(-2, 2),
    shift=st.integers(1, 4),
)
def test_polynomials_are_equal_where_they_are_the_same_function(
    coefficients: list[int], change: int, shift: int
) -> None:
    gold = " + ".join(f"({coefficient}) (x-{shift})^{{{power}}}" for power, coefficient in enumerate(coefficients))
    expanded = [0] * len(coefficients)
    for power, coefficient in enumerate(coefficients):
        for index in range(power + 1):
            binomial = Fraction(1)
            for step in range(index):
                binomial = binomial * (power - step) / (step + 1)
            expanded[index] += int(coefficient * binomial * (-shift) ** (power - index))
    expanded[-1] += change
    prediction = " + ".join(rf"({coefficient}) \cdot x^{power}" for power, coefficient in enumerate(expanded))
    assert answers_equal(gold, prediction) is (change == 0)


PIECES = [*"0123456789xyeiABf+-*/^_=<>()[]{}|!%,;:.'\" $~&", *[r"\frac", r"\sqrt", r"\boxed{", r"\text{", r"\pi", r"\infty", r"\pm", r"\cup", r"\in", r"\le", r"\ne", r"\{", r"\}", r"\left(", r"\right)", r"\\", r"and", r"or", r"\begin{pmatrix}", r"\end{pmatrix}", r"\lim", r"\log_", r"\binom", r"\%", r"^\circ", r"\langle", r"\mathbb{R}", r"\setminus", r"cm", r"not", r"...", r"is"]]  # fmt: skip


@settings(max_examples=400)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
def test_any_text_gets_a_verdict_and_none_is_a_wildcard(pieces: list[str]) -> None:
    text = "".join(pieces)
    if "lim" in text:  # sympy may take long
        text = text.replace("\\lim", "")
    accepted = [
        gold for gold in ("2", "-7", "1/3", "x+1", "(3, 8)", r"\{4, 9\}", "x > 5", "even") if answers_equal(gold, text)
    ]
    assert len(accepted) <= 1
    assert isinstance(answers_equal(text, text), bool)


def test_a_list_is_no_number_and_a_point_does_not_vanish() -> None:
    lists = {"3,5": (r"\frac72", "3.5", "3,50"), "0,1": (r"\frac{1}{10}", r"10\%", "0.1")}
    points = {"15": (r"1\rm.5",), "25": (r"2\left.5", r"2\bigg.5"), "7": (r"0\therefore.7",), "23": (r"2\hspace{1}3",)}
    wrong = [(gold, each) for gold, texts in (lists | points).items() for each in texts]
    assert [pair for pair in wrong if answers_equal(*pair)] == []
