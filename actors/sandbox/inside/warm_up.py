"""The warm-up of an interpreter, which saves its forks work: imports, lazy caches, compact memory.

Standard library only, apart from the modules that it is told to import.
"""

# pathlib takes memory, and every fork would pay for it:
# ruff: noqa: PTH123

from __future__ import annotations

import ctypes
import gc
import importlib
import io
import json
import os
import sys

from actors.sandbox import wire
from actors.sandbox.inside.child import Work, run_code
from actors.sandbox.isolation.kernel import libc

PLAIN_MODULES = (
    "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "fractions", "functools", "heapq",
    "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "time", "typing",
)  # fmt: skip
"""The modules of the standard library that model code imports most."""
YOUNG_OBJECTS = 20_000
"""New objects between two garbage collections. Most calls then need no collection; it takes a tenth of sympy's time."""
HUGE_PAGE = 2 << 20
MADV_COLLAPSE = 25

SYMPY_CODE = """
from sympy import *
x, y, z, a, b, c, n, k, t = symbols("x y z a b c n k t")
m = symbols("m", integer=True)
p = symbols("p", positive=True)
for e in (x**2 - 7*x + 12, x**2 - 3, x**3 - 1, 2*x + 5, x**2 + x + 1, x**4 - 16, Eq(x**2, 9), Eq(3*x - 1, 8)):
    solve(e, x)
solve([x + y - 4, x - y - 2], [x, y]), solve([Eq(2*x + y, 5), Eq(x - y, 1)], [x, y]), solve(a*x**2 + b*x + c, x)
solveset(x**2 - 4, x, domain=S.Reals), nsolve(cos(x) - x, 1), roots(x**3 - 6*x**2 + 11*x - 6, x)
linsolve([x + y - 1, x - y], x, y)
factor(x**4 - y**4), factor(x**2 + 5*x + 6), expand((x + y)**3), expand((x - 1)*(x + 2)), collect(x*y + x, x)
cancel((x**2 - 1)/(x - 1))
apart(1/(x*(x + 1))), together(1/x + 1/y), simplify((x**2 - 4)/(x - 2)), simplify(sin(y)**2 + cos(y)**2)
trigsimp(tan(x)*cos(x)), radsimp(1/(1 + sqrt(2)))
simplify((m**2 + 3*m + 2)/(m + 1)), simplify(sqrt(8) + sqrt(2)), nsimplify(0.5), powsimp(x**2*x**3), ratsimp(1/x + 1)
diff(cos(x)*exp(3*x), x), diff(x**3*sin(x), x, 2), diff(log(x), x), limit(sin(x)/x, x, 0), limit((1 + 1/n)**n, n, oo)
series(exp(x), x, 0, 4)
integrate(x*(x + 1), (x, 0, 2)), integrate(x**3*(x - 2), (x, 1, 4)), integrate(sin(x)*exp(x), x), integrate(1/x, x)
integrate(exp(-x), (x, 0, oo))
summation(k, (k, 1, 10)), summation(k**2, (k, 1, n)), Sum(1/k**2, (k, 1, oo)).doit(), product(k, (k, 1, 5))
M = Matrix([[1, 2, 0], [3, 4, 1], [0, 1, 2]])
M.det(), M.inv(), M.T, M.rref(), M.rank(), M*M, Matrix([[2, 1], [1, 2]]).eigenvals(), Matrix([[1, 2], [3, 4]]).inv()
M.charpoly(x)
factorint(360), factorint(97), totient(36), divisors(36), isprime(101), nextprime(50), prevprime(50)
list(primerange(2, 30)), prime(10), primepi(50)
gcd(12, 18), lcm(4, 6), mod_inverse(3, 11), binomial(5, 2), factorial(6), fibonacci(10), catalan(4), igcd(8, 12)
primefactors(60), divisor_count(24)
Poly(x**3 - x + 1, x).discriminant(), Poly(x**4 + x**2 + 1, x).all_coeffs(), Poly(x**2 - 1, x).factor_list()
resultant(x**2 - 1, x - 2, x), degree(x**3, x)
sqrt(50), Rational(1, 3) + Rational(1, 6), Rational(3, 4)**2, sqrt(2)*sqrt(3), (1 + sqrt(3))**2, root(27, 3), Abs(-3)
floor(Rational(7, 2)), ceiling(2.5), Mod(17, 5)
N(pi, 15), N(sqrt(2), 12), cos(pi/9).evalf(), N(sin(pi/9), 12), sin(pi/3), cos(pi/4), tan(pi/6), sin(pi/5), cos(pi/5)
asin(1), atan2(1, 1), log(8, 2), exp(1).evalf(), sin(pi/7)**2
(x + 1).subs(x, 3), (x**2 + y).subs({x: 1, y: 2}), lambdify(x, x**2, "math")(3), expand_trig(sin(2*x))
expand_log(log(p*2)), I**2, re(2 + 3*I), conjugate(1 + I), sqrt(-4)
simplify(sin(pi/9)**2 + cos(pi/9)**2), simplify(binomial(n, 2)), Point(0, 0).distance(Point(3, 4))
Triangle(Point(0, 0), Point(4, 0), Point(0, 3)).area, Interval(0, 2)
for e in (x**2/3, sqrt(x) + pi/3, Rational(1, 3)*x - y, M, {x: 1}, [sqrt(2), x], exp(x)*sin(x), -x/2 + 1, (x + y)**3,
          sqrt(2)/2, 1/(x + 1), 2.5*x):
    str(e), latex(e)
x > 2, Eq(x, 2), Piecewise((x, x > 0), (0, True)), Function("f")(x), FiniteSet(1, 2) | FiniteSet(3), symbols("x1:4")
sympify("x**2 + 1")
"""
"""Makes sympy build its lazy parts, with the symbols that model code uses most."""
NUMPY_CODE = """
import numpy as np
v = np.arange(12).reshape(3, 4)
w = np.array([[2.0, 1.0], [1.0, 3.0]])
v.sum(), v.mean(axis=0), v[v % 2 == 0], v.T @ v, np.linalg.det(w), np.linalg.inv(w), np.linalg.eigvals(w)
np.linalg.solve(w, [1.0, 2.0])
np.roots([1, -3, 2]), np.cumsum(v), np.sort(v), np.unique(v), np.linspace(0, 1, 5), np.zeros(3), np.prod([1, 2])
np.dot([1, 2], [3, 4])
np.linalg.matrix_power(np.array([[1, 1], [1, 0]], dtype=object), 5), str(v), repr(w), np.sqrt(w).round(3)
np.random.rand(3), np.polyfit([0, 1, 2], [1, 3, 7], 2)
"""
EXERCISES = {"sympy": SYMPY_CODE, "numpy": NUMPY_CODE}
PLAIN_CODE = """
import math, re, json
from collections import Counter, defaultdict
from fractions import Fraction
class Point:
    def __init__(self, x, y=0):
        self.x, self.y = x, y
    def __repr__(self):
        return f"Point({self.x}, {self.y:.2f})"
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a
def walk(n, *rest, **named):
    global total
    for i in range(n):
        if i % 2 and not i == 3 or n < 0:
            continue
        elif i > 10:
            break
        yield i
total = 0
try:
    total += sum(x ** 2 for x in range(5)) // 2
    {}["missing"]
except (KeyError, IndexError) as error:
    total -= len(str(error))
finally:
    names = ["b", "a"]
squares = [x * y for x, y in zip(range(3), range(3)) if x != y]
table = {k: -v for k, v in {"a": 1, **{"b": 2}}.items()}
names[0], names[-1:] = sorted({*names}, key=lambda name: name.lower())[0], []
assert gcd(12, 18) == 6 and list(walk(4)) is not None
with open("/dev/null") as nothing:
    text = nothing.read() if squares else None
print(Counter("abc").most_common(1), Fraction(1, 3), math.sqrt(2), re.findall(r"\\d+", "a1"),
      json.dumps(table), Point(1))
print("%d %s" % (total, names), "{:.3f}".format(1 / 3), end="\\n")
total
"""
FAILING_CODE = "def fail(x):\n    return x / 0\nfail(1)"
REHEARSALS = 12
"""Number of runs after which Python 3.11 no longer changes (specialises) the code."""


