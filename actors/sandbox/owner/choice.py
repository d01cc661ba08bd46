"""Chooses the warm interpreter of a call. Pure. More loaded modules make a fork and each first touch more expensive."""

from __future__ import annotations

import re
from collections.abc import Sequence

IMPLIED = {"lambdify": "numpy"}
"""Names in code that load a module without naming it: sympy's ``lambdify`` imports numpy when it is installed."""


class Weights:
    """The module sets of interpreters: none, each module alone, the first two, the first three, and so on.

    Interpreters for all subsets would cost more than they save.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        alone = [(module,) for module in modules]
        first = [tuple(modules[:count]) for count in range(len(modules) + 1)]
        self.sets: list[tuple[str, ...]] = sorted({*alone, *first}, key=lambda loaded: (len(loaded), loaded))
        """The lightest first; the last one has all modules."""
        names = [*modules, *(name for name, module in IMPLIED.items() if module in modules)]
        self._names = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b") if names else None

    def lightest(self, code: str) -> int:
        """Index in ``sets`` of the first set with every module that the code names."""
        if self._names is None:
            return 0
        named = {IMPLIED.get(name, name) for name in self._names.findall(code)}
        return next(place for place, loaded in enumerate(self.sets) if named.issubset(loaded))
