"""A pretrained model learns a task of tools by a recipe, beside controls that begin from the same taught model.

    agent-rl bench real                                                # smollm2_word_problems, one seed
    agent-rl bench real --seeds 3 --only rl roc_off random
    agent-rl bench real --only rl --length 0.33 --set algorithm.curriculum=frontier --out runs/real-frontier

For each seed the model is taught by the recipe's supervised stage. From there: ``rl``, the recipe; ``roc_off``, without
resampling; ``synchronous``; ``random``, rewards by a coin; ``rft``, supervised training on the taught model's own
right rollouts; ``demonstrations``, supervised training on more demonstrations. The last two get the minutes that ``rl``
took with this seed: ``rft`` at most half of them to sample each problem twice, and the rest to train. ``direct`` and
``reasoned`` ask the model as it came, without tools. Every one ends with the recipe's last evaluation.

``rates`` has the recipe at a tenth of its learning rate, at the rate, and at ten times the rate, each with
``algorithm.target_kl`` as the recipe has it and without: `rates.worst_over_best` is how far the rate decides. Where
problems have a ``subject``, greedy success is given for each before and after, and `kinds.worst` is the largest loss.
``effective`` trains for twenty minutes undisturbed, and as long while a random actor is killed every five:
`effective_time` is the share of the wall time, from the command on, that the steps take at the mean pace undisturbed.
`host_memory_gib` is the most memory that the processes of a run had together, looked at every ten seconds.

Runs go one after the other into --out. A run that is there is not made again, and one that was cut goes on, so hours of
machine time may be spent in parts. `real.json` in --out has every figure.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.topology import RlStage, SftStage, Topology
from agent_rl.records.journal import read_journal, stored_decoder
from benchmarks.command import Failure, Overrides
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import Run, Watch, children, guarded, made, resident_gib

Variant = Literal[
    "rl", "roc_off", "synchronous", "random", "rft", "demonstrations", "direct", "reasoned", "rates", "effective"
]
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "roc_off": ("algorithm.resampling=none",),
    "synchronous": ("run.mode=synchronous",),
    "random": ("environments.0.class=smollm2_controls.random_rewards:RandomRewards", "algorithm.resampling=none"),
}
WITHOUT_TOOLS = {
    "direct": "smollm2_controls.without_tools:Direct",
    "reasoned": "smollm2_controls.without_tools:Reasoned",
}
RATES = (0.1, 1.0, 10.0)
"""Of the recipe's."""
EFFECTIVE_MINUTES, KILL_SECONDS, MEMORY_SECONDS = 20.0, 300.0, 10.0
MEMORY = "host_memory_gib"
SAMPLED_SHARE, SAMPLES = 0.5, 2
"""Of the minutes of rejection fine-tuning, those in which rollouts are sampled at most; and of each problem."""


@dataclass
class Options:
    """The options."""

    file: str = "smollm2_word_problems"
    """The recipe: a topology with a supervised stage, an rl stage and an evaluation after it."""
    _: KW_ONLY
    seeds: int = 1
    first_seed: int = 0
    only: tuple[Variant, ...] = ("rl",)
    length: float = 1.0
    """The share of the recipe's RL steps."""
    more: str = ""
    """For ``demonstrations``: a file of them; see agent-rl data demonstrate."""
    out: Path = Path("runs/real")
    """Where the runs and real.json go."""
    overrides: Overrides = ()
    """As for agent-rl run."""


