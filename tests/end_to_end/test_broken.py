"""What is broken for good, or blocks, or is full, in a real run: the run ends with one clear message and the cause, loses
nothing, and goes on once that is mended.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agent_rl.records.checkpoint_files import read_position
from tests.end_to_end.faulty import BAD_VERSIONS
from tests.end_to_end.processes import Run, rows
from tests.end_to_end.topologies import ENVIRONMENT, write_half_right, write_micro
from tests.full_disk import fill, small_disk

pytestmark = pytest.mark.slow
ENGINE = "actors.rollout_generator.settings.engine=tests.end_to_end.faulty:{}"
SOUND = "actors.rollout_generator.class=tests.end_to_end.faulty:CallsTools"
BROKEN = {
    # what is broken: the arguments that make it so, the exit code, and what is said
    "an engine that refuses every prompt": (
        [ENGINE.format("Refuses")],
        2,
        "attempts failed), the last one on rollout_generator.0: the device has fallen off the bus; look at logs/",
    ),
    "an engine that returns rubbish": (
        [ENGINE.format("Rubbish")],
        2,
        "rollout_generator.0: the engine returned log-probabilities that are not finite; look at logs/",
    ),
    "tools that run nothing": (
        [SOUND, "stages.0.max_response_tokens=200", "actors.tool_executor.class=tests.end_to_end.faulty:NoTools"],
        2,
        "rollout_generator.0: tools unavailable: s0-g",
    ),
    "an engine that dies whenever it is started": (
        [ENGINE.format("Dies")],
        1,
        "EngineError: an illegal memory access was encountered",
    ),
    "an engine whose device is gone when it is started again": (
        [ENGINE.format("Unservable")],
        2,
        "the engine cannot be started: device: torch has no 'cuda' here",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_run_whose_rollouts_all_come_to_nothing_ends_with_the_cause_and_goes_on_when_it_is_mended(tmp_path, broken):
    arguments, wanted, told = BROKEN[broken]
    run = Run(*write_half_right(tmp_path, steps=3))
    said = run.to_end(*arguments, code=wanted, STARTED=str(tmp_path / "started"))
    assert "stopping the run: " in said.out
    assert told in said.out
    assert "Traceback" not in said.all
    assert run.processes == []
    assert run.summary()["steps"] == 0
    end = json.loads(run.text("end.json"))
    assert end["exit_code"] == wanted
    assert told in end["reason"]
    if (run.directory / "report.html").exists():  # a run that did anything has one
        assert "The run was stopped: " in run.text("report.html")
        assert told in run.summary()["stopped"]

    run.to_end(SOUND)
    assert not (run.directory / "end.json").exists()
    run.balanced()
    assert [row["groups_trained"] for row in run.told("step")] == [2, 2, 2]  # no step was lost to what was broken


def test_one_step_that_is_not_finite_is_skipped_three_stop_the_run_and_it_continues_from_before_them(tmp_path):
    run = Run(*write_half_right(tmp_path, steps=8, learner="tests.end_to_end.faulty:FaultyLearner"))
    said = run.to_end(code=2, **{BAD_VERSIONS: "1,3,4,5"})
    (stop,) = [line for line in said.all.splitlines() if "stopping the run" in line]
    assert "learner.0: 3 steps of stage 'rl' in a row were not finite and changed nothing (step 4: " in stop
    assert "Traceback" not in said.all
    assert "starting it again" not in said.all
    assert run.processes == []

    newest = max((run.directory / "checkpoints").iterdir())
    assert newest.name == "version-000003-stage-00"
    assert all(bool(tensor.isfinite().all()) for tensor in load_file(newest / "model.safetensors").values())
    model = AutoModelForCausalLM.from_pretrained(newest)
    assert bool(model(torch.tensor([[5, 6, 7]])).logits.isfinite().all())

    balance = run.balanced()
    assert (balance.steps, balance.skipped_steps, balance.dropped["not_finite"]) == (6, 4, 8)
    summary = run.summary()
    assert (summary["steps"], summary["steps_skipped"], summary["groups_dropped_not_finite"]) == (6, 4, 8)
    steps = [(row["skipped"], row["steps_skipped"], row["groups_trained"]) for row in run.told("step")]
    assert steps == [(0, 0, 2), (1, 1, 0), (0, 1, 2), (1, 2, 0), (1, 3, 0), (1, 4, 0)]

    said = run.to_end()  # what made it NaN is mended
    balance = run.balanced()
    assert (balance.steps, balance.skipped_steps, balance.open) == (8, 4, 0)
    assert said.summary["steps_skipped"] == 4


STEPS = 400
"""More than the run can take before its disk is full."""


def trained(run: Run) -> dict[str, int]:
    """The step of every trained group."""
    with run.journal() as journal:
        return {group: step.version for step in journal.steps() if step.trained for group in step.groups}


@pytest.mark.parametrize("room", [pytest.param(0, id="at once"), pytest.param(120_000, id="after a while")])
def test_a_full_disk_stops_the_run_clearly_and_it_goes_on_once_there_is_room(tmp_path, room):
    with small_disk(tmp_path / "small", "24M") as disk:
        run = Run(*write_half_right(disk, steps=STEPS)).start().until(3)
        filler = fill(disk, but=room)
        said = run.finish(2).all
        stops = [line for line in said.splitlines() if "stopping the run: " in line]
        assert len(stops) == 1, said
        assert f" {run.directory}/" in stops[0]
        assert " cannot be written: No space left on device; make room on its disk, then run again" in stops[0]
        assert "Traceback" not in said
        assert "starting it again" not in said  # no restart would help
        lines = [line for line in said.splitlines() if "cannot be written" in line and not line.startswith("{")]
        assert len(lines) <= 2, said  # the report's line or the summary's is the other
        assert run.processes == []

        filler.unlink()
        run.balanced()
        before = trained(run)
        assert len(before) >= 6
        checkpoints = sorted((run.directory / "checkpoints").glob("version-*"))
        assert all(read_position(checkpoint) for checkpoint in checkpoints)
        assert not list(run.directory.rglob(".*.partial"))
        assert all(row["kind"] for row in rows(run.directory / "metrics.jsonl"))  # no half line

        done = run.trained
        run.to_end(f"stages.0.steps={done + 3}")
        run.balanced(steps=done + 3)
        assert before.items() <= trained(run).items()
        assert sorted({row["version"] for row in run.told("step")}) == list(range(1, done + 4))


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


def blocking(folder: Path, environment: str, executor: str = "") -> Run:
    path, directory = write_micro(folder)
    (folder / "blocking_code.py").write_text(CODE)
    text = path.read_text().replace(ENVIRONMENT, f'class = "blocking_code:{environment}"')
    text = text.replace("settings = { max_rollouts", 'settings = { engine = "blocking_code:Engine", max_rollouts')
    path.write_text(text.replace('class = "actors.tool_executor:ToolExecutor"\n', f"{executor}\n"))
    return Run(path, directory)


@pytest.mark.parametrize(
    ("environment", "name", "text"),
    [
        ("Judge", "Judge.judge", "time.sleep"),
        ("AtOnce", "AtOnce.judge_at_once", "pass"),
        ("Observe", "observe", "time.sleep"),
        ("Loop", "its own rollout:", "pass"),
    ],
)
def test_code_that_blocks_three_times_in_a_row_stops_the_run_with_its_place(tmp_path, environment, name, text):
    run = blocking(tmp_path, environment)
    said = run.to_end(code=2)
    (stop,) = [line for line in said.all.splitlines() if "stopping the run" in line]
    assert "failed at 3 rollouts in a row" in stop
    assert f"{name} fails with BlockedError: it held the event loop for 3 s" in stop
    lines = {line_of(text, after=f"class {environment}("), line_of("while", after=f"class {environment}(")}
    assert any(f"(blocking_code.py, line {line})" in stop for line in lines), stop
    assert "Traceback" not in said.all
    assert "starting it again" not in said.all  # no actor had to die
    run.balanced()
    assert run.processes == []


def test_code_that_cannot_be_interrupted_stops_the_run_too(tmp_path):
    """It holds the interpreter's lock: the executor is killed when it is silent for too long, three times."""
    run = blocking(tmp_path, "Keeps", executor="silent_seconds = 15.0")
    place = f"judge (blocking_code.py, line {line_of('return str', after='class Keeps(')})"
    notices = run.to_end(code=2).all.splitlines()
    assert sum(f"starting it again (its event loop stood still in {place})" in line for line in notices) == 2
    (stop,) = [line for line in notices if "stopping the run" in line]
    assert f"tool_executor.0 was killed 3 times in a row, since its event loop stood still in {place}" in stop
    assert run.processes == []