def warm_up(modules: list[str], work: Work) -> list[bytes]:
    """Import and exercise the modules; returns requests that rehearse calls. Raises what an import raises."""
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    for module in (*PLAIN_MODULES, *modules):
        importlib.import_module(module)
    if work is not run_code:
        importlib.import_module("logging").disable()  # log lines of libraries would appear in the function's stderr
        warmed = [module for module in modules if hasattr(sys.modules[module], "warm_up")]
        for module in warmed:
            sys.modules[module].warm_up()
        requests = [{"function": f"{module}:warm_up", "arguments": []} for module in warmed]
        return [
            json.dumps(request).encode() for request in requests or [{"function": "builtins:str", "arguments": [""]}]
        ]
    stdout, sys.stdout = sys.stdout, io.StringIO()
    for module in modules:
        if module in EXERCISES:
            exec(compile(EXERCISES[module], "<warm-up>", "exec"), {"__name__": "warm_up"})  # noqa: S102
    sys.stdout = stdout
    gc.collect()
    return [wire.PLAIN_CODE + code.encode() for code in (PLAIN_CODE, FAILING_CODE)]


def collapse_into_huge_pages(proc: int) -> int:
    """Ask for huge pages for the present memory: a fork copies one entry for each instead of 512. Returns the number.

    New memory is not affected: to zero 2 MiB where a call needs a few pages would cost more than it saves.
    """
    collapsed = 0
    with open(os.open("self/maps", os.O_RDONLY, dir_fd=proc)) as maps:
        lines = maps.read().splitlines()
    for line in lines:
        span, rights, *rest = line.split()
        if "w" not in rights or (len(rest) > 3 and rest[3] != "[heap]"):
            continue
        start, end = (int(edge, 16) for edge in span.split("-"))
        start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
        for address in range(start, end, HUGE_PAGE):
            done = libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)
            collapsed += done == 0  # else the kernel has no huge pages or no such call: small pages stay
    return collapsed
