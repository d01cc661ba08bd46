"""An environment whose code blocks an actor's event loop, in a real run: the run stops with exit 2, file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.processes import balanced, finish, processes_of, start
from tests.end_to_end.topologies import ENVIRONMENT, write_micro

CODE = '''
"""An environment whose code blocks, and an engine whose every turn makes it do so."""
import sys
import time
from pathlib import Path
from agent_rl_contract.scripted import ScriptedEngine
from examples.quickstart.arithmetic import Arithmetic
from agent_rl.environments.base import Environment
from agent_rl.messages import Judgement

TEXT = "The answer is not here."


class Engine(ScriptedEngine):
    def __init__(self, path, **settings):
        super().__init__(path, script=lambda turn, request: TEXT, **settings)

    async def load_weights(self, path, policy):
        await super().load_weights(Path("/weights"), policy)


class Judge(Arithmetic):
    def judge_at_once(self, problem, transcript):
        return None

    async def judge(self, problem, transcript, context):
        if TEXT in transcript.text:
            time.sleep(1e9)
        return Judgement(0.0, False)


class Keeps(Judge):
    async def judge(self, problem, transcript, context):
        sys.set_int_max_str_digits(0)
        return str(7 ** 30_000_000) if TEXT in transcript.text else Judgement(0.0, False)


class AtOnce(Arithmetic):
    def judge_at_once(self, problem, transcript):
        while TEXT in transcript.text:
            pass
        return super().judge_at_once(problem, transcript)


class Observe(Arithmetic):
    observes = True

    async def observe(self, problem, transcript, state, context):
        time.sleep(1e9)


class Loop(Arithmetic):
    async def rollout(self, problem, model, tools):
        await model([{"role": "user", "content": problem.text}])
        while True:
            pass
'''


def line_of(text: str, *, after: str) -> int:
    """The line of CODE with ``text``, after the one with ``after``."""
    lines = CODE.splitlines()
    begin = next(number for number, line in enumerate(lines) if after in line)
    return next(number for number, line in enumerate(lines[begin:], begin + 1) if text in line)


def write(folder: Path, environment: str, executor: str = "") -> tuple[Path, Path]:
    path, directory = write_micro(folder)
    (folder / "blocking_code.py").write_text(CODE)
    text = path.read_text().replace(ENVIRONMENT, f'class = "blocking_code:{environment}"')
    text = text.replace("settings = { max_rollouts", 'settings = { engine = "blocking_code:Engine", max_rollouts')
    path.write_text(text.replace('class = "actors.tool_executor:ToolExecutor"\n', f"{executor}\n"))
    return path, directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "name", "text"),
    [
        ("Judge", "Judge.judge", "time.sleep"),
        ("AtOnce", "AtOnce.judge_at_once", "pass"),
        ("Observe", "observe", "time.sleep"),
        ("Loop", "its own rollout:", "pass"),
    ],
)
def test_code_that_blocks_three_times_in_a_row_stops_the_run_with_its_place(
    tmp_path: Path, environment: str, name: str, text: str
) -> None:
    path, directory = write(tmp_path, environment)
    said = finish(start(path), 2)
    (stop,) = [line for line in (said.all).splitlines() if "stopping the run" in line]
    assert "failed at 3 rollouts in a row" in stop
    assert f"{name} fails with BlockedError: it held the event loop for 3 s" in stop
    lines = {line_of(text, after=f"class {environment}("), line_of("while", after=f"class {environment}(")}
    assert any(f"(blocking_code.py, line {line})" in stop for line in lines), stop
    assert "Traceback" not in said.all
    assert "starting it again" not in said.all  # no actor had to die
    balanced(directory)
    assert processes_of(path) == []


@pytest.mark.slow
def test_code_that_cannot_be_interrupted_stops_the_run_too(tmp_path: Path) -> None:
    """It holds the interpreter's lock: the executor is killed when it is silent for too long, three times."""
    path, _ = write(tmp_path, "Keeps", executor="silent_seconds = 15.0")
    said = finish(start(path), 2)
    place = f"judge (blocking_code.py, line {line_of('return str', after='class Keeps(')})"
    notices = (said.all).splitlines()
    assert sum(f"starting it again (its event loop stood still in {place})" in line for line in notices) == 2
    (stop,) = [line for line in notices if "stopping the run" in line]
    assert f"tool_executor.0 was killed 3 times in a row, since its event loop stood still in {place}" in stop
    assert processes_of(path) == []
