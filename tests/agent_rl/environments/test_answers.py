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

from agent_rl.environments.maths.rewards import answers_equal, final_answer


def cases(table: str) -> list[tuple[str, str]]:
    """Two answers a line, between them a double bar; a line that begins with a number sign names the class below it."""
    return [
        (gold.strip(), prediction.strip())
        for line in table.strip().splitlines()
        if not line.startswith("#")
        for gold, prediction in [line.split("||")]
    ]


def cases_of(file: str) -> list[tuple[str, str]]:
    """The pairs in a file beside this one."""
    return cases((Path(__file__).parent / file).read_text(encoding="utf-8"))


EQUAL = cases(r"""
    \frac{1}{2} || 0.5
    0.5 || \dfrac12
    \frac{14}{3} || 4\frac{2}{3}
    \frac{14}{3} || 4 2/3
    -\frac{1}{2} || \frac{-1}{2}
    1000.99 || 1000,99
    1,22 || 1.22
    1000.99 || 1,000.99
    32349 || 32,\! 349
    100200 || 100,200
    1024 || 2^{10}
    1500 || 1.5\times10^{3}
    0.001 || 1e-3
    6 || 2(3)
    -4 || -2^2
    120 || 5!
    10 || \binom{5}{2}
    11 || 1011_2
    \frac13 || 0.\overline{3}
    \frac{5}{11} || 0.\overline{45}
    3\sqrt{2} || \sqrt{18}
    \frac{\sqrt{3}}{3} || \frac{1}{\sqrt{3}}
    \sqrt{5+2\sqrt6} || \sqrt2+\sqrt3
    -2 || \sqrt[3]{-8}
    \sqrt[3]{2} || 2^{1/3}
    \frac{\pi^2}{6} || pi**2/6
    4\sqrt5 || 4*sqrt(5)
    2\pi || 2 π
    6-5i || -5i+6
    -1 || e^{i\pi}
    2i || \sqrt{-4}
    \log_{2} 3 || \frac{\ln 3}{\ln 2}
    \ln 6 || \ln 2 + \ln 3
    \arctan 2 || \tan^{-1}(2)
    \frac{1}{2} || \sin 30^\circ
    2 || 17 \bmod 5
    x^2+2x+1 || (x+1)^2
    x^2+2x || x**2 + 2*x
    \frac{n(n+1)}{2} || \binom{n+1}{2}
    \frac{(n-1)!}{k!} \frac{n}{(n-k)!} || \frac{n!}{k!(n-k)!}
    \cos 2x || 1-2\sin^2 x
    |x| || \sqrt{x^2}
    \frac{a}{b} || \frac ab
    \lfloor x \rfloor + 1 || \lfloor x+1 \rfloor
    \frac{1}{3} || 0.333333
    0.3 || 0.30000000000000004
    \sqrt{2} \approx 1.414 || \sqrt 2
    28\% || 28 percent
    50 || 50\%
    50\% || 0.5
    \frac34 || 75\%
    90^\circ || 90
    90^\circ || \frac{\pi}{2}
    30^\circ || 30 degrees
    5 || 5\text{ cm}
    5\text{ cm} || 5
    12\text{ cm}^2 || 12 \text{ square centimeters}
    1 \text{ hour} || 60 \text{ minutes}
    60 \text{ mph} || 60 miles per hour
    18 || 18\text{ ways}
    10 || \$10.00
    1000 || 1000 dollars
    1,2,3 || \{3, 2, 1\}
    1 and 2 and 3 || 1,2,3
    19, 46, and 82 || 19, 46, \text{ and } 82
    -5; 3 || x=3 \text{ or } x=-5
    1 \pm \sqrt{19} || 1+\sqrt{19}, 1-\sqrt{19}
    (1,2),(3,4) || (3,4) \text{ and } (1,2)
    \{1,1,2\} || \{1,2\}
    1,2 || 1,2,2
    (3, \frac{\pi}{2}) || \left(3, \frac{\pi}{2}\right)
    (2,-1,3) || \langle 2,-1,3 \rangle
    (2,-1,3) || \begin{pmatrix} 2 \\ -1 \\ 3 \end{pmatrix}
    \begin{pmatrix}1&2\\3&4\end{pmatrix} || \begin{bmatrix}1&2\\3&4\end{bmatrix}
    \begin{pmatrix}1&2\\3&4\end{pmatrix} || \left(\begin{array}{cc}1&2\\3&4\end{array}\right)
    \begin{pmatrix}1&2\\3&4\end{pmatrix} || [[1,2],[3,4]]
    [-1, 0) \cup (0, 1) || (0,1) \cup [-1,0)
    (-\infty,1]\cup[10,+\infty) || c \in \left(-\infty, 1\right]\cup[10,+\infty)
    (-\infty, 0) \cup (0, \infty) || \mathbb{R}\setminus\{0\}
    (-\infty, 0) \cup (0, \infty) || x \neq 0
    [2,5) || 2 \le x < 5
    (0,1) || ]0,1[
    x>2 || \{x \mid x>2\}
    x \ge 5 || 5 \leq x
    x < 1 || -x > -1
    x<-1 \text{ or } x>1 || (-\infty,-1)\cup(1,\infty)
    \mathbb{R} || all real numbers
    \emptyset || \text{no solution}
    7 || n = 7
    k=1 || 1
    (p,q)=(3,2) || (3,2)
    (p,q)=(3,2) || q=2, p=3
    a_3=2, a_{37}=19 || a_{37}=19, a_3=2
    AB=4, CD=5 || 4, 5
    f(x)=2x+1 || f(t) = 2t+1
    7:32 || V_1:V_2 = 7:32
    3 || \log_2(8) = 3
    9\pi || A = \pi r^2 = 9\pi
    0.56 || 0.56 = 56\%
    y = 3x - 2 || 3x - y = 2
    2x+4y-3=0 || y=-\frac{1}{2}x+\frac{3}{4}
    \infty || infinity
    \text{even} || even
    Yes || yes
    \text{Evelyn} || The answer is Evelyn.
    June 20 || \text{June 20}
    odd || \text{odd}
    C || \textbf{(C)}
    C || (C)\ 12
    C || thinking about it, I'd say it's C
    7 || The final answer is $\boxed{7}$. I hope it is correct.
    7 || **7**
    9 || Answer \[ 9 \]
    22 || 2٢
    25 || 5²
""")  # fmt: skip

