"""Engine and learner on one device in turns, for real: no token is written while the learner trains; nothing is lost."""

import pytest

from tests.end_to_end.processes import Run
from tests.end_to_end.topologies import write_half_right
from tests.end_to_end.turns import FAULT, NOTES

STEPS = 4


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "learner", "generator"])
def test_they_take_turns_whoever_dies(tmp_path, fault):
    turns = "tests.end_to_end.turns"
    run = Run(*write_half_right(tmp_path, steps=STEPS, learner=f"{turns}:NotedLearner"))
    notes = tmp_path / "notes"
    notes.touch()
    shared = ["actors.learner.share=time", "actors.rollout_generator.share=time"]
    shared += [f'actors.rollout_generator.settings.engine="{turns}:NotedEngine"']
    run.to_end(*shared, **{NOTES: str(notes), FAULT: fault})
    run.balanced()
    lines = [line.split() for line in notes.read_text().splitlines()]
    assert ("fault" in {line[0] for line in lines}) == bool(fault)

    training, trained, written, dying = False, 0, 0, ""
    for what, *_, process, _ in sorted(lines, key=lambda line: float(line[-1])):
        dying = process if what == "fault" else dying
        if what in {"trains", "trained"}:
            training = what == "trains"
            trained += what == "trained"
        elif what == "wakes" or (what == "fault" and fault == "learner"):
            assert not training or fault == "learner"
            training = False
        elif what == "tokens" and process != dying:  # a step that was under way may end after the engine's failure
            assert not training, "a token was written while the learner trained"
            written += 1
    assert trained >= STEPS
    assert written > STEPS
    slept = sum(line[0] == "asleep" for line in lines)
    assert slept >= STEPS - (fault == "generator")
