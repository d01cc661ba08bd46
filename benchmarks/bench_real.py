"""A pretrained model learns a task of tools by a recipe, beside controls that begin from the same taught model.

    agent-rl bench real                                                # smollm2_word_problems, one seed
    agent-rl bench real --seeds 3 --only rl roc_off random
    agent-rl bench real --only rl --length 0.33 --set algorithm.curriculum=frontier --out runs/real-frontier

For each seed the model is taught by the recipe's supervised stage. From there: ``rl``, the recipe; ``roc_off``, without
resampling; ``synchronous``; ``random``, rewards by a coin; ``rft``, supervised training on the taught model's own
right rollouts; ``demonstrations``, supervised training on more demonstrations. The last two get the minutes that ``rl``
took with this seed: ``rft`` four fifths of them to sample, the rest to train. ``direct`` and ``reasoned`` ask the model
as it came, without tools. Every one ends with the recipe's last evaluation.

Runs go one after the other into --out. A run that is there is not made again, and one that was cut goes on, so hours of
machine time may be spent in parts. `real.json` in --out has every figure.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

from agent_rl.config.examples import topology_file
from agent_rl.config.load import load_topology
from agent_rl.config.topology import RlStage, SftStage, Topology
from benchmarks.command import Failure, Overrides
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import guarded, made

Variant = Literal["rl", "roc_off", "synchronous", "random", "rft", "demonstrations", "direct", "reasoned"]
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "roc_off": ("algorithm.resampling=none",),
    "synchronous": ("run.mode=synchronous",),
    "random": ("environments.0.class=smollm2_controls.random_rewards:RandomRewards", "algorithm.resampling=none"),
}
WITHOUT_TOOLS = {
    "direct": "smollm2_controls.without_tools:Direct",
    "reasoned": "smollm2_controls.without_tools:Reasoned",
}
SAMPLED_SHARE = 0.8
"""Of the minutes of rejection fine-tuning, those in which rollouts are sampled."""
NO_RATE = 1e-12
"""A learning rate that changes nothing."""


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


def make(recipe: Recipe, folder: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Make a run, or go on with it; its summary. Raises RunFailed, also for one that was made with other settings."""
    made(recipe.file, folder, settings)
    summary: dict[str, Any] = json.loads((folder / "run" / "summary.json").read_text())
    return summary | guarded(folder / "run")


def newest(folder: Path) -> Path:
    """The newest checkpoint of a run."""
    return max((folder / "run" / "checkpoints").glob("version-*"))


def one_seed(options: Options, recipe: Recipe, seed: int) -> dict[str, dict[str, Any]]:
    """The summary of the taught model and of each variant."""
    folder = options.out.absolute() / f"seed-{seed}"
    common = [f"run.seed={seed}", 'run.keep_trajectories="all"', *options.overrides]
    before = recipe.after | {"name": "before"}
    found = {"taught": make(recipe, folder / "taught", [*common, recipe.stages(recipe.supervised(), before)])}
    model = [setting for setting in common if not setting.startswith("model.path")]
    taught = [*model, f'model.path="{newest(folder / "taught")}"']
    for variant in options.only:
        if variant in WITHOUT_TOOLS:
            chosen = f'environments.0={{class = "{WITHOUT_TOOLS[variant]}", settings = {_settings(recipe)}}}'
            found[variant] = make(recipe, folder / variant, [*common, chosen, recipe.stages(recipe.after)])
        elif variant == "rft":
            minutes = _minutes(found, folder)
            rollouts = recipe.reinforced(learning_rate=NO_RATE, evaluate=None, schedule="constant")
            sampling = [*taught, f"run.max_minutes={SAMPLED_SHARE * minutes:.3g}", recipe.stages(rollouts)]
            make(recipe, folder / "rft-rollouts", sampling)
            rows = folder / "rft.jsonl"
            exported = [sys.executable, "-m", "actors.cli", "export", str(folder / "rft-rollouts" / "run"), "--right"]
            subprocess.run([*exported, "--output", str(rows)], check=True)
            if not rows.stat().st_size:
                raise Failure(f"seed {seed}, rft: none of the taught model's rollouts is right")
            found[variant] = _taught_on(recipe, folder / variant, taught, rows, minutes * (1 - SAMPLED_SHARE))
        elif variant == "demonstrations":
            if not options.more:
                raise Failure("demonstrations: name a file of them with --more")
            minutes = _minutes(found, folder)
            found[variant] = _taught_on(recipe, folder / variant, taught, Path(options.more).resolve(), minutes)
        else:
            stages = recipe.stages(recipe.reinforced(), recipe.after)
            found[variant] = make(recipe, folder / variant, [*taught, *SETTINGS.get(variant, ()), stages])
        print(f"seed {seed}, {variant}: {_success(found[variant], 'after')}", flush=True)
    return found


def _settings(recipe: Recipe) -> str:
    return _table(recipe.topology.environments[0].settings)


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
    for variant in ("taught", *options.only):
        found = [each[variant] for each in runs.values()]
        when = "before" if variant == "taught" else "after"
        names = {"taught": "success_before", "rl": "success_after", "random": "random_reward_success"}
        name = names.get(variant, f"{variant}_success")
        figures[f"real.{name}"] = statistics.fmean(each[f"success_{when}_sampled"] for each in found)
        figures[f"real.{name}_greedy"] = statistics.fmean(each[f"success_{when}_greedy"] for each in found)
        if variant == "rl":
            figures["real.minutes"] = statistics.fmean(each["minutes_rl"] for each in found)
    for name in ("guard.updates", "guard.false_alarms"):
        figures[name] = sum(summary[name] for found in runs.values() for summary in found.values())
    print_figures(figures)
    return 0