DIFFERENT = cases(r"""
    2 || 1=2
    2 || 2=1
    2 || x=1=2
    2 || 1, 2, 3
    2 || 2 or 3
    2 || x=1 or 2
    2 || \{1,2\}
    2 || 2; 3
    2 || \pm 2
    2 || either 2 or 3
    2 || 2 and 3
    2 || 2...
    2 || 2 3
    1,2 || 1,2,...
    1,2 || 1
    2,2,3 || 2,3
    A || A or B
    A || (A) (B)
    A || A. 1 B. 2 C. 3
    A || a
    C || not C
    5 || not 5
    5 || \text{not }5
    5 || 5\text{ is wrong, it is 6}
    5 || 5\text{ or }6
    5 || It is not 5
    3 || at least 3
    3 || x \ge 3
    3 || x \ne 3
    3 || > 3
    3 || 3\text{ thousand}
    3 || 3 dozen
    3 || 3\text{x}
    2 || x
    2 || ?
    2 || .*
    0 || nan
    nan || zoo
    \infty || -\infty
    \infty || 1/0
    \infty || \infty + 1
    \infty || 10^{999}
    2 || None
    2 || symbolic equal
    5 || 2(3)
    4 || 2 2
    12 || 1 2
    12 || 1{2}
    52 || 5²
    1000 || 1,00
    1 || 1,000
    100200 || (100,200)
    \frac{3}{10} || (0,3)
    0.5 || 0.5\%
    1 || 1\%
    5\text{ m} || 5\text{ cm}
    5 || 500\text{ cm}
    2\text{ miles} || 2\text{ euros}
    12\text{ cm}^2 || 12\text{ cm}
    x || |x|
    x || \sqrt{x^2}
    |x+100| || x+100
    x^2 || y^2
    f(x) || f(y)
    f(2x) || 2f(x)
    AB || ab
    x || x'
    x_1 || x_2
    x/2 || 1/2x
    \frac{1}{2x} || 1/2x
    \lfloor n/2 \rfloor || \lfloor (n+1)/2 \rfloor
    \log 2 || \log_{10} 2
    \pi || 3.14
    \pi || 22/7
    \frac13 || 0.333
    5 || 5.001
    3 || 3.0000001
    2 || 2+10^{-100}
    2 || 2+\pi \cdot 10^{-40}
    0.0000001 || 0.0000002
    0 || 1e-10
    1-\frac1e || 1+\frac1e
    x=2 || 2x=4
    x=2 || x^2=4
    4 || x^2=4
    x>3 || 3x-7>2
    x>1 || x \ge 1
    x>1 || y>1
    x=1 || y=1
    x=1, y=2 || x=2, y=1
    (1,2) || (2,1)
    (0,1) || [0,1]
    [0,1] || 0<x<1
    -4, 4 || (-4,4)
    \{1,2\} || (1,2)
    (0,1) || (0,1.5)
    (1,2,3) || [1,2,3)
    f(n) = n || f(k) = n
    \frac{5}{4} || 1\frac{5}{4}
    7 || 3 \cdot 2\frac13
    \angle ABC=90$,$\angle BCD=30 || \angle ABC=60$,$\angle BCD=30
    \begin{pmatrix}1&2\\3&4\end{pmatrix} || \begin{pmatrix}1&3\\2&4\end{pmatrix}
    (-\infty, 0) \cup (0, \infty) || (-\infty,\infty)
    yes || no
    June 20 || 20
    2 || \sqrt2\approx1.5
""")  # fmt: skip


