"""``agent-rl eval``: asks a model problems and tells what came of it, or compares two results.

The evaluation is a run like any other. Its directory has a journal and a topology file. The same command continues an
evaluation that stopped. The figures are made from the journal.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from cyclopts import Parameter

from actors.cli.evaluation.progress import EvaluationView
from actors.cli.evaluation.tables import print_comparison, print_results
from actors.cli.output import Mistake, showing
from actors.cli.parameters import Overrides, Positive, PositiveNumber, several
from actors.cli.records import decode_stored
from actors.cli.topologies import sound_topology, supervise
from actors.runtime.interrupts import INTERRUPTED
from agent_rl.config.examples import topology_file
from agent_rl.config.source import TopologyError
from agent_rl.environments.base import TaskError
from agent_rl.evaluation.errors import EvaluationError
from agent_rl.evaluation.problems import Problems, chosen_problems, prompt_in
from agent_rl.evaluation.results import FILE, load_results, paired, read_results, write_results
from agent_rl.evaluation.topology import (
    Asked,
    evaluation_topology,
    find_model,
    model_config,
)
from agent_rl.files.disk import DiskError, whole
from agent_rl.files.reading_json import read_json
from agent_rl.groups.measures import compare as compare_shares
from agent_rl.records.journal import JOURNAL, JournalError, read_journal

ASKED = "evaluation.json"
TOPOLOGY = "evaluation.toml"
OPTIONS = ("stages", "environments", "run.directory", "run.seed", "model.path")
"""Keys that an evaluation sets itself."""
DIRECTORY = Path("evaluations")


def evaluate(
    model: Annotated[
        str | None,
        Parameter(
            help="a Hugging Face directory, a checkpoint, a run (its newest), or a name on the hub (organisation/name)"
        ),
    ] = None,
    /,
    *,
    data: Annotated[tuple[str, ...], several("FILE", "problems: JSONL (also .gz) or parquet, or globs")] = (),
    n: Annotated[Positive, Parameter(help="answers sampled of each problem")] = 16,
    problems: Annotated[Positive | None, Parameter(metavar="N", help="ask the first N problems alone")] = None,
    temperature: PositiveNumber = 0.6,
    top_p: Annotated[float, Parameter(help="share of probability that is sampled from")] = 1.0,
    top_k: Annotated[Positive | None, Parameter(help="likeliest tokens that are sampled from; left out: all")] = None,
    max_tokens: Annotated[Positive, Parameter(help="of a response, tools included")] = 30720,
    max_turns: Positive = 30,
    prompt: Annotated[
        Literal["plain", "rstar2", "template"] | None, Parameter(help="left out: as the run was, else rstar2")
    ] = None,
    seed: int = 0,
    out: Annotated[
        Path | None,
        Parameter(metavar="DIR", help=f"where journal and results go; left out: {DIRECTORY}/ and the model's name"),
    ] = None,
    topology: Annotated[
        tuple[Path, ...],
        several("FILE", "take actors, hosts and model settings from this file, or files as of agent-rl run"),
    ] = (),
    overrides: Overrides = (),
    show_problems: Annotated[bool, Parameter(help="print a line a problem, too")] = False,
    compare: Annotated[
        tuple[Path, Path] | None,
        Parameter(name="--compare", metavar="A B", help="instead: B's results against A's, on the same problems"),
    ] = None,
) -> int:
    """Ask a model problems and tell what came of it, or compare two results; returns the exit code."""
    try:
        if compare is not None:
            if model is not None or data:
                raise Mistake("--compare takes two results and nothing is evaluated: leave out MODEL and --data")
            _compare(*compare)
            return 0
        if model is None:
            raise Mistake("name a MODEL and --data FILE..., or two results: --compare A B")
        for override in overrides:
            if override.startswith(OPTIONS):
                raise Mistake(f"--set {override}: an evaluation sets this key itself; use the command's own options")
        path, name, prompt_of_run = find_model(model, lambda text: print(text, file=sys.stderr))
        base = (topology_file(str(topology[0])), *topology[1:]) if topology else None
        if base is not None:
            _find_modules_beside(base[0])
        prompt_name = prompt or (prompt_in(base) if base else None) or prompt_of_run or "rstar2"
        chosen = chosen_problems(data, base, problems, prompt=prompt_name, seed=seed)
        asked = Asked(
            model=path,
            environments=chosen.environments,
            samples=n,
            problems=chosen.count,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            max_response_tokens=max_tokens,
            max_turns=max_turns,
            seed=seed,
        )
        return _evaluate(asked, chosen, name, out or DIRECTORY / name, base, overrides, show_problems=show_problems)
    except (TopologyError, EvaluationError, TaskError, JournalError, DiskError) as error:
        raise Mistake(str(error)) from error


def _compare(first: Path, second: Path) -> None:
    a, b = load_results(first), load_results(second)
    pairs, alone = paired(a, b)
    if not pairs:
        raise EvaluationError(f"{first} and {second} have no problem in common: compare results on the same data")
    found = compare_shares([share for share, _ in pairs], [share for _, share in pairs])
    print_comparison(str(first), str(second), found, alone)


def _evaluate(
    asked: Asked,
    problems: Problems,
    name: str,
    directory: Path,
    base: tuple[Path, ...] | None,
    overrides: Sequence[str],
    *,
    show_problems: bool,
) -> int:
    longest, _ = model_config(asked.model)
    if longest is not None and longest < asked.max_response_tokens:
        print(f"the model's sequences have at most {longest} tokens, prompt included: no response is longer")
        asked = replace(asked, max_response_tokens=longest)
    tables = evaluation_topology(asked, directory.absolute(), base)
    settings = _settings(tables, problems.content, overrides)
    file = _prepare(directory, tables, settings).absolute()
    if not _finished(directory):
        topology = sound_topology(file, overrides)
        again = shlex.join(["agent-rl", *sys.argv[1:]])
        if code := supervise(topology, file, overrides, None, EvaluationView, again=again):
            return code
        if not _finished(directory):
            return INTERRUPTED
    results = read_results(directory, problems.count, _stage(tables)["samples"], decode_stored)
    found = write_results(directory / FILE, settings, results)
    with showing(directory / FILE):
        print_results(name, found, results if show_problems else ())
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
        "seed": tables["run"]["seed"],
        **stage,
    }
    return asked | {"data": dict(content), "set": [each for each in overrides if not each.startswith("actors.")]}


def _prepare(directory: Path, tables: Mapping[str, Any], settings: Mapping[str, Any]) -> Path:
    """Make or find the evaluation's directory; return its topology file. Raises EvaluationError for another one."""
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
        partial.write_text(tomli_w.dumps(tables), encoding="utf-8")
    return topology


def _finished(directory: Path) -> bool:
    if not (directory / JOURNAL).exists():
        return False
    opened = read_journal(directory)
    try:
        return bool(opened.evaluations())
    finally:
        opened.close()


def _find_modules_beside(file: Path) -> None:
    """Let actors import the modules beside ``file``. The evaluation's own topology file is in another folder."""
    import os

    from agent_rl.config.user_modules import look_beside

    look_beside(file)
    folders = [folder for folder in (os.environ.get("PYTHONPATH"), str(file.absolute().parent)) if folder]
    os.environ["PYTHONPATH"] = os.pathsep.join(folders)
