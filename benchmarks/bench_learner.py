"""The learner: an update of the trainer beside plain transformers with padding, on the same sequences of mixed lengths.

    agent-rl bench learner
    agent-rl bench learner --models quickstart --rounds 7 --threads 2
    agent-rl bench learner --short
    agent-rl bench learner --quick
    agent-rl bench learner --tree MODEL_DIRECTORY --threads 2 --microbatch-tokens 2560

One whole update: forward, backward, clipped AdamW. Plain transformers computes the same loss (the norms of the
gradients are compared) on rows padded to the longest of their batch, in batches of each of --batches, in the order they
come and sorted by length, and is compared by its best setting. In the first two rounds, which warm up, each setting is
tried with the attention sdpa and eager, and keeps the faster; settings that then take over twice the time of the best
are left out of further rounds. Ours computes entropies and figures besides.

Sides alternate, ratios are taken within a round, and a figure is the median over rounds. `_low` and `_high` are the
least and the greatest ratio: the median lies between them with 98 % for seven rounds.

With --tree the updates of that model are compared with themselves: shared prompts computed once, and with each
sequence. The prompts are `rstar2` of the maths environment with 8 responses, and 1,000 tokens with 16; responses are
log-normal, of 64 tokens in the median and at most 256.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import transformers

from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from benchmarks import learner_tree
from benchmarks.command import Failure
from benchmarks.learner_sides import Attention, Ours, Padded, Setting, Side, Spent
from benchmarks.reporting import print_figures, print_table
from benchmarks.rollout_models import MAX_LENGTH, quickstart_model

VOCABULARY = {"quickstart": 100, "larger": 32_768}
"""The quickstart's vocabulary is its own; the larger model has one as large as real models' smallest."""
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "MI300X": 1307e12}
"""Dense bfloat16, by the vendors' data sheets."""


def save_model(name: str, directory: Path) -> None:
    """The quickstart's 0.3M parameters, or 11M, of which most are the embeddings of a real vocabulary."""
    if name == "quickstart":
        initialise_model(quickstart_model(), directory, seed=0)
        return
    spec = InitialiseModel(
        hidden_size=256, layers=4, heads=4, kv_heads=2, head_dim=64, mlp_size=768, max_length=MAX_LENGTH
    )
    initialise_model(spec, directory, seed=0)
    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=False)
    config.vocab_size = VOCABULARY[name]
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(directory)


def side(name: str, setting: Setting) -> Side:
    """``ours``, or ``padded-16-sdpa`` (rows in batches of 16 as they come) and ``sorted-16-eager``.

    With ``-last`` at the end, logits are made from the earliest response on only.
    """
    if name == "ours":
        return Ours(setting)
    kind, batch, given, *last = name.split("-")
    attention: Attention = "eager" if given == "eager" else "sdpa"
    return Padded(setting, int(batch), by_length=kind == "sorted", attention=attention, last_logits=bool(last))


WARM_UP = 2
"""Rounds before the first that counts."""
SLOW = 2.0
"""Settings of plain transformers that take so many times as long as the best are not measured further."""
NORMS_AGREE = 0.01
"""By how much of it the gradient's norm of the two sides may differ in float32."""


def compare(setting: Setting, others: Sequence[Sequence[str]], rounds: int) -> dict[str, list[Spent]]:
    """Measure ours and the other settings in each round; of each of ``others`` only the fastest is measured on.

    Raises Failure when the gradients' norms of two sides differ.
    """
    sides = {name: side(name, setting) for name in ("ours", *(name for choice in others for name in choice))}
    spent: dict[str, list[Spent]] = {name: [] for name in sides}
    for number in range(WARM_UP + rounds):
        work = setting.work(number)
        for name, one in sides.items():
            spent[name].append(one.update(work, number))
            ours, norm = spent["ours"][-1].norm, spent[name][-1].norm
            if setting.dtype == "float32" and abs(norm - ours) > NORMS_AGREE * ours:
                raise Failure(f"the gradients differ: norm {ours:.6f} of ours, {norm:.6f} of {name}, round {number}")
        if number + 1 == WARM_UP:
            chosen = [min(choice, key=lambda name: spent[name][-1].seconds) for choice in others]
            limit = SLOW * min(spent[name][-1].seconds for name in chosen)
            chosen = [name for name in chosen if spent[name][-1].seconds <= limit]
            sides = {name: sides[name] for name in ("ours", *chosen)}
    return {name: spent[name][WARM_UP:] for name in sides}


