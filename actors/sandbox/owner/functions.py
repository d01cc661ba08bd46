"""The sandbox for functions: calls trusted functions with untrusted texts in isolated children of warm interpreters."""

from __future__ import annotations

import importlib
import signal
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import trio

from actors.sandbox.owner.interpreter import ROOT, Ending, Importable, WarmUpError
from actors.sandbox.owner.pool import Pool, PoolSettings
from agent_rl.config.plugins import described
from agent_rl.environments.base import CheckError, CheckUnavailableError, ToolOutput

FUNCTIONS_SEE = ("agent_rl", "actors")
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class FunctionSandbox(Pool):
    """A pool whose interpreters call functions ``module:name`` and run no given code.

    The modules of ``functions`` are loaded before any call, and a module's function ``warm_up``, if any, is called.
    Children see, read-only, this project's packages and those of the user's files that these modules import.
    """

    def __init__(self, functions: Sequence[str], **options: Any) -> None:
        """Raises WarmUpError when a user's module cannot be imported."""
        modules = tuple(dict.fromkeys(function.partition(":")[0] for function in functions))
        super().__init__(PoolSettings(**options), [modules], importable(modules))

    async def call(self, function: str, *arguments: str, name: str = "") -> ToolOutput:
        """Call the function. Its text is the result's value. The function's errors are results and never raise.

        When calls queue, calls of different ``name`` take turns.
        """
        asked = trio.current_time()
        ending, seconds = await self._call_function(function, arguments, name)
        return self._result(ending, asked, seconds)

    async def check(self, function: str, *arguments: str, name: str = "") -> str:
        """The text that the function returns.

        Raises CheckError when the arguments kill the child or take too long, and CheckUnavailableError for other
        failures. The error has the child's output as a note.
        """
        asked = trio.current_time()
        ending, seconds = await self._call_function(function, arguments, name)
        self._result(ending, asked, seconds)
        if ending.outcome == "success":
            return ending.value
        killed = ending.outcome in ("killed", "memory_limit") and ending.signal == signal.SIGKILL
        if ending.outcome == "unavailable" or killed:  # not caused by the arguments
            raise CheckUnavailableError(f"{ending.outcome}: {ending.stderr}")
        error = CheckError("crashed" if ending.outcome in ("killed", "error") else ending.outcome)
        error.add_note(ending.stderr)
        raise error

    async def _call_function(self, function: str, arguments: Sequence[str], name: str) -> tuple[Ending, float]:
        request = {"function": function, "arguments": list(arguments)}
        return await self._call(request, "", self.settings.limits, name, 0)


def importable(modules: Sequence[str]) -> Importable:
    """The import folders of ``modules``, and the files and folders that their imports need.

    This project's packages are visible as a whole. A user's module is imported here. Visible of it are its file (or its
    folder for a package) and the imported modules beside it.
    """
    folders = []
    for module in modules:
        top = module.partition(".")[0]
        if top in FUNCTIONS_SEE:
            continue
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:
            raise WarmUpError(f"importing {module} fails with {described(error)}") from error
        place = _place(sys.modules[top])
        if place is not None and not str(place).startswith(INSTALLED):
            folders.append(place.parent)
    tops = [module for name, module in list(sys.modules.items()) if "." not in name and name not in FUNCTIONS_SEE]
    seen = [str(place) for module in tops if (place := _place(module)) is not None and place.parent in folders]
    return Importable((ROOT, *map(str, folders)), (*(f"{ROOT}/{name}" for name in FUNCTIONS_SEE), *seen))


def places(names: Iterable[str], without: Iterable[str] = ()) -> tuple[str, ...]:
    """The files, or folders of packages, of loaded modules ``module:name``, ``without`` those of some modules."""
    tops = {name.partition(":")[0].partition(".")[0] for name in names if ":" in name}
    tops -= {name.partition(".")[0] for name in without}
    found = (_place(sys.modules[top]) for top in sorted(tops) if top in sys.modules)
    return tuple(str(place) for place in found if place is not None)


def _place(module: ModuleType) -> Path | None:
    """The file of a module or the folder of a package; None if it has neither."""
    folders = list(getattr(module, "__path__", ()))
    file = folders[0] if folders else getattr(module, "__file__", None)
    return None if file is None else Path(file).absolute()
