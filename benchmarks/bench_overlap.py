"""Rollout and training overlapping against taking turns: tokens trained a second, success and idle shares.

    agent-rl bench overlap
    agent-rl bench overlap --steps 40 --rounds 3

The quickstart's model is taught its format once. Then the quickstart's reinforcement learning runs from there for
--steps steps, asynchronously (staleness at most --staleness) and synchronously (staleness 0) in turns, with the tools
as they are and with tools that sleep 0.3 s in the sandbox (staleness at most --slow-staleness). The modes are compared
by trained tokens a second, from the stage's beginning to its last step. A second table says what a step costs in
processor time, by actor, and so how far overlapping can go on the cores there are.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import trio
from pydantic import PositiveFloat

from actors.tool_executor import ToolExecutor, ToolExecutorSettings
from agent_rl.config.load import load_topology
from agent_rl.groups.measures import wilson_interval
from agent_rl.messages import JudgementReply, JudgementWanted, ToolCall, ToolResult, TurnObserved
from benchmarks.command import Overrides
from benchmarks.quickstart import EXAMPLE
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import Run, finished, stage_rows, window

INDEPENDENT = "Wilson's 95 % interval, which takes the rollouts of a group as independent and so is too narrow"
SLOW_TOOLS = (
    "actors.tool_executor.class=benchmarks.bench_overlap:SlowToolExecutor",
    "actors.tool_executor.settings={sleep_seconds = 0.3, children = 512}",
    "actors.rollout_generator.settings.max_rollouts=512",
    "actors.rollout_generator.settings.tool_calls_outstanding=512",
)
"""Room for as many rollouts as two steps have, in both modes: a rollout that waits takes none of the engine's time."""
SUFFIXES = {
    "asynchronous": "",
    "synchronous": "_sync",
    "asynchronous, slow tools": "_slow_tools",
    "synchronous, slow tools": "_slow_tools_sync",
}
"""Suffixes of figures, by the kind of a run."""
TOOLS = {"": "", ", slow tools": "_slow_tools"}
ROLES = ("learner", "generator")


class SlowToolSettings(ToolExecutorSettings):
    """The executor's, and how long a call sleeps."""

    sleep_seconds: PositiveFloat = 0.3


class SlowToolExecutor(ToolExecutor):
    """Every piece of code sleeps first, in the sandbox: as tools that wait for a search engine or a database."""

    Settings = SlowToolSettings

    async def handle(self, message: ToolCall | JudgementWanted) -> ToolResult | TurnObserved | JudgementReply:
        """Calls sleep before they do what they are for; checks are as ever."""
        if isinstance(message, ToolCall) and isinstance(message.arguments.get("code"), str):
            sleep = f"import time; time.sleep({self.context.settings.sleep_seconds})\n"
            message = replace(message, arguments={**message.arguments, "code": sleep + message.arguments["code"]})
        return await super().handle(message)


@dataclass(kw_only=True)
class Options:
    """The options."""

    steps: int = 20
    """Steps of reinforcement learning in each run."""
    rounds: int = 3
    """Runs of each kind."""
    staleness: int = 1
    """max_staleness of the asynchronous runs."""
    slow_staleness: int = 2
    """The same with tools that sleep."""
    sft_steps: int = 900
    """Supervised steps before all runs."""
    model: Path | None = None
    """A model taught before, instead of teaching one."""
    overrides: Overrides = ()
    """As for agent-rl run."""


