"""The protocol of SandboxFusion (https://github.com/bytedance/SandboxFusion): a program with files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from pydantic import BaseModel, Field

from agent_rl.tool_protocols.base import Asked, Bounds, Language, Program, ProgramEnd, Read, Run, read_as

SHORTEST = 1e-3
"""Seconds of a program that is given no time."""
Status: TypeAlias = Literal["Success", "Failed", "SandboxError"]


class RunCodeRequest(BaseModel):
    """A program. Paths in ``files`` (contents in base64) and ``fetch_files`` begin at its working directory."""

    compile_timeout: float = Field(10, allow_inf_nan=False)
    run_timeout: float = Field(10, allow_inf_nan=False)
    memory_limit_MB: int = -1  # noqa: N815  the protocol's name
    code: str
    stdin: str | None = None
    language: Language
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


class CommandRunResult(BaseModel):
    """How the compiler or the program ended; ``return_code`` is None at its time limit."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class RunCodeResponse(BaseModel):
    """``message`` says what the sandbox could not do."""

    status: Status
    message: str = ""
    compile_result: CommandRunResult | None = None
    run_result: CommandRunResult | None = None
    executor_pod_name: str | None = None
    files: dict[str, str] = {}


def response(end: ProgramEnd) -> RunCodeResponse:
    """What the client is told of a program's end."""
    runs = [run for run in (end.compiled, end.run) if run is not None]
    faults = [run.fault for run in runs if run.fault]
    if not runs:
        faults = [f"no place was free within {end.waited:.0f} s; send fewer programs at once"]
    status: Status = "SandboxError" if faults else "Failed" if any(run.status != 0 for run in runs) else "Success"
    return RunCodeResponse(
        status=status,
        message="; ".join(faults),
        compile_result=command(end.compiled),
        run_result=command(end.run),
        files={} if end.run is None else dict(end.run.files),
    )


def command(run: Run | None) -> CommandRunResult | None:
    """The result of the compiler or of the program."""
    if run is None:
        return None
    if run.fault:
        return CommandRunResult(status="Error", stderr=run.fault)
    return CommandRunResult(
        status="TimeLimitExceeded" if run.status is None else "Finished",
        execution_time=run.seconds,
        return_code=run.status,
        stdout=run.stdout,
        stderr=run.stderr,
    )


def read(content: bytes, bounds: Bounds) -> Asked:
    """A request for one program, whose limits are at most the service's. Raises BodyError."""
    asked = read_as(RunCodeRequest, content)

    def reply(ends: Sequence[ProgramEnd]) -> bytes:
        return response(ends[0]).model_dump_json().encode()

    wanted = asked.memory_limit_MB << 20 if asked.memory_limit_MB > 0 else bounds.memory_bytes
    program = Program(
        language=asked.language,
        code=asked.code,
        stdin=asked.stdin or "",
        seconds=min(max(asked.run_timeout, SHORTEST), bounds.most_seconds),
        compile_seconds=min(max(asked.compile_timeout, SHORTEST), bounds.most_seconds),
        memory_bytes=min(wanted, bounds.memory_bytes),
        files={path: content for path, content in asked.files.items() if content is not None},
        fetch=asked.fetch_files,
    )
    return Asked([program], reply)


ENDPOINTS: dict[str, Read] = {"/run_code": read}
"""By path; all are POST."""