class Recipe:
    """The stages of a recipe, as settings of the runs that are made of it."""

    def __init__(self, file: Path, overrides: Sequence[str], length: float) -> None:
        """Raises Failure for a topology without the stages."""
        self.file, self.overrides = file, overrides
        self.topology: Topology = load_topology(file, overrides)
        kinds = [stage.kind for stage in self.topology.stages]
        if "sft" not in kinds or "rl" not in kinds or kinds[-1] != "evaluate":
            raise Failure(f"{file} has the stages {', '.join(kinds)}: this needs sft, rl and at last evaluate")
        self.rl = next(stage for stage in self.topology.stages if isinstance(stage, RlStage))
        self.sft = next(stage for stage in self.topology.stages if isinstance(stage, SftStage))
        self.steps = max(1, round(length * self.rl.steps))
        self.after = self.topology.stages[-1].model_dump(exclude_unset=True) | {"name": "after"}

    def stages(self, *stages: Mapping[str, Any]) -> str:
        """These stages in place of the recipe's."""
        return f"stages=[{', '.join(map(_table, stages))}]"

    def reinforced(self, **changes: Any) -> dict[str, Any]:
        """The rl stage."""
        return self.rl.model_dump(exclude_unset=True) | {"steps": self.steps, "name": "rl"} | changes

    def supervised(self, **changes: Any) -> dict[str, Any]:
        """The supervised stage; files are as seen from anywhere."""
        data = [str((self.file.parent / each).resolve()) for each in self.sft.data or ()]
        return self.sft.model_dump(exclude_unset=True) | {"data": data, "name": "taught"} | changes


