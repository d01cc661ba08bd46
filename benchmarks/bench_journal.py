"""The journal: bytes of a trajectory before and after packing, and the filter's time while old trajectories leave.

    agent-rl bench journal --gigabytes 2
    agent-rl bench journal --gigabytes 5 20 --directory /disk/with/room

Steps of the paper's size, 512 groups of 32 rollouts of 10,000 tokens, are written as the filter writes them, and then
leave by the filter's own compaction task. Counted is the time that the task holds the filter's event loop; files are
removed in a thread. In comparison: how long SQLite takes to delete as many bytes of payload on the calling thread, with
and without secure_delete.
"""

from __future__ import annotations

import inspect
import json as json_module
import os
import shutil
import sqlite3
import subprocess
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio

from actors.roc_filter.compaction import Compaction
from actors.roc_filter.stored import decode_stored, encode_stored
from agent_rl.figures import StepFigures, TrainingFigures
from agent_rl.messages import Judgement, Trajectory
from agent_rl.records.journal import Journal
from agent_rl.testing import opened, repacked, trajectory
from benchmarks.command import WrongOptions
from benchmarks.reporting import print_figures, print_table
from transport import encode

TOKENS, GROUPS, SAMPLES, VOCABULARY = 10_000, 512, 32, 151_936
TEXT_PER_TOKEN = 4
"""Characters; what the model wrote is kept as text beside the tokens."""
GIGABYTE = 1e9
WRITTEN_INTO_SQLITE = 5e8
ROOM = 1.2
"""Of the bytes asked for, what a disk must have free."""


