"""The protocol of code-judge (https://github.com/0xWJ/code-judge): programs, alone or in batches, run or judged.

A program is run with ``input`` as its standard input. Its output is right if ``expected_output`` is the same, white
space at both ends aside. ``/run`` shows the output, ``/judge`` says only whether it is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeAlias
from uuid import uuid4

from pydantic import BaseModel, Field

from agent_rl.tool_protocols.base import QUEUE_FOR_LONG, Asked, Bounds, Language, Program, ProgramEnd, Read, read_as

SUICIDE = "Suicide from timeout.\n"
"""What code-judge's programs print at their time limit, and its clients look for."""
MARGIN = 4096
"""Bytes of white space around an expected output that an output may have."""
MOST_SUBMISSIONS = 10_000
"""Of one request."""
Reason: TypeAlias = Literal["", "internal_error", "worker_timeout", "queue_timeout", "output_limit"]


class Submission(BaseModel):
    """A program."""

    sub_id: str | None = None
    type: Language
    options: dict[str, str] | None = None
    solution: str
    input: str | None = None
    expected_output: str | None = None


class Batch(BaseModel):
    """Programs that are answered together, in their order."""

    sub_id: str | None = None
    type: Literal["batch"] = "batch"
    submissions: list[Submission] = Field(min_length=1, max_length=MOST_SUBMISSIONS, fail_fast=True)


class Judged(BaseModel):
    """``run_success``: it ended with status 0; ``success``: its output is the expected one, too; ``cost``: seconds."""

    sub_id: str
    success: bool
    run_success: bool
    cost: float
    reason: Reason = ""


class Shown(Judged):
    """The same with what it printed."""

    stdout: str | None = None
    stderr: str | None = None


class BatchResult(BaseModel):
    """The results of a batch."""

    sub_id: str
    results: list[Shown] | list[Judged]


def result(asked: Submission, end: ProgramEnd, shown: int) -> Shown:
    """The result of a program; outputs have at most ``shown`` characters."""
    run, compiled = end.run, end.compiled

    def made(*, ran: bool, right: bool = False, cost: float = 0.0, reason: Reason = "", **output: str) -> Shown:
        cut = {name: text[:shown] for name, text in output.items()}
        sub_id = asked.sub_id or str(uuid4())
        return Shown(sub_id=sub_id, success=right, run_success=ran, cost=cost, reason=reason, **cut)

    if run is None and compiled is None:
        return made(ran=False, cost=end.waited, reason="queue_timeout")
    last = run or compiled
    assert last is not None
    if last.fault:
        return made(ran=False, reason="internal_error", stderr=last.fault)
    if last.status is None:
        out = last.stdout + SUICIDE
        return made(ran=False, cost=last.seconds, reason="worker_timeout", stdout=out, stderr=last.stderr)
    if run is None:
        return made(ran=False, stdout="", stderr=last.stderr)
    ran = run.status == 0
    judged = asked.expected_output is not None
    right = ran and (not judged or run.stdout.strip() == (asked.expected_output or "").strip())
    reason: Reason = "output_limit" if judged and run.cut else ""
    return made(ran=ran, right=right, cost=run.seconds, reason=reason, stdout=run.stdout, stderr=run.stderr)


def program(asked: Submission, bounds: Bounds) -> Program:
    """The program of a submission."""
    return Program(
        language=asked.type,
        code=asked.solution,
        stdin=asked.input or "",
        seconds=bounds.seconds,
        memory_bytes=bounds.memory_bytes,
        compile_seconds=bounds.seconds,
        output_bytes=len((asked.expected_output or "").encode("utf-8", "replace")) + MARGIN,
    )


def read_one(content: bytes, bounds: Bounds, *, judges: bool) -> Asked:
    """A request for one program. Raises BodyError."""
    asked = read_as(Submission, content)

    def reply(ends: Sequence[ProgramEnd]) -> bytes:
        return _hidden(result(asked, ends[0], bounds.shown), judges=judges).model_dump_json().encode()

    return Asked([program(asked, bounds)], reply, bounds.queue_seconds)


def read_batch(content: bytes, bounds: Bounds, *, judges: bool, long: bool) -> Asked:
    """A request for several programs. Raises BodyError."""
    asked = read_as(Batch, content)

    def reply(ends: Sequence[ProgramEnd]) -> bytes:
        found = [result(one, end, bounds.shown) for one, end in zip(asked.submissions, ends, strict=True)]
        results = [_hidden(one, judges=judges) for one in found]
        body = BatchResult.model_construct(sub_id=asked.sub_id or str(uuid4()), results=results)
        return body.model_dump_json(serialize_as_any=True).encode()

    programs = [program(one, bounds) for one in asked.submissions]
    return Asked(programs, reply, QUEUE_FOR_LONG if long else bounds.queue_seconds)


def _hidden(found: Shown, *, judges: bool) -> Judged:
    return Judged(**found.model_dump(exclude={"stdout", "stderr"})) if judges else found


ENDPOINTS: dict[str, Read] = {
    path: read
    for name, judges in (("/run", False), ("/judge", True))
    for path, read in (
        (name, partial(read_one, judges=judges)),
        (f"{name}/batch", partial(read_batch, judges=judges, long=False)),
        (f"{name}/long-batch", partial(read_batch, judges=judges, long=True)),
    )
}
"""By path; all are POST."""
