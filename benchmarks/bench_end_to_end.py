"""Completions trained a second, end to end, beside another system with the same model, problems, tools and rewards.

    agent-rl bench end_to_end --peer trl
    agent-rl bench end_to_end --peer trl --tools isolated --steps 40 --rounds 3
    agent-rl bench end_to_end --peer trl --setting sdpa
    agent-rl bench end_to_end --peer trl --recipe FILE --groups 4 --samples 8 --max-tokens 192 --tools isolated

The model of --recipe, the quickstart's, is taught its format once, by the recipe's first stage. A tournament of short
runs then finds the setting with which TRL is fastest; --setting names one instead. Both sides train plain GRPO from
that model, one update a step on --groups groups of --samples completions of at most --max-tokens tokens, in turns:
first with tools and answer checks in a process that just runs them, then with both in the sandbox. TRL lives in an
environment of its own, made by `make bench-trl` or named by --python.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import trio

from agent_rl.config.load import load_topology
from agent_rl.config.topology import RlStage
from agent_rl.environments.load import Environments, mixed_tasks
from agent_rl.groups.measures import wilson_interval
from benchmarks.bench_overlap import INDEPENDENT, teach
from benchmarks.command import Overrides, WrongOptions
from benchmarks.peer_trl import CANDIDATES, PRETRAINED, RESPONSE_CHARS, Setting, Spec, Tools, require_peer, setting_of
from benchmarks.quickstart import EXAMPLE
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import RUN_SECONDS, RunFailed, finished

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / ".venv-trl" / "bin" / "python"
OURS, PEER = "agent_rl", "trl"
FINALISTS = 2
EXECUTORS: Mapping[Tools, Sequence[str]] = {
    "in_process": ("actors.tool_executor.class=benchmarks.in_process_tools:InProcessExecutor",),
    "isolated": (),
}


@dataclass(kw_only=True)
class Options:
    """The options; those of TRL are named for what they set there."""

    peer: Literal["trl"]
    """The other system."""
    recipe: Path = EXAMPLE
    """A topology whose environment has boxed answers and Python alone, and whose prompts list no tools."""
    python: Path = ENVIRONMENT
    """The interpreter of the peer's environment."""
    tools: tuple[Tools, ...] = ("in_process", "isolated")
    """Where tools run."""
    steps: int = 13
    """Updates of each run; the first is warm-up. Odd, so that TRL's steps by twos sample for all that are counted."""
    rounds: int = 1
    """Runs of each kind."""
    groups: int = 16
    """Prompts a step."""
    samples: int = 16
    """Completions of each prompt."""
    max_tokens: int = 100
    """Tokens of a completion, tool responses included."""
    setting: str | None = None
    """TRL's setting: a candidate's name, or a JSON object of a Setting's fields; left out: the tournament's best."""
    tournament_steps: int = 5
    """Updates of each candidate, odd for the same reason; a finalist has as many again, less one."""
    tournament_seconds: float = 90.0
    """How long a run of the tournament may take; a candidate that is slower is out."""
    model: Path | None = None
    """A taught model of the recipe, instead of teaching one."""
    sft_steps: int | None = None
    """Supervised steps before all runs; left out: as many as the recipe has."""
    seed: int = 0
    overrides: Overrides = ()
    """As for agent-rl run, for our side."""


@dataclass(frozen=True)
class Measured:
    """One side's training: the wall clock when it began and after each step, and what the steps sampled and trained."""

    began: float
    walls: Sequence[float]
    sampled: Sequence[float]
    trained: Sequence[float]
    signal: Sequence[float]
    """Of the trained ones, those of groups with unequal rewards; the others have no gradient."""
    success: Sequence[float]
    seconds: float
    """Seconds of the whole process, from its start to its end."""

    @classmethod
    def read(cls, began: float, steps: Sequence[Mapping[str, Any]], seconds: float) -> Measured:
        """From rows with ``wall``, ``rollouts``, ``trained``, ``signal``, ``success``. Raises ValueError below two."""
        if len(steps) < 2:
            raise ValueError("two steps are the least: the first is warm-up")
        walls, sampled, trained, signal, success = (
            [float(row[name]) for row in steps] for name in ("wall", "rollouts", "trained", "signal", "success")
        )
        return cls(began, walls, sampled, trained, signal, success, seconds)

    @property
    def trained_per_s(self) -> float:
        """Trained completions a second, from the first step's end to the last one's."""
        return sum(self.trained[1:]) / (self.walls[-1] - self.walls[0])

    @property
    def signal_per_s(self) -> float:
        """The same of completions with a gradient."""
        return sum(self.signal[1:]) / (self.walls[-1] - self.walls[0])

    @property
    def sampled_per_s(self) -> float:
        """The same of sampled completions, those of groups without signal included."""
        return sum(self.sampled[1:]) / (self.walls[-1] - self.walls[0])

    @property
    def trained_per_s_from_start(self) -> float:
        """Trained completions a second of all steps, from when training began: warm-up included, and no head start."""
        return sum(self.trained) / (self.walls[-1] - self.began)

    @property
    def late(self) -> tuple[float, float]:
        """Right and sampled completions of the second half of the steps."""
        half = len(self.success) // 2
        pairs = list(zip(self.success[half:], self.sampled[half:], strict=True))
        return sum(share * count for share, count in pairs), sum(count for _, count in pairs)


