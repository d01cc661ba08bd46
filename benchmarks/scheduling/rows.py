"""What a policy makes of a trace, as a row; rows are kept in a file of JSON lines, so that a table can be resumed."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from benchmarks.command import WrongOptions
from benchmarks.scheduling.bound import lower_bound
from benchmarks.scheduling.policies import spec_of
from benchmarks.scheduling.settings import chosen
from benchmarks.scheduling.simulator import Simulator
from benchmarks.scheduling.traces import generate
from benchmarks.twin.trace import Trace

MEASURES = ("makespan_s", "tokens_per_s", "preempted_share", "hit_rate", "group_p99_s", "start_spread")


class Job(NamedTuple):
    """A simulation: a policy with its settings on the trace of a seed."""

    trace: str
    seed: int
    scale: float
    policy: str
    settings: str


class Row(NamedTuple):
    """The figures of a job. Seconds are modelled ones, except for ``spent_s``, the processor time of the simulation."""

    job: Job
    makespan_s: float
    bound_s: float
    tokens_per_s: float
    preempted_share: float
    hit_rate: float
    group_p99_s: float
    start_spread: float
    idle_share: float
    faults: int
    spent_s: float

    @property
    def trace(self) -> str:
        """The name of the trace."""
        return self.job.trace

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return self.job.policy


def job_of(trace: str, seed: int, scale: float, policy: str) -> Job:
    """The policy with the settings that were chosen for the trace."""
    used = spec_of(policy).settings | chosen(trace, policy)
    return Job(trace, seed, scale, policy, ", ".join(f"{name}={value}" for name, value in used.items()))


def simulate(job: Job) -> Row:
    """Run the job."""
    began = time.process_time()
    trace, bound = _trace(job.trace, job.seed, job.scale)
    spec = spec_of(job.policy)
    policy = spec.make(**chosen(job.trace, job.policy))
    outcome = Simulator(trace, policy, evicts_half=spec.evicts_half, each_turn=spec.each_turn).run()
    return Row(
        job,
        bound_s=bound,
        idle_share=outcome.idle_share,
        faults=sum(outcome.faults.values()),
        spent_s=time.process_time() - began,
        **{measure: getattr(outcome, measure) for measure in MEASURES},
    )


@lru_cache(maxsize=1)
def _trace(name: str, seed: int, scale: float) -> tuple[Trace, float]:
    """The trace and its bound: policies on the same trace follow each other."""
    trace = generate(name, seed, scale)
    return trace, lower_bound(trace)


def rows_of(jobs: Sequence[Job], processes: int, file: Path | None, again: Collection[str]) -> list[Row]:
    """The rows of the jobs, in their order.

    With a file, the rows that it has are taken from it, except for those of the policies ``again``, and each new row is
    added to it at once. So a run that was interrupted goes on where it was.
    """
    known = {row.job: row for row in (read_rows(file) if file is not None else ()) if row.policy not in again}
    missing = [job for job in jobs if job not in known]
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(simulate, job) for job in missing]):
            row = future.result()
            known[row.job] = row
            if file is not None:
                with file.open("a", encoding="utf-8") as lines:
                    lines.write(json.dumps(row._asdict() | {"job": row.job._asdict()}) + "\n")
    return [known[job] for job in jobs]


def read_rows(file: Path) -> Iterable[Row]:
    """The rows of the file; none when there is no file. A later row replaces an earlier one of the same job."""
    return list(_rows(file)) if file.exists() else []


def _rows(file: Path) -> Iterator[Row]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
            yield Row(**{**fields, "job": Job(**fields["job"])})
        except (ValueError, TypeError, KeyError) as error:
            raise WrongOptions(f"--save {file}, line {number}: no row of this benchmark ({error!r})") from error