ONE_WAY = [("1,2", "y=1, x=2")]
"""Right with the sides exchanged: a gold that names its items tells in which order it lists them."""


@pytest.mark.parametrize(("gold", "prediction"), EQUAL)
def test_equal(gold: str, prediction: str) -> None:
    assert answers_equal(gold, prediction)


@pytest.mark.parametrize(("gold", "prediction"), DIFFERENT)
def test_different(gold: str, prediction: str) -> None:
    assert not answers_equal(gold, prediction)


def test_equal_in_another_notation() -> None:
    """One test for all pairs of a file, which are many: either may be the gold, but for names that only a prediction
    adds.
    """
    assert [pair for pair in cases_of("answers_equal.txt") if not answers_equal(*pair)] == []


def test_nearest_wrong_answers() -> None:
    wrong = cases_of("answers_different.txt")
    assert [pair for pair in wrong if answers_equal(*pair)] == []
    assert [pair for pair in wrong if answers_equal(*reversed(pair)) and pair not in ONE_WAY] == []


@pytest.mark.parametrize(
    ("gold", "prediction", "equal"),
    [
        ("1", r"\lim_{x \to 0} \frac{\sin x}{x}", True),
        ("1", r"$\lim_{x \to 0} \frac{\sin x}{x} = 1$", True),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k", True),
        (r"\frac{1}{2}", r"\int_0^1 x dx", True),
        (r"\frac{1}{3}", r"\int_0^1 x dx", False),
        ("2", r"\lim_{x \to 0} x = 2", False),
        ("5", r"\sum_{k=2}^{2} 2(3)", False),  # what the parser is known to misread never reaches it
    ],
)
def test_calculus_is_left_to_sympy(gold: str, prediction: str, *, equal: bool) -> None:
    assert answers_equal(gold, prediction) is equal


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
    "nothing": "",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_refused_at_once(text: str) -> None:
    started = time.process_time()
    assert not answers_equal("2", text)
    assert not answers_equal(text, "2")
    assert time.process_time() - started < 1


def test_a_box_within_tags_is_all_that_counts() -> None:
    def judged(gold: str, rollout: str) -> bool:
        answer = final_answer(rollout)
        return answer is not None and answers_equal(gold, answer)

    assert judged("2", r"<answer>\boxed{1} \boxed{2}</answer>")  # the last one, and no other
    assert not judged("1", r"<answer>\boxed{1} \boxed{2}</answer>")
    assert not judged("2", r"<answer>\boxed{1, 2}</answer>")
    assert not judged("2", r"<answer>\boxed{1}</answer> \boxed{2}")
    assert not judged("2", r"</answer>\boxed{2}<answer>")
    assert not judged("2", r"<answer>symbolic equal</answer>")


def test_nothing_that_is_written_is_run() -> None:
    """Neither eval, exec nor compile is called from within the checker, calculus included."""
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
        rf"{numerator // denominator} + \dfrac{{{numerator % denominator}}}{{{denominator}}}",
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
