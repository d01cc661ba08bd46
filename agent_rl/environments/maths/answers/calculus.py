r"""Limits, sums, products and integrals, read by Math-Verify's LaTeX parser and evaluated by sympy.

The parser has readings that the rest of the checker must not inherit (``2(3)`` is 5, ``R`` is ``r``), so that text
which meets one of them is refused before it is parsed. Evaluation may take any time and memory: see ``rewards``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

_MISREAD = re.compile(r"[0-9]\s*\(|[0-9]\s+[0-9]|[0-9]\s*\\frac|[A-Z]|'|\\text|\\log|°|%|,|!!|\^\s*\w\s*\^|\*\*")
"""Mixed numbers where there are none, letters in lower case, derivatives without their prime, units dropped."""


@lru_cache(maxsize=8)
def expression(source: str) -> Any:
    """The sympy expression of ``source``, with limits, sums and integrals worked out. Raises ValueError."""
    if _MISREAD.search(source):
        raise ValueError("notation that the parser is known to misread")
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    try:
        parsed = latex2sympy(
            source, is_real=True, convert_degrees=False, normalization_config=None, conversion_config=config
        )
        found = parsed.doit()
    except Exception as error:  # noqa: BLE001  the parser raises Exception itself, and sympy any
        raise ValueError(f"not read by Math-Verify's parser: {error}") from None
    if not hasattr(found, "free_symbols"):
        raise ValueError("not an expression")
    return found


def number(found: Any, point: Mapping[str, Fraction], digits: int) -> Any:
    """The value of an expression at a point, as an mpmath number of ``digits`` digits. Raises ValueError."""
    import mpmath
    import sympy

    values = {symbol: sympy.Rational(*point[str(symbol)].as_integer_ratio()) for symbol in found.free_symbols}
    value = sympy.N(found.subs(values), digits)
    if not value.is_number or not value.is_finite:
        raise ValueError("no number")
    real, imaginary = value.as_real_imag()
    return (
        mpmath.mpmathify(str(real)) + mpmath.mpmathify(str(imaginary)) * 1j
        if imaginary
        else mpmath.mpmathify(str(real))
    )
