"""``agent-rl eval``: asks a model problems and tells what came of it, or compares two results.

The evaluation is a run like any other. Its directory has a journal and a topology file. The same command continues an
evaluation that stopped. The figures are made from the journal.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from cyclopts import Parameter
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from actors.cli.output import Mistake, complain, say, showing, table_console
from actors.cli.parameters import ActorsOf, ModelNamed, Overrides, Positive, PositiveNumber, TopP, several
from actors.cli.records import decode_stored
from actors.cli.topologies import sound_topology, supervise
from actors.runtime.interrupts import INTERRUPTED
from agent_rl.config.examples import topology_file
from agent_rl.config.source import TopologyError
from agent_rl.environments.base import TaskError
from agent_rl.evaluation.measures import PairedComparison
from agent_rl.evaluation.measures import compare as compare_shares
from agent_rl.evaluation.problems import WANTED, EvaluationError, Problems, chosen_problems, prompt_in
from agent_rl.evaluation.results import (
    FILE,
    GROUPINGS,
    ProblemResult,
    load_results,
    paired,
    read_results,
    write_results,
)
from agent_rl.evaluation.topology import Asked, evaluation_topology, find_model, model_config
from agent_rl.files.disk import DiskError, whole
from agent_rl.files.reading_json import read_json
from agent_rl.observe.live import LiveView
from agent_rl.observe.replicas import DASH
from agent_rl.observe.words import clock, visible
from agent_rl.records.journal import JOURNAL, JournalError, read_journal

ASKED = "evaluation.json"
TOPOLOGY = "evaluation.toml"
OPTIONS = ("stages", "environments", "run.directory", "run.seed", "model.path")
"""Keys that an evaluation sets itself."""
DIRECTORY = Path("evaluations")


def evaluate(
    model: ModelNamed | None = None,
    /,
    *,
    data: Annotated[tuple[str, ...], several("FILE", "problems: JSONL (also .gz) or parquet, or globs")] = (),
    n: Annotated[Positive, Parameter(help="answers sampled of each problem")] = 16,
    problems: Annotated[Positive | None, Parameter(metavar="N", help="ask the first N problems alone")] = None,
    temperature: PositiveNumber = 0.6,
    top_p: TopP = 1.0,
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
    topology: ActorsOf = (),
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
            raise Mistake(f"name a MODEL and {WANTED}")
        for override in overrides:
            if override.startswith(OPTIONS):
                raise Mistake(f"--set {override}: an evaluation sets this key itself; use the command's own options")
        path, name, prompt_of_run = find_model(model, complain)
        base = (topology_file(str(topology[0])), *topology[1:]) if topology else None
        if base is not None:
            _find_modules_beside(base[0])
        prompt_name = prompt or (prompt_in(base) if base else None) or prompt_of_run or "rstar2"
        chosen = chosen_problems(data, base, problems, prompt=prompt_name, seed=seed)
        longest, _ = model_config(path)
        if longest is not None and longest < max_tokens:
            say(f"the model's sequences have at most {longest} tokens, prompt included: no response is longer")
            max_tokens = longest
        lengths = {"max_response_tokens": max_tokens, "max_turns": max_turns}
        sampling = {"temperature": temperature, "top_p": top_p, **({} if top_k is None else {"top_k": top_k})}
        stage = {"problems": chosen.count, "samples": n, **sampling, **lengths}
        asked = Asked(path, chosen.environments, stage, seed)
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
    tables = evaluation_topology(asked, directory.absolute(), base)
    # All that the results depend on: an evaluation is continued only as what it was begun as.
    asked_for = {"model": tables["model"]["path"], "seed": asked.seed, **asked.stage}
    settings = asked_for | {
        "data": dict(problems.content),
        "set": [x for x in overrides if not x.startswith("actors.")],
    }
    file = prepare(directory, tables, settings).absolute()
    if not _finished(directory):
        topology = sound_topology(file, overrides)
        again = shlex.join(["agent-rl", *sys.argv[1:]])
        if code := supervise(topology, file, overrides, None, EvaluationView, again=again):
            return code
        if not _finished(directory):
            return INTERRUPTED
    results = read_results(directory, problems.count, asked.stage["samples"], decode_stored)
    found = write_results(directory / FILE, settings, results)
    with showing(directory / FILE):
        print_results(name, found, results if show_problems else ())
        say(f"{directory / FILE} holds every problem's answers")
        say(json.dumps(found["overall"]), flush=True)
    return 0


def prepare(directory: Path, tables: Mapping[str, Any], settings: Mapping[str, Any]) -> Path:
    """Make or find the evaluation's directory; return its topology file. Raises EvaluationError for another one."""
    asked, topology = directory / ASKED, directory / TOPOLOGY
    try:
        before = read_json(asked) if asked.exists() else None
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{asked} cannot be read ({error}): put it back, or choose another --out") from error
    if before is not None and not isinstance(before, dict):
        raise EvaluationError(f"{asked} holds no JSON object: put it back, or choose another --out")
    if before is None and directory.is_dir() and any(directory.iterdir()):
        raise EvaluationError(f"{directory} holds something else than an evaluation: choose another --out")
    if before is None or not (directory / JOURNAL).exists():  # nothing was asked yet
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EvaluationError(f"{directory} cannot be made ({error.strerror}): choose another --out") from error
        with whole(asked, private=True) as partial:
            partial.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    elif before != settings:
        changed = [
            f"{key}: {json.dumps(before.get(key))} then, {json.dumps(settings.get(key))} now"
            for key in {**before, **settings}
            if before.get(key) != settings.get(key)
        ]
        remedy = "undo these changes to continue it, or choose another --out"
        raise EvaluationError("\n  ".join([f"{directory} holds another evaluation:", *changed, remedy]))
    with whole(topology, private=True) as partial:
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