@dataclass(frozen=True)
class Measured:
    """One run of the stage."""

    seconds: float
    trained_tokens: float
    groups: float
    rollouts: float
    correct: float
    staleness: float
    learner_idle: float
    generator_idle: float
    cpu: Mapping[str, float]
    """By actor: processor seconds a step, with those of its children."""
    step_seconds: float
    cores: int
    steps: int

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens a second."""
        return self.trained_tokens / self.seconds

    @property
    def groups_per_s(self) -> float:
        """Decided groups a second."""
        return self.groups / self.seconds

    @property
    def most_tokens_per_s(self) -> float:
        """Trained tokens a second if the cores were never idle, by the processor time that a step used."""
        return self.cores * self.trained_tokens / (self.steps * sum(self.cpu.values()))


def read(run: Run) -> Measured:
    """Read the figures of a finished run with one stage."""
    steps = run.metrics("step")
    (stage,) = run.metrics("stage")
    rows = stage_rows(run.rows(), 0)
    shares = window(rows)
    late = steps[len(steps) // 2 :]
    rollouts = sum(step["rollouts"] for step in late)
    staleness = [step["staleness_mean"] for step in steps if "staleness_mean" in step]  # none where nothing was trained
    return Measured(
        seconds=stage["stage_seconds"],
        trained_tokens=sum(step["trained_tokens"] for step in steps),
        groups=sum(step["groups_decided"] for step in steps),
        rollouts=rollouts,
        correct=sum(step["success"] * step["rollouts"] for step in late),
        staleness=statistics.fmean(staleness) if staleness else math.nan,
        learner_idle=shares.idle("learner"),
        generator_idle=shares.idle("rollout_generator"),
        cpu={actor: share / max(1e-9, shares.steps_per_s) for actor, share in shares.cpu.items()},
        step_seconds=1.0 / max(1e-9, shares.steps_per_s),
        cores=rows[-1]["cores"],
        steps=len(steps),
    )


async def teach(folder: Path, steps: int | None, recipe: Path = EXAMPLE) -> Path:
    """The model after a recipe's first stage, which is supervised, with so many steps if they are given."""
    stage = load_topology(recipe).stages[0].model_dump(exclude_defaults=True) | (
        {} if steps is None else {"steps": steps}
    )
    fields = ", ".join(f"{name}={json.dumps(value)}" for name, value in stage.items())
    run = await finished(recipe, folder, [f"stages=[{{{fields}}}]"])
    return max((run.directory / "checkpoints").glob("version-*")).absolute()


async def one(
    folder: Path, model: Path, mode: str, options: Options, staleness: int, overrides: Sequence[str]
) -> Measured:
    """One run of reinforcement learning from the taught model."""
    stage = (
        f'kind="rl", steps={options.steps}, learning_rate=3e-4, warmup_steps=5, max_response_tokens=176, max_turns=4'
    )
    settings = [
        f'model={{path="{model}"}}',
        f"stages=[{{{stage}}}]",
        f"run.mode={mode}",
        f"algorithm.max_staleness={staleness}",
        *overrides,
    ]
    return read(await finished(EXAMPLE, folder, settings))


async def measure(options: Options) -> dict[str, list[Measured]]:
    """All runs, by ``mode`` or ``mode, slow tools``; modes alternate within each round."""
    by_kind: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name:
        folder = Path(name)
        (folder / "teach").mkdir()
        model = options.model.absolute() if options.model else await teach(folder / "teach", options.sft_steps)
        for number in range(options.rounds):
            modes = ["asynchronous", "synchronous"][:: -1 if number % 2 else 1]
            for tools, staleness, overrides in (
                ("", options.staleness, ()),
                (", slow tools", options.slow_staleness, SLOW_TOOLS),
            ):
                for mode in modes:
                    place = folder / f"{number}-{mode}{tools}".replace(", ", "-").replace(" ", "-")
                    place.mkdir()
                    measured = await one(place, model, mode, options, staleness, [*overrides, *options.overrides])
                    by_kind.setdefault(mode + tools, []).append(measured)
                    print(f"round {number + 1}: {mode + tools}: {measured.tokens_per_s:,.0f} tokens/s", flush=True)
    return by_kind


def ratio(by_kind: dict[str, list[Measured]], tools: str) -> float:
    """Median over rounds of asynchronous over synchronous tokens a second, each round by itself."""
    pairs = zip(by_kind["asynchronous" + tools], by_kind["synchronous" + tools], strict=True)
    return statistics.median(ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs)


