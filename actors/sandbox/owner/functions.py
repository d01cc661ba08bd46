"""The sandbox for functions: calls trusted functions with untrusted texts in isolated children of warm interpreters."""

from __future__ import annotations

import importlib
import signal
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from os.path import normpath
from pathlib import Path
from types import ModuleType
from typing import Any

import trio

from actors.fair_queue import FairQueue
from actors.sandbox.owner.interpreter import ROOT, Importable, WarmUpError
from actors.sandbox.owner.pool import Pool, PoolSettings
from agent_rl.config.plugins import described
from agent_rl.config.topology import Topology
from agent_rl.environments.base import CheckError, CheckUnavailableError, ToolOutput
from agent_rl.environments.task_files import named_in

FUNCTIONS_SEE = ("agent_rl", "actors")
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


SHORT_SECONDS = 0.25
"""The limit of a check's first run. Most answers need a few milliseconds; a sum or a limit may need all its time."""


class FunctionSandbox(Pool):
    """A pool whose interpreters call functions ``module:name`` and run no given code.

    A check runs for ``SHORT_SECONDS`` first. One that needs longer runs again, with its whole limit, in one of the
    places for long checks, half as many as the others. So answers that take long keep no other answer waiting for more
    than short runs. The modules of ``functions`` are loaded before any call, and a module's function ``warm_up``, if
    any, is called. Children see, read-only, this project's packages and those of the user's files that these modules
    import.
    """

    def __init__(self, functions: Sequence[str], **options: Any) -> None:
        """Raises WarmUpError when a user's module cannot be imported."""
        modules = tuple(dict.fromkeys(function.partition(":")[0] for function in functions))
        settings = PoolSettings(**options)
        long = max(1, settings.interpreters * settings.children // 2)
        super().__init__(settings, [modules], importable(modules), more=long)
        self._long = FairQueue(long)

    async def call(self, function: str, *arguments: str, name: str = "") -> ToolOutput:
        """Call the function. Its text is the result's value. The function's errors are results and never raise.

        When calls queue, calls of different ``name`` take turns.
        """
        asked = trio.current_time()
        request = {"function": function, "arguments": list(arguments)}
        ending, seconds = await self._call(request, "", self.settings.limits, name, 0)
        return self._result(ending, asked, seconds)

    async def check(self, function: str, *arguments: str, name: str = "") -> str:
        """The text that the function returns.

        Raises CheckError when the arguments kill the child or take too long, and CheckUnavailableError for other
        failures. The error has the child's output as a note.
        """
        asked = trio.current_time()
        request = {"function": function, "arguments": list(arguments)}
        limits = self.settings.limits
        short = replace(limits, wall_seconds=min(SHORT_SECONDS, limits.wall_seconds))
        ending, seconds = await self._call(request, "", short, name, 0)
        if ending.outcome == "timeout" and short != limits:
            ending, longer = await self._call(request, "", limits, name, 0, self._long)
            seconds += longer
        self._result(ending, asked, seconds)
        if ending.outcome == "success":
            return ending.value
        killed = ending.outcome in ("killed", "memory_limit") and ending.signal == signal.SIGKILL
        if ending.outcome == "unavailable" or killed:  # not caused by the arguments
            raise CheckUnavailableError(f"{ending.outcome}: {ending.stderr}")
        error = CheckError("crashed" if ending.outcome in ("killed", "error") else ending.outcome)
        error.add_note(ending.stderr)
        raise error


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
    """The files with their bytecode, or folders of packages, of loaded modules ``module:name`` and of all that lies
    beside them in their packages, ``without`` those of some modules.
    """
    names = list(names)
    tops = {name.partition(":")[0].partition(".")[0] for name in names if ":" in name}
    tops -= {name.partition(".")[0] for name in without}
    modules = {*tops, *(name.partition(":")[0] for name in names if name.partition(".")[0].partition(":")[0] in tops)}
    loaded = [sys.modules[name] for name in sorted(modules) if name in sys.modules]
    found = list(dict.fromkeys(place for module in loaded for place in _places(module)))
    bytecode = [file for place in found for file in (place.parent / "__pycache__").glob(f"{place.stem}.*.pyc")]
    return tuple(map(str, (*found, *bytecode)))


def hidden_of(topology: Topology, base: Path, without: Iterable[str] = ()) -> tuple[str, ...]:
    """The user's folders, the run's, the files and folders that settings name, and the environments' packages.

    ``base`` is the topology file's folder; for ``without`` see `places`.
    """
    entries = topology.environments
    folders = {base.absolute() / entry.base for entry in entries}
    with suppress(FileNotFoundError):  # it was removed
        folders |= {Path.cwd(), Path(topology.run.directory).absolute()}
    for entry in entries:
        of_entry = base.absolute() / entry.base
        folders |= {path.absolute() for path in named_in(entry.settings, of_entry)}
        texts = (value for value in entry.settings.values() if isinstance(value, str))
        folders |= {of_entry / each for each in texts if (of_entry / each).is_dir()}
    named = (name for entry in entries for name in (entry.class_path, entry.rollout or "", *entry.tools))
    return (*map(normpath, folders), *places(named, without=without))


def _place(module: ModuleType) -> Path | None:
    """The file of a module or the first folder of a package; None if it has neither."""
    return next(iter(_places(module)), None)


def _places(module: ModuleType) -> list[Path]:
    """The file of a module or the folders of a package, of which a namespace has several."""
    folders, file = list(getattr(module, "__path__", ())), getattr(module, "__file__", None)
    return [Path(place).absolute() for place in folders or [file] if place is not None]
