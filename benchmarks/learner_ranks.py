"""A learner of several ranks beside one: tokens a second, memory of each rank, and how far the results are apart.

A layout is a number of ranks that share the model, or SHARDxTENSOR: so many parts, each of ranks that share layers.
Each layout has processes of its own, one after the other, which share the same number of threads between them and train
the same steps from the same weights.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from agent_rl.config.parallel import MeshSizes
from agent_rl.learning.ranks import LOOPBACK, Ranks, joined
from agent_rl.learning.sharding import gathered
from benchmarks.command import Failure
from benchmarks.learner_sides import Ours, Setting

STEPS = 5
"""The steps after which the changes of the weights are compared; more rounds are timed."""
SECONDS = 3600.0
"""How long the processes of one number of ranks may take."""


@dataclass(frozen=True)
class Begin:
    """What a process needs to be one rank."""

    setting: dict[str, Any]
    rank: int
    layout: str
    place: int
    """Where they meet: of rank 0 a file descriptor, of others a port."""
    rounds: int
    folder: str


@dataclass(frozen=True)
class Measured:
    """What one rank says of itself."""

    tensors: int
    """Bytes of its parts of weights, gradients and moments."""
    rss_import: int
    """Resident bytes after the imports."""
    rss: int
    seconds: list[float]
    """Of each step."""


def rss() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def be_rank(text: str) -> None:
    """What each process runs."""
    begin, after_import = Begin(**json.loads(text)), rss()
    setting = Setting(**{**begin.setting, "model": Path(begin.setting["model"])})
    torch.set_num_threads(setting.threads)
    ranks, sizes = Ranks(), sizes_of(begin.layout)
    if sizes.ranks > 1:
        place = (LOOPBACK, begin.place) if begin.rank else socket.socket(fileno=begin.place)
        ranks = joined(begin.rank, sizes, place=place, device=setting.device, seconds=SECONDS, meeting_seconds=SECONDS)
    ours = Ours(setting, ranks)
    start, seconds = dict(whole(ours.weights())), []
    gradients: dict[str, Tensor] = {}
    changes: dict[str, Tensor] = {}
    for number in range(max(STEPS, begin.rounds)):
        seconds.append(ours.update(setting.work(number), number).seconds)
        if number == 0:
            gradients = dict(whole((name, p.grad) for name, p in ours.weights() if p.grad is not None))
        if number == STEPS - 1:
            changes = {name: tensor - start[name] for name, tensor in whole(ours.weights())}
    tensors = sum(tensor.nbytes for tensor in ours.tensors())
    measured = Measured(tensors, after_import, rss(), seconds[1:])
    folder = Path(begin.folder)
    (folder / f"{begin.rank}.json").write_text(json.dumps(asdict(measured)))
    if begin.rank == 0:
        save_file(gradients, folder / "gradients.safetensors")
        save_file(changes, folder / "changes.safetensors")
    ranks.leave()


def whole(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Copies of whole tensors, in host memory."""
    for name, tensor in tensors:
        yield name, gathered(tensor.detach()).to("cpu", copy=True)


def sizes_of(layout: str) -> MeshSizes:
    """The sizes of a layout. Raises ValueError."""
    numbers = [int(word) for word in layout.split("x")]
    if len(numbers) > 2 or min(numbers) < 1:
        raise ValueError(layout)
    return MeshSizes(1, *numbers)


def run_ranks(setting: Setting, layout: str, rounds: int, folder: Path) -> list[Measured]:
    """Train with the ranks of a layout; results lie in ``folder``. Raises Failure when a rank fails."""
    ranks = sizes_of(layout).ranks
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as place:
        processes = []
        for rank in range(ranks):
            where = place.getsockname()[1] if rank else place.fileno()
            given = {**asdict(setting), "model": str(setting.model)}
            begin = Begin(given, rank, layout, where, rounds, str(folder))
            command = [sys.executable, "-m", "benchmarks.command", "learner", "--rank", json.dumps(asdict(begin))]
            environment = os.environ | {"OMP_NUM_THREADS": str(setting.threads)}
            processes.append(
                subprocess.Popen(command, env=environment, pass_fds=(place.fileno(),) if rank == 0 else ())
            )
    try:
        codes = [process.wait(SECONDS) for process in processes]
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                process.kill()
    if any(codes):
        raise Failure(f"with the ranks {layout} the processes ended with {codes}")
    return [Measured(**json.loads((folder / f"{rank}.json").read_text())) for rank in range(ranks)]


def difference(folder: Path, other: Path, name: str) -> float:
    """|found - expected| / |expected| of all tensors of a file as one vector."""
    found, expected = load_file(folder / name), load_file(other / name)
    if found.keys() != expected.keys():
        raise Failure(f"{folder / name} has other tensors")
    one, two = (torch.cat([side[key].double().flatten() for key in expected]) for side in (found, expected))
    return float((one - two).norm() / two.norm())


def measure_ranks(
    setting: Setting, layouts: Sequence[str], rounds: int, threads: int
) -> tuple[list[list[object]], dict[str, float | str | None]]:
    """Rows of the table, and the figures. One rank is always measured, for the comparison."""
    rows: list[list[object]] = []
    figures: dict[str, float | str | None] = {}
    tokens = [work.tokens + sum(map(len, work.prompts)) for work in map(setting.work, range(max(STEPS, rounds)))]
    gradients, updates, shares = [0.0], [0.0], {}
    ordered = sorted({"1", *layouts}, key=lambda layout: (sizes_of(layout).ranks, layout))
    with tempfile.TemporaryDirectory() as name:
        alone = Path(name) / "1"
        for layout in ordered:
            folder, ranks = Path(name) / layout, sizes_of(layout).ranks
            measured = run_ranks(replace(setting, threads=max(1, threads // ranks)), layout, rounds, folder)
            rates = [count / spent for count, spent in zip(tokens[1:], measured[0].seconds, strict=True)]
            figures[f"tokens_per_s_ranks_{layout}"] = rate = statistics.median(rates)
            shares[layout] = max(each.tensors for each in measured)
            if ranks > 1:
                gradients.append(difference(folder, alone, "gradients.safetensors"))
                updates.append(difference(folder, alone, "changes.safetensors"))
            share, mib = shares[layout] / shares["1"], shares[layout] / 2**20
            grown = max(each.rss - each.rss_import for each in measured) / 2**20
            imported = max(each.rss_import for each in measured) / 2**20
            rows.append([layout, max(1, threads // ranks), rate, mib, share, share * ranks, imported, grown])
    most = sizes_of(ordered[-1]).ranks
    figures["memory_share_per_rank"] = shares[ordered[-1]] / shares["1"]
    figures["memory_share_per_rank_over_ideal"] = shares[ordered[-1]] / shares["1"] * most
    figures["ranks_gradient_difference"], figures["ranks_update_difference"] = max(gradients), max(updates)
    return rows, figures
