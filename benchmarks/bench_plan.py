"""The memory plan of `agent-rl check` beside the memory that ranks of a learner take, for two sizes of model.

    agent-rl bench plan
    agent-rl bench plan --ranks 1,2 --models small --tokens 1024

Each rank is a process that trains three steps of two full micro-batches. Measured is the most memory that belongs to no
file (heap and anonymous maps, by the kernel's account) in the steps after the first, less what the process had after
its imports and one product of matrices. malloc maps blocks of 64 KiB and more by themselves, so that memory that torch
gives up is the kernel's again at once. With --heap malloc keeps such memory, as it does by default; what it keeps
depends on the order of all requests, and no plan knows it.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from agent_rl.config.parallel import MeshSizes
from agent_rl.learning.ranks import LOOPBACK, Ranks, joined, meeting_place
from agent_rl.models.model_files import ModelFiles
from agent_rl.models.shapes import Shape
from agent_rl.topology_checks.learner_memory import Need, Training, learner_needs
from benchmarks.command import Failure, Hidden, WrongOptions
from benchmarks.learner_sides import Ours, Setting
from benchmarks.reporting import print_figures, print_table
from benchmarks.rollout_models import Workload

SIZES: dict[str, dict[str, Any]] = {
    "small": {"hidden_size": 128, "num_hidden_layers": 8, "intermediate_size": 384, "vocab_size": 4096},
    "larger": {"hidden_size": 256, "num_hidden_layers": 6, "intermediate_size": 768, "vocab_size": 8192},
}
"""2M and 7M weights."""
SHARED: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
}
PER_MICROBATCH = 4
"""Sequences of a micro-batch, all of one length."""
MICROBATCHES = 2
"""Of each rank in a step: from the second on, there are gradients from the beginning."""
STEPS = 3
LOGITS_MIB = 128
MAPPED = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "131072"}
SECONDS = 1800.0


@dataclass(kw_only=True)
class Options:
    """The options."""

    ranks: tuple[str, ...] = ("1,2,4",)
    """Numbers of ranks."""
    models: tuple[Literal["small", "larger"], ...] = ("small", "larger")
    """Sizes of the model."""
    tokens: int = 1024
    """Of a micro-batch."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    checkpointed: bool = False
    """Keep only the input of each layer for the backward pass."""
    heap: bool = False
    """Let malloc keep memory that is given up."""
    rank: Hidden = ()


@dataclass(frozen=True)
class Begin:
    """What a process needs to be one rank."""

    setting: dict[str, Any]
    checkpointed: bool
    rank: int
    ranks: int
    place: int
    """Where they meet: of rank 0 a file descriptor, of others a port."""


