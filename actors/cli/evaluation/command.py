"""``agent-rl eval``: asks a model problems and tells what came of it, or compares two results.

The evaluation is a run like any other, with a directory, a journal and a topology file of its own in it; it goes on where it
stopped. The figures are made from the journal.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.cli.evaluation.arguments import DIRECTORY
from actors.cli.evaluation.tables import print_comparison, print_results
from actors.cli.output import showing
from actors.runtime.interrupts import INTERRUPTED
from agent_rl.config.load import TopologyError
from agent_rl.environments.base import TaskError
from agent_rl.evaluation.errors import EvaluationError
from agent_rl.evaluation.problems import chosen_problems, prompt_in
from agent_rl.evaluation.results import FILE, load_results, paired, read_results, write_results
from agent_rl.evaluation.toml_text import toml_text
from agent_rl.evaluation.topology import (
    Asked,
    evaluation_topology,
    model_config,
    model_of,
)
from agent_rl.files.disk import DiskError, whole
from agent_rl.files.reading_json import read_json
from agent_rl.groups.measures import compare
from agent_rl.records.journal import Journal, JournalError

ASKED = "evaluation.json"
TOPOLOGY = "evaluation.toml"
OPTIONS = ("stages", "tasks", "run.directory", "run.seed", "model.path")
"""Keys that an evaluation sets itself."""
JOURNAL = "journal.sqlite"

Run = Callable[[Path, Sequence[str], str], int]
"""Run a topology file with overrides; the third argument is the command that continues it. Returns the exit code."""
Mistake = Callable[[str], int]


def evaluate(options: argparse.Namespace, run: Run, decode: Callable[[bytes], Any], mistake: Mistake) -> int:
    """The command; returns the exit code."""
    try:
        if options.compare is not None:
            return _compare(options)
        return _evaluate(options, run, decode)
    except TopologyError as error:
        return mistake(str(error))
    except (EvaluationError, TaskError, JournalError, DiskError) as error:
        return mistake(str(error))


def _compare(options: argparse.Namespace) -> int:
    if options.model is not None or options.data:
        raise EvaluationError("--compare takes two results and nothing is evaluated: leave out MODEL and --data")
    first, second = options.compare
    a, b = load_results(first), load_results(second)
    pairs, alone = paired(a, b)
    if not pairs:
        raise EvaluationError(f"{first} and {second} have no problem in common: compare results on the same data")
    found = compare([share for share, _ in pairs], [share for _, share in pairs])
    print_comparison(str(first), str(second), found, alone)
    return 0


def _evaluate(options: argparse.Namespace, run: Run, decode: Callable[[bytes], Any]) -> int:
    if options.model is None:
        raise EvaluationError("name a MODEL and --data FILE..., or two results: --compare A B")
    for override in options.overrides:
        if override.startswith(OPTIONS):
            raise EvaluationError(f"--set {override}: what is asked, and how, is said by the command's own options")
    model, name, prompt = model_of(options.model, lambda text: print(text, file=sys.stderr))
    if options.topology is not None:
        _find_modules_beside(options.topology)
    problems = chosen_problems(options.data, options.topology, options.problems)
    asked = Asked(
        model=model,
        tasks=problems.tasks,
        samples=options.n,
        problems=len(problems.asked),
        temperature=options.temperature,
        max_response_tokens=options.max_tokens,
        max_turns=options.max_turns,
        seed=options.seed,
        prompt=options.prompt or (prompt_in(options.topology) if options.topology else None) or prompt or "rstar2",
    )
    longest, _ = model_config(model)
    if longest is not None and longest < asked.max_response_tokens:
        print(f"the model's sequences have at most {longest} tokens, prompt included: no response is longer")
        asked = replace(asked, max_response_tokens=longest)
    directory = options.out or DIRECTORY / name
    tables = evaluation_topology(asked, directory.absolute(), options.topology)
    settings = _settings(tables, problems.content, options.overrides)
    topology = _prepare(directory, tables, settings)
    journal = directory / JOURNAL
    if not _finished(journal):
        code = run(topology.absolute(), options.overrides, shlex.join(["agent-rl", *sys.argv[1:]]))
        if code != 0:
            return code
        if not _finished(journal):
            return INTERRUPTED
    results = read_results(journal, problems.asked, _stage(tables)["samples"], decode)
    found = write_results(directory / FILE, settings, results)
    with showing(directory / FILE):
        print_results(name, found, results if options.show_problems else ())
        print(f"{directory / FILE} holds every problem's answers")
        print(json.dumps(found["overall"]), flush=True)
    return 0


def _stage(tables: Mapping[str, Any]) -> dict[str, Any]:
    stage: dict[str, Any] = tables["stages"][0]
    return stage


def _settings(tables: Mapping[str, Any], content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """All that the results depend on; an evaluation is continued only as what it was begun as."""
    stage = {key: value for key, value in _stage(tables).items() if key not in {"kind", "name", "greedy"}}
    asked = {
        "model": tables["model"]["path"],
        "prompt": tables["tasks"]["prompt"],
        "seed": tables["run"]["seed"],
        **stage,
    }
    return asked | {"data": dict(content), "set": [each for each in overrides if not each.startswith("actors.")]}


def _prepare(directory: Path, tables: Mapping[str, Any], settings: Mapping[str, Any]) -> Path:
    """Make or find the evaluation's directory; the topology file in it. Raises EvaluationError when it is of another one."""
    asked, topology = directory / ASKED, directory / TOPOLOGY
    try:
        before = read_json(asked) if asked.exists() else None
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{asked} cannot be read ({error}); remove the directory to evaluate afresh") from error
    if before is not None and not isinstance(before, dict):
        raise EvaluationError(f"{asked} holds no JSON object; remove the directory to evaluate afresh")
    if before is None and directory.is_dir() and any(directory.iterdir()):
        raise EvaluationError(f"{directory} holds something else than an evaluation: choose another --out")
    if before is None or not (directory / JOURNAL).exists():  # nothing was asked yet
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EvaluationError(f"{directory} cannot be made ({error.strerror}): choose another --out") from error
        with whole(asked) as partial:
            partial.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    elif before != settings:
        changed = [
            f"{key}: {json.dumps(before.get(key))} then, {json.dumps(settings.get(key))} now"
            for key in {**before, **settings}
            if before.get(key) != settings.get(key)
        ]
        remedy = "undo these changes to continue it, or choose another --out"
        raise EvaluationError("\n  ".join([f"{directory} holds another evaluation:", *changed, remedy]))
    with whole(topology) as partial:
        partial.write_text(toml_text(tables), encoding="utf-8")
    return topology


def _finished(journal: Path) -> bool:
    if not journal.exists():
        return False
    opened = Journal(journal, read_only=True)
    try:
        return bool(opened.evaluations())
    finally:
        opened.close()


def _find_modules_beside(file: Path) -> None:
    """The evaluation's own file lies elsewhere: actors find the modules beside the given one as if they were installed."""
    import os

    from agent_rl.config.user_modules import look_beside

    look_beside(file)
    folders = [folder for folder in (os.environ.get("PYTHONPATH"), str(file.absolute().parent)) if folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
