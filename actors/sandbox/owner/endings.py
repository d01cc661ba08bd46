"""Derives the outcome of a call from the interpreter's verdict and the child's report. Pure."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from actors.sandbox.owner.interpreter import Ended
from actors.sandbox.wire import CPU_TIMEOUT, NO_VERDICT, SESSION_GOES_ON, SESSION_LEFT_PROCESSES, TIMEOUT
from agent_rl.messages import ToolOutcome

REPORTED: tuple[ToolOutcome, ...] = ("success", "error", "memory_limit")
"""Outcomes that a child may report itself. A forged one gains no more than `try: ... except: pass` does."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a call ended. ``signal``: the signal that ended its process, or 0; ``goes_on``: its session lives."""

    outcome: ToolOutcome
    stdout: str
    stderr: str
    value: str
    signal: int
    goes_on: bool


def ending_of(ended: Ended, output_bytes: int) -> Ending:
    """The outcome, by: memory run out, verdict of the server, too much output, exit status, child's report."""
    stdout, stderr = _text(ended.stdout, output_bytes), _text(ended.stderr, output_bytes)
    said, _, result = ended.report.decode("utf-8", "replace").partition("\n")
    outcome: ToolOutcome
    number = max(0, -ended.status)
    if ended.out_of_memory and ended.verdict in (NO_VERDICT, CPU_TIMEOUT):
        outcome = "memory_limit"
        stderr += "The memory of all calls together was used up, and this one was ended.\n"
    elif len(ended.stdout) > output_bytes or len(ended.stderr) > output_bytes:
        outcome = "output_limit"
    elif ended.verdict in (TIMEOUT, CPU_TIMEOUT):
        outcome = "timeout"
    elif ended.verdict == SESSION_LEFT_PROCESSES:
        outcome = "error"
        stderr += "The cell left processes running: its session was ended.\n"
    elif number:
        outcome = "killed"
        stderr += f"The process was ended by signal {number} ({signal.strsignal(number)}).\n"
    elif said in REPORTED and ended.verdict in (NO_VERDICT, SESSION_GOES_ON):
        outcome = next(name for name in REPORTED if name == said)
    else:
        outcome = "error"
        stderr += f"The process ended with status {ended.status} before the code did.\n"
    value = result if outcome == "success" else ""
    return Ending(outcome, stdout, stderr, value, number, ended.verdict == SESSION_GOES_ON)


def _text(data: bytes, most: int) -> str:
    """Output as text. Invalid UTF-8 is replaced; longer output is cut with a mark."""
    if len(data) <= most:
        return data.decode("utf-8", "replace")
    return f"{data[:most].decode('utf-8', 'ignore')}\n[cut after {most} bytes]\n"
