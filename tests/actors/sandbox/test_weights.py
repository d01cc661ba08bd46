from __future__ import annotations

import pytest

from actors.sandbox.owner.client import Weights

MODULES = ("numpy", "sympy", "os.path")
CODES = {
    "print(1)": (),
    "import numpy as np": ("numpy",),
    "from sympy import *": ("sympy",),
    "x.sympy_like, numpyish": (),
    "import os.path": ("os.path",),
    "import sympy, numpy": ("numpy", "sympy"),
    "from sympy import lambdify": ("numpy", "sympy"),
    "import sympy\nimport os.path": MODULES,
}


@pytest.mark.parametrize(("code", "modules"), CODES.items())
def test_code_goes_to_the_lightest_interpreter_that_has_what_it_names(code, modules):
    weights = Weights(MODULES)
    assert weights.sets[weights.lightest(code)] == modules


def test_interpreters_are_few():
    assert Weights(()).sets == [()]
    assert Weights("abcdef").sets[-1] == tuple("abcdef")
    assert len(Weights("abcdef").sets) == 12


def test_sympy_is_warmed_up_without_numpy():
    from tests.actors.sandbox.running import execute_all

    code = "import sys, sympy\nprint('numpy' in sys.modules, 'sympy' in sys.modules)"
    [result] = execute_all([code.replace("numpy", "num' 'py")], warm_modules=["numpy", "sympy"])
    assert result.stdout == "False True\n"
