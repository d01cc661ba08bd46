"""Train by one call: arguments become a topology file, ``agent-rl run`` runs it, and the run is returned.

::

    train(model, problems, reward, tools=...) --> NAME.toml, NAME.jsonl beside the script --> agent-rl run --> Run

Actors are processes of their own: they import the script that has the reward and the tools. So functions stand at the
top level of a module, and the call stands under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import tomli_w
from pydantic import BaseModel

from agent_rl.config.algorithm import Algorithm
from agent_rl.config.processes import Run as RunTable
from agent_rl.config.suggestions import suggest
from agent_rl.config.topology import RlStage, Topology
from agent_rl.environments.base import Environment
from agent_rl.environments.rows import judgement, refuse_other_arguments
from agent_rl.environments.task_files import read_tasks
from agent_rl.files.disk import whole
from agent_rl.messages import Problem, Transcript
from agent_rl.models.devices import gpus_here
from agent_rl.records.journal import JournalError
from agent_rl.records.run_data import Run, load_run

Problems: TypeAlias = str | Path | Iterable[Mapping[str, Any]] | Iterable[tuple[str, str]]
"""A file of problems, by path or glob; rows of one; or pairs of text and answer."""
Reward: TypeAlias = Callable[[Problem, Transcript], Any]

MADE = "# Made by a call of agent_rl. `agent-rl run` takes it too; to change it, give it another name.\n"
ALGORITHM = {"groups_per_step": 8, "samples": 16}
"""Half of the samples are kept, as in the paper."""
ON_PROCESSORS = {"microbatch_tokens": 1024}
"""Where there is no GPU: the default of 16,384 is for one, and takes tens of GiB."""
LIMITS = {"max_response_tokens": 512, "max_turns": 1}
WITH_TOOLS = {"max_response_tokens": 1024, "max_turns": 8}
FIELDS: Mapping[str, type[BaseModel]] = {"run": RunTable, "algorithm": Algorithm, "stage": RlStage}
"""The tables that a keyword's name is looked for in, the first one first."""
OTHERS = {
    "lr": "learning_rate",
    "num_generations": "samples",
    "max_completion_length": "max_response_tokens",
    "max_tokens": "max_response_tokens",
    "max_steps": "steps",
    "train_batch_size": "groups_per_step",
    "per_device_train_batch_size": "groups_per_step",
    "num_iterations": "epochs",
    "epsilon": "clip_low",
    "output_dir": "directory",
    "run_name": "name",
}
"""Names of TRL and verl whose nearest name here is another one."""
TRANSLATED = "docs/configuration.md has all of them, docs/coming_from.md those of TRL and verl by their names there"
TABLES = set(Topology.model_fields) - {"model", "environments", "stages"}
"""Those that are given whole."""


def train(
    model: str | Path | Mapping[str, Any],
    problems: Problems | type[Environment],
    reward: Reward | None = None,
    *,
    tools: Sequence[Callable[..., Any] | str] = (),
    steps: int = 100,
    evaluation: Problems | int = (),
    system: str = "",
    **settings: Any,
) -> Run:
    """Train a model by GRPO-RoC on rewards, and return the run. An unfinished run goes on, a finished one is read.

    The run's ``state`` is ``ended``, or ``stopped`` after ``agent-rl stop``.

    ``model``: a path, a name of the hub, or the topology's table ``model``. ``problems``: a file or rows, each with
    ``problem`` (or ``prompt``), and ``answer`` and other columns as the reward needs them; or an environment class.
    ``reward(problem, transcript)`` returns a number (success is 1 or more), a bool or a `Judgement`. ``tools`` are
    functions with annotations and docstrings, or names as in a topology. ``evaluation`` are held-out problems, asked
    before and after; of an environment class their number. ``system`` stands before each problem.

    ``settings`` have the names of the topology: those of ``run``, ``algorithm`` and an rl stage as they are
    (``learning_rate=1e-6, samples=16, name="mine"``), and other tables whole (``actors={...}``). Without any, a step
    has 8 groups of 16 samples, of which RoC keeps half; a rollout has one turn and 512 tokens, with tools 8 and 1024;
    without a GPU the learner computes 1024 tokens at once.

    Raises TypeError and ValueError for arguments that cannot be, TaskError for problems that are none, ContractError
    for a reward that is no number, what the reward raises of the first problem, and SystemExit with the exit code of a
    run that fails, after it has said why.
    """
    return _run(model, problems, reward, tools, steps, evaluation, system, settings)


