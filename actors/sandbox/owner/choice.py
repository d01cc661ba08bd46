"""Which warm interpreter a call goes to: pure. A fork costs more the more modules are loaded, and so does each first touch."""

from __future__ import annotations

import re
from collections.abc import Sequence

IMPLIED = {"lambdify": "numpy"}
"""Names in code that has a module loaded which it does not name: sympy's ``lambdify`` imports numpy if it can."""


class Weights:
    """The sets of modules that interpreters have: none, each module alone, the first two, the first three, and so on.

    All subsets would be more interpreters than they are worth.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        alone = [(module,) for module in modules]
        first = [tuple(modules[:count]) for count in range(len(modules) + 1)]
        self.sets: list[tuple[str, ...]] = sorted({*alone, *first}, key=lambda loaded: (len(loaded), loaded))
        """The lightest first; the last one has all."""
        names = [*modules, *(name for name, module in IMPLIED.items() if module in modules)]
        self._names = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b") if names else None

    def lightest(self, code: str) -> int:
        """Place in ``sets`` of the first that has every module which the code names."""
        if self._names is None:
            return 0
        named = {IMPLIED.get(name, name) for name in self._names.findall(code)}
        return next(place for place, loaded in enumerate(self.sets) if named.issubset(loaded))
