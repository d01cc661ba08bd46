"""How the end of a program in the sandbox is read."""

from __future__ import annotations

from pydantic import BaseModel, Field, ValidationError

from actors.sandbox.owner.interpreter import Ending, ExecutionLimits, text_of
from actors.sandbox.wire import CPU_TIMEOUT, NO_VERDICT, TIMEOUT
from agent_rl.tool_protocols.base import Run

FAILED = 1
"""The exit status of a Python program that ends with an exception."""


class Report(BaseModel):
    """What a program's child says of its end (``inside/child.py``)."""

    status: int = Field(default=0, ge=0, le=255)
    files: dict[str, str] = {}
    fault: str = ""


def run_of(ending: Ending, limits: ExecutionLimits) -> Run:
    """How a program ended, by: the server's verdict, the exit status, and the child's report. Output is cut.

    A program that ended after its time, before it could be killed, counts as one at its time limit. The
    child's report can be forged, and a program that ends with ``os._exit`` leaves none.
    """
    ended = ending.ended
    if ended is None:
        return Run(None, fault=ending.stderr.strip())
    stdout, stderr = (text_of(data, limits.output_bytes) for data in (ended.stdout, ended.stderr))
    if ended.verdict in (TIMEOUT, CPU_TIMEOUT) or ended.seconds >= limits.wall_seconds:
        return Run(None, stdout, stderr, ended.seconds)
    status, report = ended.status, Report()
    if ended.verdict == NO_VERDICT and not status:
        said, _, text = ended.report.partition(b"\n")
        if said in (b"error", b"memory_limit"):
            status = FAILED
        elif said == b"success":
            try:
                report = Report.model_validate_json(text)
                status = report.status
            except ValidationError:
                status = FAILED
    elif ended.out_of_memory:
        stderr += "The memory of all calls together was used up, and this one was ended.\n"
    cut = len(ended.stdout) > limits.output_bytes
    return Run(status, stdout, stderr, ended.seconds, report.files, report.fault, cut)