def evaluate(
    model: str | Path | Mapping[str, Any],
    problems: Problems,
    reward: Reward,
    *,
    tools: Sequence[Callable[..., Any] | str] = (),
    system: str = "",
    **settings: Any,
) -> Run:
    """Ask a model all problems, sampled and greedily, and return the run. Arguments are those of `train`."""
    return _run(model, (), reward, tools, 0, problems, system, settings)


def _run(
    model: str | Path | Mapping[str, Any],
    problems: Problems | type[Environment],
    reward: Reward | None,
    tools: Sequence[Callable[..., Any] | str],
    steps: int,
    evaluation: Problems | int,
    system: str,
    settings: Mapping[str, Any],
) -> Run:
    _refuse_imports()
    tables = _tables(settings)
    script = getattr(sys.modules["__main__"], "__file__", None)
    folder = Path(script).absolute().parent if script else Path.cwd()
    name = tables["run"].setdefault("name", Path(script).stem if script else "run")
    directory = tables["run"].setdefault("directory", f"runs/{name}")
    entry: dict[str, Any] = {"class": "rows", "tools": [_reference(tool) for tool in tools], "settings": {}}
    if isinstance(problems, type):
        entry["class"] = _reference(problems)
        asked = evaluation if isinstance(evaluation, int) else 0
    elif reward is None:
        raise TypeError("rows need a `reward`, a function of problem and transcript")
    elif isinstance(evaluation, int):
        raise TypeError("`evaluation` must be held-out rows, or a file of them; a number is for an environment class")
    elif not callable(reward):
        raise TypeError("`reward` must be one function; one of several parts returns a Judgement with `parts`")
    else:
        entry["settings"] = {"reward": _reference(reward)} | ({"system": system} if system else {})
        refuse_other_arguments(reward, entry["settings"]["reward"])
        for key, given in (("files", problems), ("evaluation_files", evaluation)):
            rows, found = _problems(given, folder / f"{name}.{key}.jsonl")
            if found:
                entry["settings"][key] = [rows]
                if not inspect.iscoroutinefunction(reward):
                    _try(reward, found)
            asked = len(found)
    algorithm = ALGORITHM | ({} if gpus_here() else ON_PROCESSORS) | tables.pop("algorithm")
    algorithm.setdefault("keep", max(2, algorithm["samples"] // 2))
    stage = (WITH_TOOLS if tools else LIMITS) | tables.pop("stage")
    stages: list[dict[str, Any]] = [{"kind": "rl", "name": "rl", "steps": steps, **stage}] if steps else []
    if asked:
        test = {"kind": "evaluate", "problems": asked, **{key: stage[key] for key in LIMITS}}
        stages = [test | {"name": "before"}, *stages, *([test | {"name": "after"}] if steps else [])]
    made = {
        "model": dict(model) if isinstance(model, Mapping) else {"path": _path_or_name(model)},
        "environments": [entry],
        "stages": stages,
        "algorithm": algorithm,
        **tables,
    }
    file = folder / f"{name}.toml"
    if file.exists() and not file.read_text(encoding="utf-8").startswith(MADE):
        raise ValueError(f"{file} is there, and no call has made it; give this run another `name`")
    text = MADE + tomli_w.dumps(made)
    trained = _ended(directory) if file.exists() else None
    if trained is None or file.read_text(encoding="utf-8") != text:
        with whole(file) as partial:
            partial.write_text(text, encoding="utf-8")
        _start(file)
    run = load_run(directory)
    if trained is not None and sum(1 for _ in run.steps) == trained:
        say = "had ended, and is read as it is, whatever has changed since in rows, reward or settings"
        print(f"{directory} {say}; to train anew, give another `name`")  # noqa: T201 - to the caller of a script
    return run


def _try(reward: Reward, problems: Sequence[Problem]) -> None:
    """Ask the reward about an empty answer to the first problem, and to the first one without a gold answer."""
    silent = Transcript(("",))
    for problem in (problems[0], *[each for each in problems if not each.answer][:1]):
        if judgement(reward(problem, silent), problem, silent, reward).success:
            why = "" if problem.answer else ", which has no `answer`"
            print(f"the reward takes an empty answer for a success, as to problem {problem.id!r}{why}")  # noqa: T201
            return


def _ended(directory: str) -> int | None:
    """The number of steps of the run that is there, if it has ended."""
    try:
        run = load_run(directory)
    except JournalError:
        return None
    return sum(1 for _ in run.steps) if run.state == "ended" else None


def _refuse_imports() -> None:
    """Raise RuntimeError where the call is made by an import, as an actor's import of a script would."""
    for each in inspect.stack(context=0):
        module = each.frame.f_globals.get("__name__")
        spec = each.frame.f_globals.get("__spec__")
        if each.function == "<module>" and getattr(spec, "_initializing", False):
            raise RuntimeError(
                f'actors import {module}, and an import must not train: put the call under `if __name__ == "__main__":`'
            )


def _tables(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The keywords by table. Raises TypeError for one that no table has."""
    tables: dict[str, dict[str, Any]] = {name: {} for name in FIELDS}
    for key, value in settings.items():
        place = next((name for name, kind in FIELDS.items() if key in kind.model_fields), "")
        if place:
            tables[place][key] = value
        elif key in TABLES:
            tables[key] = tables.get(key, {}) | value
        else:
            known = chain(TABLES, *(kind.model_fields for kind in FIELDS.values()))
            hint = f"here it is `{OTHERS[key]}`" if key in OTHERS else suggest(key, known, TRANSLATED)
            raise TypeError(f"there is no setting {key!r}: {hint}")
    return tables


def _reference(code: Any) -> str:
    """``module:name`` of what actors can import; a name stays as it is. Raises ValueError for what they cannot."""
    if isinstance(code, str):
        return code
    code = getattr(code, "function", code)  # of a tool
    module, name = code.__module__, code.__qualname__
    if not name.isidentifier():
        raise ValueError(f"actors cannot import {name}; write it at the top level of a module")
    if module != "__main__":
        return f"{module}:{name}"
    script = getattr(sys.modules["__main__"], "__file__", None)
    if script is None:
        raise ValueError(
            f"{name} is defined in a notebook, and actors cannot import it: begin its cell with "
            f"`%%writefile my_task.py`, and write `from my_task import {name}` in the next one"
        )
    return f"{Path(script).stem}:{name}"


def _problems(given: Problems, made: Path) -> tuple[str, list[Problem]]:
    """Path or glob of problems, and these; rows are written to ``made``. Raises TaskError."""
    if isinstance(given, str | Path):
        path = str(Path(given).absolute())
    else:
        rows = [
            row if isinstance(row, Mapping) else dict(zip(("problem", "answer"), row, strict=True)) for row in given
        ]
        if not rows:
            return "", []
        path = made.name
        with whole(made) as partial:
            partial.write_text("".join(f"{json.dumps(dict(row))}\n" for row in rows), encoding="utf-8")
    return path, list(chain.from_iterable(read_tasks({"": (path,)}, made.parent, columns=True)[""]))


def _path_or_name(model: str | Path) -> str:
    return str(Path(model).absolute() if Path(model).exists() else model)


def _start(file: Path) -> None:
    """Run a topology file to its end, with what it prints. Raises SystemExit when it fails."""
    command = [sys.executable, "-m", "actors.cli", "run", str(file)]
    sources = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sources))}
    notebook = "ipykernel" in sys.modules  # its output is no terminal, and its interrupt is for the kernel alone
    piped = subprocess.PIPE if notebook else None
    with subprocess.Popen(command, env=environment, stdout=piped, stderr=piped and subprocess.STDOUT, text=True) as run:
        try:
            for line in run.stdout or ():
                sys.stdout.write(line)
            code = run.wait()
        except KeyboardInterrupt:
            if notebook:
                run.send_signal(signal.SIGINT)
            run.wait()
            if notebook:
                raise
            raise SystemExit(128 + signal.SIGINT) from None
    if code:
        raise SystemExit(code)
