"""Bodies of the tool services' protocols: what is read of them, how ends are told, and what wrong ones get."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from agent_rl.tool_protocols import code_judge, sandbox_fusion
from agent_rl.tool_protocols.base import QUEUE_FOR_LONG, BodyError, Bounds, Program, ProgramEnd, Run

BOUNDS = Bounds(seconds=3.0, most_seconds=20.0, memory_bytes=1 << 30, shown=8, queue_seconds=2.0)
ENDPOINTS = {**code_judge.ENDPOINTS, **sandbox_fusion.ENDPOINTS}
PYTHON: dict[str, Any] = {"type": "python", "solution": "print(1)"}
CODE: dict[str, Any] = {"language": "python", "code": "print(1)"}


def told(path: str, body: Any, *ends: ProgramEnd) -> Any:
    return json.loads(ENDPOINTS[path](json.dumps(body).encode(), BOUNDS).reply(ends))


def only(path: str, body: Any) -> Program:
    (program,) = ENDPOINTS[path](json.dumps(body).encode(), BOUNDS).programs
    return program


def test_a_submission_is_a_program_with_the_limits_of_the_service() -> None:
    program = only("/run", {**PYTHON, "input": "9", "expected_output": "9", "options": {"a": "b"}, "unknown": 1})
    assert (program.code, program.stdin, program.seconds, program.memory_bytes) == ("print(1)", "9", 3.0, 1 << 30)
    assert only("/judge", {**PYTHON, "input": None}).stdin == ""


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ProgramEnd(Run(0, " 1\n", "", 0.5)), (True, True, "", 0.5, " 1\n", "")),
        (ProgramEnd(Run(0, "2\n", "w", 0.5)), (False, True, "", 0.5, "2\n", "w")),
        (ProgramEnd(Run(0, "1\n[cut", "", 0.5, cut=True)), (False, True, "output_limit", 0.5, "1\n[cut", "")),
        (ProgramEnd(Run(1, "1\n", "0123456789", 0.5)), (False, False, "", 0.5, "1\n", "01234567")),
        (ProgramEnd(Run(None, "1\n", "", 3.0)), (False, False, "worker_timeout", 3.0, "1\nSuicid", "")),
        (ProgramEnd(Run(None, fault="broken")), (False, False, "internal_error", 0.0, None, "broken")),
        (ProgramEnd(None, Run(1, "", "no")), (False, False, "", 0.0, "", "no")),
        (ProgramEnd(None, Run(None, "", "", 3.0)), (False, False, "worker_timeout", 3.0, "Suicide ", "")),
        (ProgramEnd(None, waited=2.0), (False, False, "queue_timeout", 2.0, None, None)),
    ],
)
def test_the_end_of_a_submission(end: ProgramEnd, expected: tuple[Any, ...]) -> None:
    body = {**PYTHON, "sub_id": "mine", "expected_output": "1"}
    fields = ("success", "run_success", "reason", "cost", "stdout", "stderr")
    shown = told("/run", body, end)
    assert shown == {"sub_id": "mine", **dict(zip(fields, expected, strict=True))}
    assert told("/judge", body, end) == {name: value for name, value in shown.items() if not name.startswith("std")}


def test_a_batch_is_answered_in_its_order_and_a_long_one_is_patient() -> None:
    batch = {"submissions": [{**PYTHON, "sub_id": str(at), "expected_output": "1"} for at in range(3)]}
    ends = [ProgramEnd(Run(0, str(at))) for at in range(3)]
    for path in ("/run/batch", "/run/long-batch", "/judge/batch", "/judge/long-batch"):
        body = told(path, batch, *ends)
        assert [(one["sub_id"], one["success"]) for one in body["results"]] == [("0", False), ("1", True), ("2", False)]
        assert all(("stdout" in one) == ("run" in path) for one in body["results"])
        patient = ENDPOINTS[path](json.dumps(batch).encode(), BOUNDS).queue_seconds
        assert patient == (QUEUE_FOR_LONG if "long" in path else 2.0)
    assert told("/run", PYTHON, ends[0])["sub_id"] != told("/run", PYTHON, ends[0])["sub_id"]


def test_a_request_of_sandbox_fusion_has_its_own_limits_within_those_of_the_service() -> None:
    plain = only("/run_code", CODE)
    assert (plain.seconds, plain.compile_seconds, plain.memory_bytes, plain.stdin) == (10.0, 10.0, 1 << 30, "")
    asked = {**CODE, "run_timeout": 0.5, "compile_timeout": 1000, "memory_limit_MB": 64, "stdin": "x"}
    program = only("/run_code", {**asked, "files": {"a": "YQ==", "b": None}, "fetch_files": ["c"]})
    assert (program.seconds, program.compile_seconds, program.memory_bytes) == (0.5, 20.0, 64 << 20)
    assert (program.stdin, program.files, program.fetch) == ("x", {"a": "YQ=="}, ["c"])
    assert only("/run_code", {**CODE, "memory_limit_MB": 1 << 20, "run_timeout": -1}).memory_bytes == 1 << 30


FINISHED = {"status": "Finished", "execution_time": 0.5, "return_code": 0, "stdout": "1\n", "stderr": ""}


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (ProgramEnd(Run(0, "1\n", "", 0.5, {"c": "YQ=="})), ("Success", "", None, FINISHED, {"c": "YQ=="})),
        (ProgramEnd(Run(2, "1\n", "", 0.5)), ("Failed", "", None, {**FINISHED, "return_code": 2}, {})),
        (ProgramEnd(Run(0, "1\n", "", 0.5), Run(0, "1\n", "", 0.5)), ("Success", "", FINISHED, FINISHED, {})),
        (ProgramEnd(None, Run(1, "1\n", "", 0.5)), ("Failed", "", {**FINISHED, "return_code": 1}, None, {})),
        (
            ProgramEnd(Run(None, "1\n", "", 0.5)),
            ("Failed", "", None, {**FINISHED, "status": "TimeLimitExceeded", "return_code": None}, {}),
        ),
        (
            ProgramEnd(Run(None, fault="broken")),
            ("SandboxError", "broken", None, {**dict.fromkeys(FINISHED), "status": "Error", "stderr": "broken"}, {}),
        ),
        (
            ProgramEnd(None, waited=9.0),
            ("SandboxError", "no place was free within 9 s; send fewer programs at once", None, None, {}),
        ),
    ],
)
def test_the_end_of_a_program_of_sandbox_fusion(end: ProgramEnd, expected: tuple[Any, ...]) -> None:
    fields = ("status", "message", "compile_result", "run_result", "files")
    body = told("/run_code", CODE, end)
    assert body == {**dict(zip(fields, expected, strict=True)), "executor_pod_name": None}


@pytest.mark.parametrize(
    ("path", "body", "places"),
    [
        ("/run", b"{", [["body"]]),
        ("/run", b"[]", [["body"]]),
        ("/run", b"\xff", [["body"]]),
        ("/run", b'{"type": "python"}', [["body", "solution"]]),
        ("/run", b'{"type": "java", "solution": 1}', [["body", "type"], ["body", "solution"]]),
        ("/judge", b'{"type": "python", "solution": "\\ud800"}', [["body"]]),
        ("/run/batch", b'{"submissions": []}', [["body", "submissions"]]),
        ("/run/batch", b'{"submissions": [{"type": "cpp"}]}', [["body", "submissions", 0, "solution"]]),
        ("/judge/long-batch", b'{"type": "python", "submissions": 3}', [["body", "type"], ["body", "submissions"]]),
        ("/run_code", b'{"code": "", "language": "go"}', [["body", "language"]]),
        ("/run_code", b'{"code": "", "language": "python", "run_timeout": NaN}', [["body", "run_timeout"]]),
        ("/run_code", b'{"code": "", "language": "python", "files": {"a": 1}}', [["body", "files", "a"]]),
    ],
)
def test_a_wrong_body_names_each_field_at_fault(path: str, body: bytes, places: list[Any]) -> None:
    with pytest.raises(BodyError) as wrong:
        ENDPOINTS[path](body, BOUNDS)
    found = json.loads(wrong.value.body)["detail"]
    assert [fault["loc"] for fault in found] == places
    assert all(fault["msg"] and fault["type"] for fault in found)


def test_modules_are_looked_for_in_code_that_a_program_decodes() -> None:
    hidden = base64.b64encode(b"import numpy").decode()
    for code in (f'x = base64.b64decode("{hidden}".encode()).decode()', f"b64decode(b'{hidden}')"):
        assert "import numpy" in only("/run", {**PYTHON, "solution": code}).names
    assert "numpy" not in only("/run", {**PYTHON, "solution": f"'{hidden}'; b64decode('A')"}).names
