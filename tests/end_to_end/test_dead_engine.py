"""Engines and tools that are broken for good: a run that trains on nothing ends, and message, summary and report say
why.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.end_to_end.processes import balanced, finish, processes_of, rows, start
from tests.end_to_end.topologies import write_half_right

ENGINE = "actors.rollout_generator.settings.engine=tests.end_to_end.faulty:{}"
SOUND = "actors.rollout_generator.class=tests.end_to_end.faulty:CallsTools"
ROOM = "stages.0.max_response_tokens=200"
"""For a call: its text is longer than what the topology allows."""
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
        [SOUND, ROOM, "actors.tool_executor.class=tests.end_to_end.faulty:NoTools"],
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


@pytest.mark.slow
@pytest.mark.parametrize("broken", BROKEN)
def test_a_run_whose_rollouts_all_come_to_nothing_ends_with_the_cause_and_goes_on_when_it_is_mended(
    tmp_path: Path, broken: str
) -> None:
    arguments, wanted, told = BROKEN[broken]
    path, directory = write_half_right(tmp_path, steps=3)
    said = finish(start(path, *arguments, STARTED=str(tmp_path / "started")), wanted)
    assert "stopping the run: " in said.out
    assert told in said.out
    assert "Traceback" not in said.all
    assert processes_of(path) == []
    assert json.loads((directory / "summary.json").read_text())["steps"] == 0
    end = json.loads((directory / "end.json").read_text())
    assert end["exit_code"] == wanted
    assert told in end["reason"]
    if (directory / "report.html").exists():  # a run that did anything has one
        assert "The run was stopped: " in (directory / "report.html").read_text()
        assert told in json.loads((directory / "summary.json").read_text())["stopped"]

    said = finish(start(path, SOUND))
    assert not (directory / "end.json").exists()
    balanced(directory)
    steps = [row for row in rows(directory / "metrics.jsonl") if row["kind"] == "step"]
    assert [row["groups_trained"] for row in steps] == [2, 2, 2]  # no step was lost to what was broken