async def ours(folder: Path, spec: Spec, recipe: Path, overrides: Sequence[str]) -> Measured:
    """A run of the five actors: plain GRPO, every rollout of a group with signal trained, one update a step."""
    stage = (
        f'kind="rl", steps={spec.steps}, learning_rate={spec.learning_rate}, warmup_steps={spec.warmup_steps}, '
        f"max_response_tokens={spec.max_tokens}, max_turns={spec.max_turns}"
    )
    settings = [
        f'model={{path="{spec.model}"}}',
        f"run.seed={spec.seed}",
        f"stages=[{{{stage}}}]",
        f"algorithm.groups_per_step={spec.groups}",
        f"algorithm.samples={spec.samples}",
        f"algorithm.keep={spec.samples}",
        "algorithm.resampling=none",
        "algorithm.updates_per_step=1",
        f"actors.rollout_generator.settings.tool_response_chars={RESPONSE_CHARS}",
        *EXECUTORS[spec.tools],
        *overrides,
    ]
    started = time.monotonic()
    run = await finished(recipe, folder, settings)
    seconds = time.monotonic() - started
    counted = ((row, row["trained_rollouts"]) for row in run.metrics("step"))
    steps = [{**row, "trained": trained, "signal": trained} for row, trained in counted]
    (stage_row,) = run.metrics("stage")
    return Measured.read(stage_row["wall"] - stage_row["stage_seconds"], steps, seconds)


