"""Completions trained a second, end to end, beside another system with the same model, problems, tools and rewards.

    agent-rl bench end_to_end --peer trl
    agent-rl bench end_to_end --peer trl --tools isolated --steps 40

The quickstart's model is taught its format once. From there both sides train plain GRPO, one update a step on --groups
groups of --samples completions of at most --max-tokens tokens, in turns: first with tools and answer checks in a
process that just runs them, then with both in the sandbox. TRL lives in an environment of its own, made by
`make bench-trl` or named by --python.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import trio

from agent_rl.groups.measures import wilson_interval
from benchmarks.bench_overlap import EXAMPLE, INDEPENDENT, teach
from benchmarks.command import Overrides, WrongOptions
from benchmarks.peers.trl_grpo import Spec, Tools
from benchmarks.reporting import print_figures, print_table
from benchmarks.runs import RUN_SECONDS, RunFailed, running

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / ".venv-trl" / "bin" / "python"
OURS, PEER = "agent_rl", "trl"
PROBE_SECONDS = 300.0
"""How long an import of TRL may take."""
LEARNING_RATE, WARMUP_STEPS, MAX_TURNS, RESPONSE_CHARS = 3e-4, 5, 4, 4096
EXECUTORS: Mapping[Tools, Sequence[str]] = {
    "in_process": ("actors.tool_executor.class=benchmarks.in_process_tools:InProcessExecutor",),
    "isolated": (),
}


@dataclass(kw_only=True)
class Options:
    """The options; those of TRL are named for what they set there."""

    peer: Literal["trl"]
    """The other system."""
    python: Path = ENVIRONMENT
    """The interpreter of the peer's environment."""
    tools: tuple[Tools, ...] = ("in_process", "isolated")
    """Where tools run."""
    steps: int = 20
    """Updates of each run; the first is warm-up."""
    rounds: int = 3
    """Runs of each kind."""
    groups: int = 16
    """Prompts a step."""
    samples: int = 16
    """Completions of each prompt."""
    max_tokens: int = 100
    """Tokens of a completion, tool responses included."""
    micro_batch: int | None = None
    """TRL's per_device_train_batch_size; left out: a step's completions."""
    peer_threads: int = 2
    """TRL's torch threads."""
    attention: str = "eager"
    """TRL's attn_implementation."""
    peer_config: str = "{}"
    """Further fields of TRL's GRPOConfig, a JSON object."""
    model: Path | None = None
    """A taught model of the quickstart, instead of teaching one."""
    sft_steps: int = 900
    """Supervised steps before all runs."""
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
    success: Sequence[float]
    seconds: float
    """Of the whole process, from its start to its end."""

    @classmethod
    def read(cls, began: float, steps: Sequence[Mapping[str, Any]], seconds: float) -> Measured:
        """From rows with ``wall``, ``rollouts``, ``trained`` and ``success``. Raises ValueError for fewer than two."""
        if len(steps) < 2:
            raise ValueError("two steps are the least: the first is warm-up")
        walls, sampled, trained, success = (
            [float(row[name]) for row in steps] for name in ("wall", "rollouts", "trained", "success")
        )
        return cls(began, walls, sampled, trained, success, seconds)

    @property
    def trained_per_s(self) -> float:
        """Trained completions a second, from the first step's end to the last one's."""
        return sum(self.trained[1:]) / (self.walls[-1] - self.walls[0])

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


async def ours(folder: Path, spec: Spec, overrides: Sequence[str]) -> Measured:
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
        f"actors.rollout_generator.settings.tool_response_chars={spec.tool_response_chars}",
        *EXECUTORS[spec.tools],
        *overrides,
    ]
    started = time.monotonic()
    async with running(EXAMPLE, folder, settings) as run:
        await run.wait()
        seconds = time.monotonic() - started
        steps = [{**row, "trained": row["trained_rollouts"]} for row in run.metrics("step")]
        (stage_row,) = run.metrics("stage")
        return Measured.read(stage_row["wall"] - stage_row["stage_seconds"], steps, seconds)