def save_model(name: str, directory: Path) -> None:
    """A Qwen3 of one of the sizes, with random weights."""
    config = transformers.Qwen3Config(**SIZES[name], **SHARED, tie_word_embeddings=True, dtype="float32")
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def memory() -> dict[str, int]:
    """Bytes by the kernel's names, as in ``RssAnon``."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[-1] == "kB"}


def private() -> int:
    """Resident bytes that belong to no file."""
    now = memory()
    return now["RssAnon"] + now["RssShmem"]


def be_rank(text: str) -> None:
    """What each process runs: print the bytes beyond those of a process that has trained nothing."""
    begin = Begin(**json.loads(text))
    setting = Setting(**{**begin.setting, "model": Path(begin.setting["model"])})
    torch.set_num_threads(setting.threads)
    ranks = Ranks()
    if begin.ranks > 1:
        place = (LOOPBACK, begin.place) if begin.rank else socket.socket(fileno=begin.place)
        sizes = MeshSizes(shard=begin.ranks)
        ranks = joined(begin.rank, sizes, place=place, device="cpu", seconds=SECONDS, meeting_seconds=SECONDS)
    product = torch.nn.Linear(64, 64)
    product(torch.ones(64, 64)).sum().backward()
    before = private()
    ours = Ours(setting, ranks, checkpointed=begin.checkpointed)
    length = setting.microbatch_tokens // PER_MICROBATCH
    count = begin.ranks * MICROBATCHES * PER_MICROBATCH
    work = Workload(((1,),) * count, torch.full((count,), length - 1).numpy())
    ours.update(work, 0)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for number in range(1, STEPS):
        ours.update(work, number)
    now = memory()
    print(json.dumps(now["VmHWM"] - now["RssFile"] - before), flush=True)
    ranks.leave()


def measured(setting: Setting, ranks: int, *, checkpointed: bool, heap: bool) -> list[int]:
    """Bytes of each rank. Raises Failure when a rank fails."""
    environment = os.environ | {"OMP_NUM_THREADS": str(setting.threads)} | ({} if heap else MAPPED)
    processes = []
    with meeting_place() as place:
        for rank in range(ranks):
            where = int(place.getsockname()[1]) if rank else place.fileno()
            begin = Begin({**asdict(setting), "model": str(setting.model)}, checkpointed, rank, ranks, where)
            command = [sys.executable, "-m", "benchmarks.command", "plan", "--rank", json.dumps(asdict(begin))]
            passed = () if rank else (place.fileno(),)
            processes.append(
                subprocess.Popen(command, env=environment, pass_fds=passed, stdout=subprocess.PIPE, text=True)
            )
    try:
        printed = [process.communicate(timeout=SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
    codes = [process.returncode for process in processes]
    if any(codes):
        raise Failure(f"with {ranks} ranks the processes ended with {codes}")
    return [int(text.splitlines()[-1]) for text in printed]


def planned(setting: Setting, ranks: int, *, checkpointed: bool) -> list[Need]:
    """The rows of the plan for one rank."""
    shape = Shape.of(ModelFiles.read(setting.model).config)
    assert shape is not None
    training = Training(
        width=4 if setting.dtype == "float32" else 2,
        ranks=ranks,
        shard=ranks,
        tokens=setting.microbatch_tokens,
        checkpointed=checkpointed,
        logits_mib=LOGITS_MIB,
        on_gpu=False,
    )
    return list(learner_needs(shape, training, "rank"))


def counts_of(options: Options) -> list[int]:
    """The numbers of ranks. Raises WrongOptions."""
    words = [word for given in options.ranks for word in given.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise WrongOptions(f"--ranks {','.join(words)}: write numbers of ranks, as in 1,2,4")
    return [int(word) for word in words]


def main(options: Options) -> int:
    """Measure, and print the table and the figures."""
    transformers.logging.disable_progress_bar()
    if options.rank:
        be_rank(*options.rank)
        return 0
    figures: dict[str, float | str | None] = {}
    rows: list[Sequence[object]] = []
    errors = []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "model"
            save_model(name, model)
            for ranks in counts_of(options):
                setting = Setting(
                    model=model,
                    sequences=0,
                    scale=1.0,
                    threads=1,
                    device="cpu",
                    dtype=options.dtype,
                    microbatch_tokens=options.tokens,
                    vocabulary=SIZES[name]["vocab_size"],
                )
                needs = planned(setting, ranks, checkpointed=options.checkpointed)
                plan = sum(need.size for need in needs)
                of = measured(setting, ranks, checkpointed=options.checkpointed, heap=options.heap)
                error = max((100 * (plan / each - 1) for each in of), key=abs)
                errors.append(abs(error))
                rows.append([name, ranks, plan / 2**20, min(of) / 2**20, max(of) / 2**20, error])
                figures[f"plan_error_percent_{name}_{ranks}"] = round(error, 2)
                print(f"{name}, {ranks}: " + ", ".join(f"{n.what} {n.size / 2**20:.1f}" for n in needs), flush=True)
    header = ["model", "ranks", "planned MiB", "measured, least", "most", "error %"]
    print_table(f"memory of a rank, micro-batches of {options.tokens:,} tokens", header, rows)
    print_figures({"plan_error_percent": round(max(errors), 2), **figures})
    return 0