# What people see ------------------------------------------------------------------------------------------------------


class OneLine(LiveView):
    """A view whose display on a terminal is its line."""

    def render(self, now: float, width: int) -> RenderableType:
        """The line."""
        del width
        return Text(visible(self.line(now)), overflow="fold")


class EvaluationView(OneLine):
    """How many rollouts are judged of how many."""

    _began: tuple[float, float] | None = None
    """When the first figure came, and how many rollouts were judged by then: the rate leaves earlier starts out."""

    def line(self, now: float) -> str:
        """The evaluation in one line."""
        done, total = self.progress()
        text = "starting" if done is None or total is None else f"{done:,.0f} of {total:,.0f} rollouts judged"
        left = self._left(now)
        unusual = ", ".join(f"{actor} {state}" for actor, state in self.unusual(now))
        return (
            f"[{clock(now - self.started)}] {text}"
            + (f", {clock(left)} left" if left is not None else "")
            + (f"  ({unusual})" if unusual and done is not None else "")
        )

    def _left(self, now: float) -> float | None:
        done, total = self.progress()
        if done is None or total is None:
            return None
        if self._began is None:
            self._began = (now, done)
        since, before = self._began
        return (total - done) * (now - since) / (done - before) if done > before else None


def print_results(name: str, found: Mapping[str, Any], problems: Sequence[ProblemResult]) -> None:
    """The figures of everything, by file, subject and level, and of each problem given."""
    console = table_console()
    overall = found["overall"]
    table = Table("figure", "value", title=name, title_justify="left")
    missing = _missing(overall)
    several = f", {overall['distinct_problems']:,.0f} different" if "distinct_problems" in overall else ""
    table.add_row("problems x samples", f"{overall['problems']:,.0f} x {overall['samples']:.0f}{several}")
    for key in overall:
        if "@" in key and not key.endswith(("_low", "_high")):
            table.add_row(key, _share(overall, key) + missing)
        if key == "pass@1":  # the length that the accuracy costs stands beside it
            table.add_row("response tokens", _number(overall["response_tokens"]))
            if more := overall["right_by_value"]:
                share = overall["pass@1"] + more / (overall["problems"] * overall["samples"])
                table.add_row("right by value, counted as wrong", f"{more:,.0f}: pass@1 would be {_percent(share)}")
    for key in ("turns", "tool_calls"):
        table.add_row(key.replace("_", " "), _number(overall[key]))
    for key in ("tool_error_share", "truncated_share"):
        table.add_row(key.replace("_", " "), _percent(overall[key]))
    console.print(table)
    last = f"pass@{overall['samples']:.0f}"
    for grouping, part in GROUPINGS.items():
        if part in found:
            grouped = Table(title=f"by {grouping}", title_justify="left")
            more = [last] if overall["samples"] > 1 else []
            for label in (grouping, "problems", "pass@1", "response tokens", *more, "truncated"):
                grouped.add_column(label, justify="left" if label == grouping else "right")
            for group, of in found[part].items():
                figures = [_share(of, "pass@1"), _number(of["response_tokens"]), *(_percent(of[key]) for key in more)]
                grouped.add_row(group, f"{of['problems']:,.0f}", *figures, _percent(of["truncated_share"]))
            console.print(grouped)
    if problems:
        each = Table("file", "id", "right", "answer", "answers given", title="problems", title_justify="left")
        for result in problems:
            given = ", ".join(dict.fromkeys(answer or DASH for answer in result.answers))
            each.add_row(result.file, result.id, f"{result.correct} of {result.samples}", result.answer, given)
        console.print(each)


def print_comparison(a: str, b: str, found: PairedComparison, alone: int) -> None:
    """What the comparison came to, with the tests named; its last line is JSON."""
    table = Table("figure", "value", title=f"B = {b} against A = {a}", title_justify="left")
    table.add_row("problems in both", f"{found.problems:,}")
    if alone:
        table.add_row("problems in one alone, left out", f"{alone:,}")
    table.add_row("pass@1 of A", _percent(found.a))
    table.add_row("pass@1 of B", _percent(found.b))
    points = tuple(100 * value for value in (found.difference, found.low, found.high))
    table.add_row("B - A, 95 % over problems", "{:+.1f} points ({:+.1f} to {:+.1f})".format(*points))
    table.add_row(
        "B better, worse, equal", f"{found.better:,}, {found.worse:,}, {found.problems - found.better - found.worse:,}"
    )
    table.add_row("p, exact paired permutation test, two-sided", f"{found.p:.3g}")
    table_console().print(table)
    say(json.dumps(asdict(found)), flush=True)


def _missing(figures: Mapping[str, Any]) -> str:
    """The rollouts without an answer, which count as wrong, by reason; empty when there are none."""
    no_room = figures["no_room"]
    reasons = {"without room": no_room, "lost": figures["lost"] - no_room}
    text = " and ".join(f"{count:,.0f} {reason}" for reason, count in reasons.items() if count)
    total = figures["problems"] * figures["samples"]
    return f"; of {total:,.0f} rollouts, {text} count as wrong" if text else ""


def _share(figures: Mapping[str, Any], key: str) -> str:
    low, high = figures[f"{key}_low"], figures[f"{key}_high"]
    return f"{_percent(figures[key])}  (95 %: {100 * low:.1f} to {100 * high:.1f})"


def _percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:,.1f}"