async def peer(folder: Path, spec: Spec, python: Path) -> Measured:
    """TRL in a process of its environment. Raises RunFailed with its last output."""
    path, output = folder / "spec.json", folder / "output"
    spec.write(path)
    started = time.monotonic()
    done = None
    with output.open("wb") as out, trio.move_on_after(RUN_SECONDS):
        done = await trio.run_process(
            [str(python), "-m", "benchmarks.peers.trl_grpo", str(path)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": str(spec.threads), "HF_HUB_OFFLINE": "1"},
        )
    if done is None:
        raise RunFailed(f"TRL did not end within {RUN_SECONDS:.0f} s\n{output.read_text()[-3000:]}")
    if done.returncode != 0:
        raise RunFailed(f"TRL ended with {done.returncode}\n{output.read_text()[-3000:]}")
    return read_peer(Path(spec.rows), time.monotonic() - started)


def read_peer(path: Path, seconds: float) -> Measured:
    """The rows that TRL's process left."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    (began,) = (row["wall"] for row in rows if row["kind"] == "begin")
    return Measured.read(began, [row for row in rows if row["kind"] == "step"], seconds)


async def measure(options: Options) -> dict[tuple[Tools, str], list[Measured]]:
    """All runs by tools and side; sides alternate."""
    by_side: dict[tuple[Tools, str], list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="agent-rl-bench-") as name:
        folder = Path(name)
        (folder / "teach").mkdir()
        model = options.model or await teach(folder / "teach", options.sft_steps)
        for number in range(options.rounds):
            for tools in options.tools:
                for side in (OURS, PEER)[:: -1 if number % 2 else 1]:
                    place = folder / f"{number}-{tools}-{side}"
                    place.mkdir()
                    spec = specification(options, tools, model, place)
                    if side == OURS:
                        measured = await ours(place, spec, options.overrides)
                    else:
                        measured = await peer(place, spec, options.python)
                    by_side.setdefault((tools, side), []).append(measured)
                    rate = f"{measured.trained_per_s:.1f} trained completions/s"
                    print(f"round {number + 1}, tools {tools}: {side}: {rate}", flush=True)
    return by_side


def specification(options: Options, tools: Tools, model: Path, place: Path) -> Spec:
    """What both sides are told."""
    return Spec(
        model=str(model),
        rows=str(place / "rows.jsonl"),
        output=str(place / "trl"),
        seed=options.seed,
        steps=options.steps,
        groups=options.groups,
        samples=options.samples,
        max_tokens=options.max_tokens,
        max_turns=MAX_TURNS,
        learning_rate=LEARNING_RATE,
        warmup_steps=WARMUP_STEPS,
        tools=tools,
        tool_response_chars=RESPONSE_CHARS,
        micro_batch=options.micro_batch or options.groups * options.samples,
        threads=options.peer_threads,
        attention=options.attention,
        config=json.loads(options.peer_config),
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
            f"{side}_{tools}_sampled_per_s": _median(runs, "sampled_per_s"),
            f"{side}_{tools}_success": right / sampled,
        }
        rows.append(
            (
                f"{side}, {tools.replace('_', ' ')}",
                _median(runs, "trained_per_s"),
                _median(runs, "sampled_per_s"),
                _median(runs, "trained_per_s_from_start"),
                f"{100 * right / sampled:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
                statistics.median(sum(run.trained) for run in runs),
                _median(runs, "seconds"),
            )
        )
    header = (
        "side, tools",
        "trained/s",
        "sampled/s",
        "trained/s from start",
        "success, late half %",
        "trained in all",
        "seconds in all",
    )
    title = f"completions a second, first step's end to the last one's; medians over rounds; success with {INDEPENDENT}"
    print_table(title, header, rows)
    ratios = {}
    for tools in {tools: None for tools, _ in by_side}:
        for suffix, name in (("", "trained_per_s"), ("_from_start", "trained_per_s_from_start")):
            pairs = zip(by_side[tools, OURS], by_side[tools, PEER], strict=True)
            ratios[f"over_trl_{tools}{suffix}"] = statistics.median(
                getattr(one, name) / getattr(other, name) for one, other in pairs
            )
    print_figures({**ratios, **figures})


def _median(runs: Sequence[Measured], name: str) -> float:
    return float(statistics.median(getattr(run, name) for run in runs))


def require_peer(python: Path) -> None:
    """Raise WrongOptions unless the peer's environment has what it needs."""
    remedy = (
        "build it with `make bench-trl`, or by hand: `python3 -m venv .venv-trl`, then `.venv-trl/bin/pip install "
        "torch==2.13.0 trl==1.16.0` and `.venv-trl/bin/pip install -e .`; or name another with --python"
    )
    if not python.exists():
        raise WrongOptions(f"no environment with TRL: there is no {python}; {remedy}")
    probe = [str(python), "-c", "import trl, agent_rl"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS)
    if tried.returncode:
        reason = tried.stderr.strip().rpartition("\n")[2]
        raise WrongOptions(f"the environment of {python} lacks TRL or agent_rl ({reason}); {remedy}")


def main(options: Options) -> int:
    """Measure, and print what was measured."""
    completions = options.groups * options.samples
    if options.steps < 2:
        raise WrongOptions(f"--steps {options.steps}: name at least 2, since the first step is warm-up")
    if options.micro_batch and completions % options.micro_batch:
        raise WrongOptions(
            f"--micro-batch {options.micro_batch} does not divide the {completions} completions of a step"
        )
    require_peer(options.python)
    by_side = trio.run(measure, options)
    report(by_side)
    return 0