def _table(values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{key} = {_value(value)}" for key, value in values.items() if value is not None) + "}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return _table(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(str(value) if isinstance(value, Path) else value)


def make(recipe: Recipe, folder: Path, settings: Sequence[str], *watches: Watch) -> dict[str, Any]:
    """Make a run, or go on with it, as `made` does; its summary."""
    made(recipe.file, folder, settings, (MEMORY_SECONDS, _memory), *watches)
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    with suppress(OSError):  # a run shorter than the interval
        summary[MEMORY] = float((folder / MEMORY).read_text())
    return summary | guarded(folder / "run") | {"kinds": kinds(folder / "run")}


def _memory(run: Run) -> None:
    """Keep the most memory that the run's processes had together."""
    kept = run.directory.parent / MEMORY
    with suppress(OSError):  # a process may end meanwhile
        kept.write_text(str(max(resident_gib(run.process.pid), float(kept.read_text()) if kept.exists() else 0.0)))


def kinds(run: Path) -> dict[str, tuple[int, int]]:
    """Of the run's evaluation: how many problems of each subject were right greedily, of how many."""
    decode, found = stored_decoder(), dict[str, tuple[int, int]]()
    with closing(read_journal(run)) as journal:
        for row in chain.from_iterable(journal.groups(stage=stage, states=("evaluated",)) for stage in (0, 1)):
            opened = decode(row.opened)
            subject = opened.problem.payload.get("subject")
            for stored in journal.trajectories(row.id) if subject and row.at_step is None else ():
                if decode(stored.payload).purpose == "evaluate_greedy":
                    right, asked = found.get(subject, (0, 0))
                    found[subject] = right + (stored.judgement is not None and stored.judgement.success), asked + 1
    return found


def _kill(kills: random.Random, run: Run) -> None:
    with suppress(IndexError, OSError):  # a run may end at the minute of a kill, and has no actors then
        started = children(run.process.pid)
        actors = [each for each in started if b"lifeline.py" in Path(f"/proc/{each}/cmdline").read_bytes()]
        os.kill(kills.choice(actors), signal.SIGKILL)


def newest(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    return max((folder / "run" / "checkpoints").glob("version-*"))


def one_seed(options: Options, recipe: Recipe, seed: int) -> dict[str, dict[str, Any]]:
    """The summary of the taught model and of each variant."""
    folder = options.out.absolute() / f"seed-{seed}"
    common = [f"run.seed={seed}", 'run.keep_trajectories="all"', *options.overrides]
    before = recipe.after | {"name": "before"}
    found = {"taught": make(recipe, folder / "taught", [*common, recipe.stages(recipe.supervised(), before)])}
    model = recipe.topology.model.model_dump(exclude_unset=True, exclude={"initialise"})
    model["path"] = newest(folder / "taught")
    taught = [*(each for each in common if not each.startswith("model.")), f"model={_table(model)}"]
    for variant in options.only:
        if variant in WITHOUT_TOOLS:
            asked = _table(recipe.topology.environments[0].settings)
            chosen = f'environments.0={{class = "{WITHOUT_TOOLS[variant]}", settings = {asked}}}'
            found[variant] = make(recipe, folder / variant, [*common, chosen, recipe.stages(recipe.after)])
        elif variant == "rft":
            minutes = _minutes(found, folder)
            select = {key: getattr(recipe.rl, key) for key in ("max_response_tokens", "max_turns")}
            select |= {"kind": "select", "samples": SAMPLES}
            stages = recipe.stages(select, recipe.reinforced(steps=1, evaluate=None))  # a selection is for a stage
            sampling = [*taught, f"run.max_minutes={SAMPLED_SHARE * minutes:.3g}", stages]
            minutes -= make(recipe, folder / "rft-rollouts", sampling)["minutes"]
            rows = folder / "rft.jsonl"
            exported = [sys.executable, "-m", "actors.cli", "export", str(folder / "rft-rollouts" / "run"), "--right"]
            subprocess.run([*exported, "--output", str(rows)], check=True)
            if not rows.stat().st_size:
                raise Failure(f"seed {seed}, rft: none of the taught model's rollouts is right")
            found[variant] = _taught_on(recipe, folder / variant, taught, rows, minutes)
        elif variant == "demonstrations":
            if not options.more:
                raise Failure("demonstrations: name a file of them with --more")
            minutes = _minutes(found, folder)
            found[variant] = _taught_on(recipe, folder / variant, taught, Path(options.more).resolve(), minutes)
        elif variant == "rates":
            free = recipe.topology.algorithm.model_dump(exclude_unset=True, exclude={"target_kl"})
            for factor in RATES:
                for how, setting in (("bounded", ()), ("unbounded", (f"algorithm={_table(free)}",))):
                    rate = recipe.reinforced(learning_rate=factor * recipe.rl.learning_rate)
                    name = f"rate-{factor:g}-{how}"
                    settings = [*taught, *setting, recipe.stages(rate, recipe.after)]
                    found[name] = make(recipe, folder / name, settings)
                    print(f"seed {seed}, {name}: {_success(found[name], 'after')}", flush=True)
            continue
        elif variant == "effective":
            rl = recipe.reinforced(steps=100_000, schedule="constant", evaluate=None)
            bounds = [*taught, f"run.max_minutes={EFFECTIVE_MINUTES}", recipe.stages(rl)]
            kills = (KILL_SECONDS, partial(_kill, random.Random(seed)))
            for name, watches in (("effective", ()), ("effective-killed", (kills,))):
                found[name] = make(recipe, folder / name, bounds, *watches)
            continue
        else:
            stages = recipe.stages(recipe.reinforced(), recipe.after)
            found[variant] = make(recipe, folder / variant, [*taught, *SETTINGS.get(variant, ()), stages])
        print(f"seed {seed}, {variant}: {_success(found[variant], 'after')}", flush=True)
    return found


def _minutes(found: Mapping[str, Mapping[str, Any]], folder: Path) -> float:
    """What ``rl`` took with this seed. Raises Failure where it was not run."""
    done = folder / "rl" / "run" / "summary.json"
    if "rl" not in found and not done.exists():
        raise Failure(f"{folder.name}: run rl first; the others get as many minutes")
    return float((found.get("rl") or json.loads(done.read_text()))["minutes_rl"])


def _taught_on(recipe: Recipe, folder: Path, taught: Sequence[str], rows: Path, minutes: float) -> dict[str, Any]:
    """Supervised training of the taught model on these rows for so many minutes, and an evaluation."""
    stage = recipe.supervised(data=[str(rows)], steps=100_000)
    return make(recipe, folder, [*taught, f"run.max_minutes={minutes:.3g}", recipe.stages(stage, recipe.after)])


def _success(summary: Mapping[str, Any], name: str) -> str:
    """Sampled and greedy success with intervals, in percent."""
    parts = []
    for how in ("sampled", "greedy"):
        key = f"success_{name}_{how}"
        if key in summary:
            low, high = (100 * summary[f"{key}_{end}"] for end in ("low", "high"))
            parts.append(f"{how} {100 * summary[key]:.1f} [{low:.1f}, {high:.1f}]")
    return ", ".join(parts)


def rate_figures(runs: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Sampled success at the worst rate over that at the best one, bounded and not, of the means over seeds."""
    reached = {
        (how, factor): statistics.fmean(found[name]["success_after_sampled"] for found in runs.values())
        for how in ("bounded", "unbounded")
        for factor in RATES
        if all((name := f"rate-{factor:g}-{how}") in found for found in runs.values())
    }
    best = max(reached.values(), default=0.0)
    figures = {f"rates.{how}_{factor:g}": value for (how, factor), value in reached.items()}
    for how, name in (("bounded", "rates.worst_over_best"), ("unbounded", "rates.unbounded_worst_over_best")):
        if best and (values := [value for (each, _), value in reached.items() if each == how]):
            figures[name] = min(values) / best
    return figures


def effective_figures(runs: Mapping[int, Mapping[str, Mapping[str, Any]]], out: Path) -> dict[str, float]:
    """The mean over seeds of the share of wall time that became steps."""
    shares: dict[str, list[float]] = {"effective_time": [], "effective_time_under_kills": []}
    for seed in (seed for seed, found in runs.items() if "effective" in found):
        folders = (out / f"seed-{seed}" / name / "run" for name in ("effective", "effective-killed"))
        rows = [map(json.loads, (each / "metrics.jsonl").read_text().splitlines()) for each in folders]
        steps = [[row["seconds"] for row in each if row["kind"] == "step"] for each in rows]
        pace = (steps[0][-1] - steps[0][0]) / (len(steps[0]) - 1)
        for share, ended in zip(shares.values(), steps, strict=True):
            share.append(len(ended) * pace / (60 * EFFECTIVE_MINUTES))
    return {name: statistics.fmean(share) for name, share in shares.items() if share}


def kind_figures(runs: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """By variant, the largest loss of a kind of problem, in greedy success from before to after; prints all."""
    rows, worst = [], dict[str, float]()
    for seed, found in runs.items():
        before = found["taught"]["kinds"]
        for variant, summary in found.items():
            after = summary["kinds"]
            rows += [(seed, variant, kind, f"{right}/{asked}") for kind, (right, asked) in sorted(after.items())]
            for kind in after.keys() & before.keys() if variant != "taught" else ():
                change = after[kind][0] / after[kind][1] - before[kind][0] / before[kind][1]
                worst[f"kinds.worst_{variant}"] = min(worst.get(f"kinds.worst_{variant}", 1.0), change)
    if rows:
        print_table("right greedily, by kind", ("seed", "what", "kind", "right"), rows)
    return worst


def main(options: Options) -> int:
    """Make the runs, and print what they reached."""
    file = topology_file(options.file)
    recipe = Recipe(file if file.is_absolute() else file.resolve(), options.overrides, options.length)
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    runs = {seed: one_seed(options, recipe, seed) for seed in seeds}
    (options.out / "real.json").write_text(json.dumps(runs, indent=1))
    rows = [
        (seed, variant, _success(summary, "before" if variant == "taught" else "after"), f"{summary['minutes']:.1f}")
        for seed, found in runs.items()
        for variant, summary in found.items()
    ]
    print_table(f"{file.stem}: success in % with 95 % intervals", ("seed", "what", "success", "minutes"), rows)
    figures: dict[str, float] = {"real.seeds": float(len(runs))}
    figures |= kind_figures(runs) | rate_figures(runs) | effective_figures(runs, options.out)
    for variant in ("taught", *(each for each in options.only if each not in {"rates", "effective"})):
        found = [each[variant] for each in runs.values()]
        when = "before" if variant == "taught" else "after"
        names = {"taught": "success_before", "rl": "success_after", "random": "random_reward_success"}
        name = names.get(variant, f"{variant}_success")
        figures[f"real.{name}"] = statistics.fmean(each[f"success_{when}_sampled"] for each in found)
        figures[f"real.{name}_greedy"] = statistics.fmean(each[f"success_{when}_greedy"] for each in found)
        if variant == "rl":
            figures["real.minutes"] = statistics.fmean(each["minutes_rl"] for each in found)
    if memory := [summary[MEMORY] for found in runs.values() for summary in found.values() if MEMORY in summary]:
        figures[MEMORY] = max(memory)
    for name in ("guard.updates", "guard.false_alarms"):
        figures[name] = sum(summary[name] for found in runs.values() for summary in found.values())
    print_figures(figures)
    return 0