async def peer(folder: Path, spec: Spec, python: Path, limit: float = RUN_SECONDS) -> Measured:
    """TRL in a process of its environment. Raises RunFailed with its last output, also after ``limit`` seconds."""
    path, output = folder / "spec.json", folder / "output"
    spec.write(path)
    started = time.monotonic()
    done = None
    with output.open("wb") as out, trio.move_on_after(limit):
        done = await trio.run_process(
            [str(python), "-m", "benchmarks.peer_trl", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": str(spec.setting.threads), "HF_HUB_OFFLINE": "1"},
        )
    if done is None:
        raise RunFailed(f"TRL did not end within {limit:.0f} s\n{output.read_text()[-3000:]}")
    if done.returncode != 0:
        raise RunFailed(f"TRL ended with {done.returncode}\n{output.read_text()[-3000:]}")
    return read_peer(Path(spec.rows), time.monotonic() - started)


def read_peer(path: Path, seconds: float) -> Measured:
    """The rows that TRL's process left."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    (began,) = (row["wall"] for row in rows if row["kind"] == "begin")
    return Measured.read(began, [row for row in rows if row["kind"] == "step"], seconds)


async def tournament(options: Options, model: Path, folder: Path) -> str:
    """The name of the candidate with which TRL trains most completions a second; the table of all is printed.

    All candidates run once, and the best FINALISTS again for about twice as many steps, with another seed. That run
    decides.
    """
    candidates = PRETRAINED if load_topology(options.recipe).model.path else CANDIDATES
    rates: dict[str, float] = {}
    faults: dict[str, str] = {}

    async def run(name: str, number: int, steps: int, seed: int) -> float | None:
        place = folder / f"tournament-{number}"
        place.mkdir()
        told = replace(options, steps=steps, seed=options.seed + seed)
        try:
            spec = specification(told, options.tools[0], candidates[name], model, place)
            rate = (await peer(place, spec, options.python, options.tournament_seconds)).trained_per_s
        except RunFailed as failure:
            faults[name] = str(failure).partition("\n")[0] + ": " + str(failure).strip().rpartition("\n")[2]
            return None
        print(f"tournament: {name}: {rate:.1f} trained completions/s over {steps - 1} steps", flush=True)
        return rate

    for number, (name, setting) in enumerate(candidates.items()):
        if options.groups * options.samples % (setting.micro_batch or 1):
            faults[name] = "its micro-batches do not divide a step's completions"
        elif (rate := await run(name, number, options.tournament_steps, 0)) is not None:
            rates[name] = rate
    finals: dict[str, float] = {}
    for number, name in enumerate(sorted(rates, key=rates.__getitem__, reverse=True)[:FINALISTS], len(candidates)):
        if (rate := await run(name, number, 2 * options.tournament_steps - 1, 1)) is not None:
            finals[name] = rate
    rows = [(name, rates.get(name, "-"), finals.get(name, "-"), faults.get(name, "")) for name in candidates]
    title = f"TRL's settings, tools {options.tools[0].replace('_', ' ')}: trained completions a second"
    print_table(title, ("setting", "all", "final", "fault"), rows)
    if not finals:
        raise RunFailed("no candidate of TRL's settings ended a run; the table above says why")
    return max(finals, key=finals.__getitem__)


async def measure(options: Options) -> dict[tuple[Tools, str], list[Measured]]:
    """All runs by tools and side; sides alternate."""
    by_side: dict[tuple[Tools, str], list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name:
        folder = Path(name)
        (folder / "teach").mkdir()
        model = options.model or await teach(folder / "teach", options.sft_steps, options.recipe)
        chosen = options.setting or await tournament(options, model, folder)
        print(f"TRL's setting: {chosen}", flush=True)
        setting = setting_of(chosen)
        for number in range(options.rounds):
            for tools in options.tools:
                for side in (OURS, PEER)[:: -1 if number % 2 else 1]:
                    place = folder / f"{number}-{tools}-{side}"
                    place.mkdir()
                    spec = specification(options, tools, setting, model, place)
                    if side == OURS:
                        measured = await ours(place, spec, options.recipe, options.overrides)
                    else:
                        measured = await peer(place, spec, options.python)
                    by_side.setdefault((tools, side), []).append(measured)
                    rate = f"{measured.trained_per_s:.1f} trained completions/s"
                    print(f"round {number + 1}, tools {tools}: {side}: {rate}", flush=True)
    return by_side


def specification(options: Options, tools: Tools, setting: Setting, model: Path, place: Path) -> Spec:
    """The task of both sides."""
    topology = load_topology(options.recipe, [f'model={{path="{model}"}}', f"run.seed={options.seed}"])
    stage = next(stage for stage in topology.stages if isinstance(stage, RlStage))
    environments = Environments(topology, options.recipe.absolute().parent)
    source = mixed_tasks(topology.environments, seed=options.seed, base=options.recipe.absolute().parent)
    with (place / "problems.jsonl").open("w") as file:
        for number in range(options.steps * options.groups):
            problem = source.problem(0, number)
            row = {"prompt": environments[problem.environment].prompt(problem), "gold": problem.answer}
            file.write(json.dumps(row) + "\n")
    return Spec(
        model=str(model),
        rows=str(place / "rows.jsonl"),
        problems=file.name,
        output=str(place / "trl"),
        seed=options.seed,
        steps=options.steps,
        groups=options.groups,
        samples=options.samples,
        max_tokens=options.max_tokens,
        max_turns=stage.max_turns,
        learning_rate=stage.learning_rate,
        warmup_steps=stage.warmup_steps,
        tools=tools,
        setting=setting,
    )


def report(by_side: Mapping[tuple[Tools, str], Sequence[Measured]]) -> None:
    """Print the table and the figures."""
    rows = []
    figures: dict[str, float] = {}
    for (tools, side), runs in by_side.items():
        right, sampled = (sum(run.late[part] for run in runs) for part in (0, 1))
        low, high = wilson_interval(round(right), round(sampled))
        figures |= {
            f"{side}_{tools}_trained_per_s": _median(runs, "trained_per_s"),
            f"{side}_{tools}_signal_per_s": _median(runs, "signal_per_s"),
            f"{side}_{tools}_sampled_per_s": _median(runs, "sampled_per_s"),
            f"{side}_{tools}_success": right / sampled,
        }
        success = f"{100 * right / sampled:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
        names = ("trained_per_s", "signal_per_s", "sampled_per_s", "trained_per_s_from_start")
        rates = (_median(runs, name) for name in names)
        trained = statistics.median(sum(run.trained) for run in runs)
        rows.append((f"{side}, {tools.replace('_', ' ')}", *rates, success, trained, _median(runs, "seconds")))
    header = [
        "side, tools",
        "trained/s",
        "with a gradient/s",
        "sampled/s",
        "trained/s from start",
        "success, late half %",
    ]
    header += ["trained in all", "seconds in all"]
    title = f"completions a second, first step's end to the last one's; medians over rounds; success with {INDEPENDENT}"
    print_table(title, header, rows)
    ratios: dict[str, float] = {}
    for tools in {tools: None for tools, _ in by_side}:
        for suffix, name in (
            ("", "trained_per_s"),
            ("_signal", "signal_per_s"),
            ("_sampled", "sampled_per_s"),
            ("_from_start", "trained_per_s_from_start"),
        ):
            pairs = zip(by_side[tools, OURS], by_side[tools, PEER], strict=True)
            found = [getattr(one, name) / max(getattr(other, name), 1e-9) for one, other in pairs]
            ratios |= {f"over_trl_{tools}{suffix}": statistics.median(found)}
            ratios |= {f"over_trl_{tools}{suffix}_low": min(found), f"over_trl_{tools}{suffix}_high": max(found)}
    print_figures({**ratios, **figures})


def _median(runs: Sequence[Measured], name: str) -> float:
    return float(statistics.median(getattr(run, name) for run in runs))


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    completions = options.groups * options.samples
    if min(options.steps, options.tournament_steps) < 2:
        raise WrongOptions(
            f"--steps {options.steps}, --tournament-steps {options.tournament_steps}: name at least 2, since the first "
            "step is warm-up"
        )
    given = setting_of(options.setting).micro_batch if options.setting else None
    if given and completions % given:
        raise WrongOptions(f"--setting: micro-batches of {given} do not divide the {completions} completions of a step")
    require_peer(options.python)
    by_side = trio.run(measure, options)
    report(by_side)
    return 0