def long_trajectory() -> Trajectory:
    """A rollout of `TOKENS` tokens, some of them a tool's: ids by Zipf's law, text from the standard library."""
    draw = np.random.default_rng(0)
    logprobs = -np.abs(draw.normal(0, 0.6, TOKENS)).astype(np.float32)
    logprobs[draw.random(TOKENS) < 0.5] *= 1e-4  # half of the tokens are nearly certain
    mask = np.ones(TOKENS, dtype=np.uint8)
    mask[3_000:3_500] = 0
    logprobs[mask == 0] = 0.0
    text = (inspect.getsource(subprocess) + inspect.getsource(json_module) + inspect.getsource(textwrap))[
        : TOKENS * TEXT_PER_TOKEN
    ]
    made = trajectory(opened(0), 0, answer=text, tokens=TOKENS)
    return repacked(
        made,
        tokens=(draw.zipf(1.2, TOKENS) % VOCABULARY).astype(np.int32),
        loss_mask=mask,
        logprobs=logprobs,
        policies=np.repeat(np.array([[1, 7], [1, 8]], dtype=np.int32), TOKENS // 2, axis=0),
    )


def packing() -> dict[str, float]:
    """Bytes a token as the message travels and as it is stored, and the milliseconds of packing and unpacking."""
    made = long_trajectory()
    stored = encode_stored(made)
    began = time.perf_counter()
    for _ in range(50):
        encode_stored(made)
    packed = time.perf_counter()
    for _ in range(50):
        decode_stored(stored)
    read = time.perf_counter()
    return {
        "bytes_per_token_before": sum(len(bytes(frame)) for frame in encode(made)) / TOKENS,
        "bytes_per_token": len(stored) / TOKENS,
        "pack_ms": 20 * (packed - began),
        "unpack_ms": 20 * (read - packed),
    }


class LoopTime(trio.abc.Instrument):
    """How long one task ran in the event loop, in all and at once, in seconds."""

    def __init__(self) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.seconds = self.longest = 0.0
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - the interface
        """A task goes on."""
        self._began = time.perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A task waits."""
        if task is self.task:
            step = time.perf_counter() - self._began
            self.seconds += step
            self.longest = max(self.longest, step)


def write_steps(journal: Journal, steps: int, payload: bytes) -> None:
    """Steps of the paper's size, all of them trained."""
    for version in range(steps):
        names = [f"s0-g{number:06d}" for number in range(version * GROUPS, (version + 1) * GROUPS)]
        for number, name in enumerate(names, start=version * GROUPS):
            journal.open_group(name, 0, number, "train", bytes(1000))
            for sample in range(SAMPLES):
                journal.add_trajectory(name, sample, 0, "finished", payload)
                journal.judge(name, sample, 0, Judgement(float(sample % 2), success=bool(sample % 2)))
            journal.ready(
                name, [(sample, 0) for sample in range(SAMPLES // 2)], [1.0, 0.0] * (SAMPLES // 4), version, number + 1
            )
            journal.commit()
        journal.close_step(version, 0, names, names, StepFigures())
        journal.step_trained(version, TrainingFigures())
        journal.commit(flush=True)


def compaction(gigabytes: float, directory: Path) -> dict[str, float]:
    """The figures of a compaction of so many bytes of payload: seconds of the filter's event loop for each step."""
    payload = os.urandom(len(encode_stored(long_trajectory())))
    steps = max(3, round(gigabytes * GIGABYTE / (len(payload) * GROUPS * SAMPLES)))
    size = steps * len(payload) * GROUPS * SAMPLES
    if shutil.disk_usage(directory).free < ROOM * size:
        raise WrongOptions(
            f"{directory} has no room for {size / GIGABYTE:.1f} GB: name another --directory, or fewer --gigabytes"
        )
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        journal = Journal(Path(folder) / "journal.sqlite")
        began = time.perf_counter()
        write_steps(journal, steps, payload)
        written = time.perf_counter() - began
        journal.keep_from(steps)
        journal.commit()
        loop = LoopTime()

        async def leave() -> None:
            loop.task = trio.lowlevel.current_task()
            await Compaction(journal, "replay", journal.commit, trio.to_thread.run_sync).once()

        began = time.perf_counter()
        trio.run(leave, instruments=[loop])
        wall = time.perf_counter() - began
        left = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        journal.close()
    return {
        "journal_gb": size / GIGABYTE,
        "steps": float(steps),
        "left_gb": left / GIGABYTE,
        "write_s_per_step": written / steps,
        "compaction_s_per_step": loop.seconds / steps,
        "compaction_longest_s": loop.longest,
        "compaction_wall_s_per_step": wall / steps,
    }


def deleting_in_sqlite(directory: Path, *, secure: bool) -> float:
    """Seconds a gigabyte of one DELETE of payloads that are in the database itself."""
    payload = os.urandom(100_000)
    rows = round(WRITTEN_INTO_SQLITE / len(payload))
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        base = sqlite3.connect(Path(folder) / "payloads.sqlite", isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", f"secure_delete = {'ON' if secure else 'OFF'}"):
            base.execute(f"PRAGMA {pragma}")
        base.execute("CREATE TABLE payloads (name INTEGER PRIMARY KEY, payload BLOB)")
        for row in range(rows):
            base.execute("INSERT INTO payloads VALUES (?, ?)", (row, payload))
        began = time.perf_counter()
        base.execute("DELETE FROM payloads WHERE name >= 0")
        seconds = time.perf_counter() - began
        base.close()
    return seconds * GIGABYTE / WRITTEN_INTO_SQLITE


@dataclass(kw_only=True)
class Options:
    """The options."""

    gigabytes: tuple[float, ...] = (4.0,)
    """Of payload, one compaction each."""
    directory: Path = Path()
    """Where the journals are written, and removed again."""


def main(options: Options) -> int:
    """Measure and print."""
    packed = packing()
    print_table("A trajectory of 10,000 tokens", list(packed), [list(packed.values())])
    results = [compaction(size, options.directory) for size in options.gigabytes]
    print_table("Trajectories leave", list(results[0]), [list(each.values()) for each in results])
    deleted = {
        f"sqlite_delete_s_per_gb{'_secure' if secure else ''}": deleting_in_sqlite(options.directory, secure=secure)
        for secure in (True, False)
    }
    print_figures({**packed, **results[-1], **deleted})
    return 0