def measure(
    name: str, setting: Setting, batches: Sequence[int], rounds: int, figures: dict[str, float | str | None]
) -> list[list[object]]:
    """Rows of the table; figures are added with the model's suffix."""
    suffix = "" if name == "larger" else "_small"
    tokens = [work.tokens + sum(map(len, work.prompts)) for work in map(setting.work, range(WARM_UP, WARM_UP + rounds))]
    rows: list[list[object]] = []
    for last in ("", "-last"):
        others = [
            [f"{kind}-{batch}-{attention}{last}" for attention in ("sdpa", "eager")]
            for kind in ("padded", "sorted")
            for batch in batches
        ]
        spent = compare(setting, others, rounds)
        ours = spent.pop("ours")
        best = min(spent, key=lambda each: statistics.median(one.seconds for one in spent[each]))
        ratios = [theirs.seconds / own.seconds for own, theirs in zip(ours, spent[best], strict=True)]
        processor = [theirs.processor / own.processor for own, theirs in zip(ours, spent[best], strict=True)]
        figure = f"learner_over_best_hf{last.replace('-', '_')}{suffix}"
        figures[figure] = statistics.median(ratios)
        figures[f"{figure}_low"], figures[f"{figure}_high"] = min(ratios), max(ratios)
        figures[f"{figure}_processor"] = statistics.median(processor)
        figures[f"best_hf{last.replace('-', '_')}{suffix}"] = best
        rates = {
            side: statistics.median(count / one.seconds for count, one in zip(tokens, of, strict=True))
            for side, of in (("ours", ours), *spent.items())
        }
        rows += [
            [name, each, rates[each], rates["ours"], rates["ours"] / rates[each], "best" if each == best else ""]
            for each in sorted(spent, key=lambda each: -rates[each])
        ]
        if not last:
            figures[f"learner_tokens_per_s{suffix}"] = rates["ours"]
            figures[f"hf_tokens_per_s{suffix}"] = rates[best]
    if setting.device.startswith("cuda"):
        figures[f"learner_share_of_peak_flops{suffix}"] = share_of_peak(setting, rates["ours"])
    return rows


def share_of_peak(setting: Setting, rate: float) -> float:
    """The share of the GPU's floating-point rate; NaN for an unknown GPU."""
    device = torch.cuda.get_device_name()
    flops: float = next((peak for part, peak in PEAK_FLOPS.items() if part in device), float("nan"))
    parameters: int = Ours(setting).parameters
    return 6 * parameters * rate / flops


@dataclass(kw_only=True)
class Options:
    """The options."""

    models: tuple[Literal["quickstart", "larger"], ...] = ("quickstart", "larger")
    """The quickstart's has 0.3M parameters, the larger one 11M."""
    sequences: int = 32
    batches: tuple[int, ...] = (1, 4, 8, 16)
    """Rows at once of plain transformers; the best counts."""
    microbatch_tokens: int = 1024
    """Tokens at once of ours."""
    rounds: int = 7
    short: bool = False
    """16 sequences and 6 rounds."""
    threads: int = 1
    """Torch's threads, for both sides."""
    device: str = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    tree: Path | None = None
    """A model directory: measure what computing shared prompts once saves."""
    quick: bool = False
    """A few seconds: shows that the benchmark runs, and measures little."""


def compare_tree(options: Options, model: Path) -> int:
    """Measure shared prompts, and print the table and the figures."""
    config = transformers.AutoConfig.from_pretrained(model, trust_remote_code=False)
    setting = Setting(
        model=model,
        sequences=0,
        scale=0.1 if options.quick else 1.0,
        threads=options.threads,
        device=options.device,
        dtype=options.dtype,
        microbatch_tokens=options.microbatch_tokens,
        vocabulary=config.vocab_size,
    )
    figures, rows = learner_tree.measure(setting, 1 if options.quick else options.rounds)
    header = ["prompt", "its tokens", "responses", "apart", "together", "ratio"]
    print_table("tokens a second of an update: each response with its prompt, and one prompt for all", header, rows)
    print_figures(figures)
    return 0


def main(options: Options) -> int:
    """Measure, and print the table and the figures."""
    transformers.logging.disable_progress_bar()
    figures: dict[str, float | str | None] = {}
    rows: list[list[object]] = []
    if options.tree is not None:
        return compare_tree(options, options.tree)
    sequences, rounds = (16, 6) if options.short else (options.sequences, options.rounds)
    for name in ["quickstart"] if options.quick else options.models:
        with tempfile.TemporaryDirectory() as folder:
            setting = Setting(
                model=Path(folder) / "model",
                sequences=8 if options.quick else sequences,
                scale=0.1 if options.quick else 1.0,
                threads=options.threads,
                device=options.device,
                dtype=options.dtype,
                microbatch_tokens=options.microbatch_tokens,
                vocabulary=VOCABULARY[name],
            )
            save_model(name, setting.model)
            batches = [1, 8] if options.quick else options.batches
            rows += measure(name, setting, batches, 1 if options.quick else rounds, figures)
    header = ["model", "plain transformers", "its tokens/s", "ours", "ours / its", ""]
    print_table("tokens a second of an update; rows-batch-attention, -last: logits of responses only", header, rows)
    print_figures({name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()})
    return 0
