"""The snippets that tool benchmarks run: what a model writes while it solves contest problems, in fixed shares.

45 % plain Python, 30 % sympy, 10 % numpy, 15 % failing.
"""

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip("\n") for part in text.split("# ---"))


PLAIN = _split(
    r"""
print(sum(i * i for i in range(1, 101)) % 1000)
# ---
from math import gcd
print(sum(1 for n in range(1, 1001) if gcd(n, 1001) == 1))
# ---
from itertools import permutations
print(sum(1 for p in permutations(range(6)) if all(p[i] != i for i in range(6))))
# ---
def is_prime(n):
    return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))

print(sum(p for p in range(500) if is_prime(p)))
# ---
from fractions import Fraction
x = Fraction(0)
for k in range(1, 21):
    x += Fraction(1, k * (k + 1))
print(x)
# ---
print(pow(7, 2024, 1000), pow(3, -1, 11))
# ---
import math
r = (-5 + math.sqrt(25 + 24)) / 2
r
# ---
from collections import Counter
rolls = Counter(a + b + c for a in range(1, 7) for b in range(1, 7) for c in range(1, 7))
print(rolls.most_common(3), rolls[10] / 216)
# ---
ways = [1] + [0] * 100
for coin in (1, 5, 10, 25, 50):
    for amount in range(coin, 101):
        ways[amount] += ways[amount - coin]
print(ways[100])
# ---
from functools import lru_cache

@lru_cache(None)
def f(n):
    return 1 if n < 2 else f(n - 1) + f(n - 2)

f(90)
# ---
solutions = [(x, y, z) for x in range(1, 21) for y in range(x, 21) for z in range(y, 30) if x * x + y * y == z * z]
print(len(solutions), solutions[-1])
# ---
n = 2**64 - 1
factors = []
d = 2
while d * d <= n and d < 2000:
    while n % d == 0:
        factors.append(d)
        n //= d
    d += 1
print(factors, n)
# ---
digits = str(2**1000)
print(sum(int(c) for c in digits), len(digits))
# ---
from itertools import combinations
count = 0
for c in combinations(range(1, 16), 4):
    if sum(c) % 5 == 0:
        count += 1
print(count)
# ---
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __sub__(self, o):
        return Point(self.x - o.x, self.y - o.y)


a, b, c = Point(0, 0), Point(13, 0), Point(5, 12)
u, v = b - a, c - a
abs(u.x * v.y - u.y * v.x) / 2
# ---
import re
text = 'a1b22c333' * 20
print(sum(map(int, re.findall(r'\d+', text))))
# ---
sieve = bytearray([1]) * 5001
sieve[0:2] = b'\0\0'
for i in range(2, 71):
    if sieve[i]:
        sieve[i * i :: i] = bytes(len(range(i * i, 5001, i)))
print(sum(sieve))
# ---
import random
random.seed(1)
hits = sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(2000))
print(4 * hits / 2000 > 3)
"""
)

SYMPY = _split(
    r"""
from sympy import symbols, solve
x = symbols('x')
print(solve(x**2 - 5*x + 6, x))
# ---
from sympy import symbols, factor, expand
x, y = symbols('x y')
print(factor(x**3 - y**3), expand((x + y)**4))
# ---
import sympy as sp
x = sp.symbols('x')
print(sp.diff(sp.sin(x) * sp.exp(2*x), x))
# ---
from sympy import factorint, totient, divisors
print(factorint(5040), totient(5040), len(divisors(5040)))
# ---
from sympy import Rational, sqrt, nsimplify
print(Rational(1, 3) + Rational(2, 7), sqrt(72), (1 + sqrt(5))**2 / 4)
# ---
from sympy import Matrix
m = Matrix([[2, 1, 0], [1, 3, 1], [0, 1, 4]])
print(m.det(), m.inv()[0, 0])
# ---
import sympy as sp
x = sp.symbols('x')
sp.integrate(x**2 * (x - 1), (x, 0, 3))
# ---
from sympy import symbols, Eq, solve
x, y = symbols('x y')
print(solve([Eq(x + y, 10), Eq(x - 2*y, 1)], [x, y]))
# ---
from sympy import isprime, nextprime, primerange
print(isprime(2027), nextprime(1000), sum(primerange(2, 200)))
# ---
import sympy
n = sympy.symbols('n', integer=True)
print(sympy.simplify((n**2 - 1) / (n - 1)), sympy.binomial(20, 10))
# ---
from sympy import symbols, Poly, resultant
x = symbols('x')
p = Poly(x**4 - 3*x**2 + 1, x)
print(p.all_coeffs(), p.discriminant())
# ---
from sympy import cos, pi, sin, simplify, N
print(simplify(sin(pi/5)**2 + cos(pi/5)**2), N(cos(pi/7), 12))
"""
)

NUMPY = _split(
    r"""
import numpy as np
a = np.arange(1, 101)
print((a[a % 3 == 0] ** 2).sum())
# ---
import numpy as np
m = np.array([[1, 1], [1, 0]], dtype=object)
print(np.linalg.matrix_power(m, 50)[0, 1])
# ---
import numpy as np
print(np.roots([1, -6, 11, -6]).round(6))
# ---
import numpy as np
a = np.array([[4.0, 1.0], [2.0, 3.0]])
print(np.linalg.eigvals(a), np.linalg.solve(a, [1.0, 2.0]))
"""
)

FAILING = _split(
    r"""
print(undefined_name + 1)
# ---
for i in range(10)
    print(i)
# ---
values = [1, 2, 3]
print(values[5])
# ---
def mean(xs):
    return sum(xs) / len(xs)


mean([])
# ---
x = int('twelve')
# ---
from sympy import symbols, solve
x = symbols('x')
print(solve(x**2 - 2, x)[2])
"""
)

SNIPPETS = PLAIN + SYMPY + NUMPY + FAILING
"""All of them: 40, whose kinds have the shares above."""
TRIVIAL = "print(1)"