def bounds(by_kind: Mapping[str, Sequence[Measured]], tools: str) -> dict[str, float]:
    """Compute the bounds of `ratio`: its value if the cores were never idle in asynchronous mode; medians over rounds.

    ``bound``: with the processor time that its steps used. ``bound_sync_cpu``: with that of synchronous steps, as if
    overlapping cost none. ``share_of_bound``: the ratio by ``bound``.
    """
    pairs = list(zip(by_kind["asynchronous" + tools], by_kind["synchronous" + tools], strict=True))
    found = {
        "bound": [ours.most_tokens_per_s / theirs.tokens_per_s for ours, theirs in pairs],
        "bound_sync_cpu": [theirs.most_tokens_per_s / theirs.tokens_per_s for _, theirs in pairs],
        "share_of_bound": [ours.tokens_per_s / ours.most_tokens_per_s for ours, _ in pairs],
    }
    return {f"async_over_sync{TOOLS[tools]}_{name}": statistics.median(values) for name, values in found.items()}


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    report(trio.run(measure, options))
    return 0


def report(by_kind: dict[str, list[Measured]]) -> None:
    """Print the table and the figures."""
    rows = []
    success: dict[str, float] = {}
    for kind, runs in by_kind.items():
        correct, rollouts = (sum(getattr(run, name) for run in runs) for name in ("correct", "rollouts"))
        low, high = wilson_interval(round(correct), round(rollouts))
        success[kind] = correct / rollouts
        rows.append(
            (
                kind,
                _median(runs, "tokens_per_s"),
                _median(runs, "groups_per_s"),
                f"{100 * success[kind]:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
                _median(runs, "staleness"),
                100 * _median(runs, "learner_idle"),
                100 * _median(runs, "generator_idle"),
            )
        )
    shares = ("success, late half %", "staleness", "learner idle %", "generator idle %")
    header = ("mode", "trained tokens/s", "groups/s", *shares)
    title = "medians over rounds; success of all rollouts of the steps' second half, with " + INDEPENDENT
    print_table(title, header, rows)
    print_budget(by_kind)
    figures = {f"async_over_sync{suffix}": ratio(by_kind, tools) for tools, suffix in TOOLS.items()}
    for tools in TOOLS:
        figures |= bounds(by_kind, tools)
    for kind, suffix in SUFFIXES.items():
        figures |= {f"{role}_idle_share{suffix}": _median(by_kind[kind], f"{role}_idle") for role in ROLES}
        spent = [sum(run.cpu.values()) for run in by_kind[kind]]
        figures[f"cpu_seconds_per_step{suffix}"] = statistics.median(spent)
    for kind, suffix in (("asynchronous", "_async"), ("synchronous", "_sync")):
        figures[f"success{suffix}"] = success[kind]
        figures[f"groups_per_s{suffix}"] = _median(by_kind[kind], "groups_per_s")
    print_figures(figures)


def print_budget(by_kind: Mapping[str, Sequence[Measured]]) -> None:
    """Print what a step costs in processor time, by actor, beside what the cores had to give while it lasted."""
    actors = sorted({actor for runs in by_kind.values() for run in runs for actor in run.cpu})
    rows = []
    for kind, runs in by_kind.items():
        spent = [statistics.median(run.cpu.get(actor, 0.0) for run in runs) for actor in actors]
        had = statistics.median(run.step_seconds * run.cores for run in runs)
        rows.append((kind, *spent, sum(spent), had))
    header = ("mode", *(actor.removesuffix(".0") for actor in actors), "all", "cores x seconds")
    print_table("processor seconds a step, children included; medians over rounds", header, rows)


def _median(runs: Sequence[Measured], name: str) -> float:
    return float(statistics.median(getattr(run, name) for run in runs))
