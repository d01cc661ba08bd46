"""What a stage may set: an rl stage its own values of `[algorithm]`, a supervised one its rate, a select one its rule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from actors.cli.topologies import sound_topology
from actors.roc_filter import RoCFilter
from agent_rl.config.algorithm import Algorithm
from agent_rl.config.full import resolved_text
from agent_rl.config.load import load_topology
from agent_rl.config.selection import Difficulty, Solved
from agent_rl.config.source import TopologyError
from agent_rl.config.topology import PER_STAGE, Topology
from agent_rl.groups.book import GroupBook
from agent_rl.groups.instructions import Closed
from agent_rl.messages import GroupsUnfinished, StageEntered
from agent_rl.topology_checks.describe import JOURNAL_BYTES, MEMORY_BYTES, needs, size_text, steps_kept
from agent_rl.topology_checks.topology import check_topology, warnings
from agent_rl_contract import builders
from tests.agent_rl.scheduling.world import World

HEAD = """[run]
name = "stages"
directory = "RUN"
[model]
initialise = {}
[[environments]]
class = "maths"
[algorithm]
groups_per_step = 4
samples = 8
keep = 4
"""
RL = '[[stages]]\nkind = "rl"\nsteps = 300\nmax_response_tokens = 64\nmax_turns = 2\n'
OWN = "samples = 16\ngroups_per_step = 2\ntemperature = 0.7\nclip_low = 0.1\nclip_high = 0.4\nmax_staleness = 3\n"
SFT = '[[stages]]\nkind = "sft"\n'


def load(tmp_path: Path, text: str, *overrides: str) -> Topology:
    path = tmp_path / "topology.toml"
    path.write_text(text.replace("RUN", str(tmp_path / "run")))
    return load_topology(path, overrides)


def faults(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    try:
        topology = load(tmp_path, text, *overrides)
    except TopologyError as error:
        return str(error).splitlines()
    path = tmp_path / "topology.toml"
    return [fault.render(path) for fault in check_topology(topology, path, overrides)]


def test_a_stage_s_own_values_stand_over_those_of_the_run(tmp_path: Path) -> None:
    topology = load(tmp_path, HEAD + RL + OWN + RL)
    own, plain = (topology.algorithm_of(stage) for stage in topology.stages)
    assert plain == topology.algorithm
    values = {"samples": 16, "groups_per_step": 2, "temperature": 0.7, "clip_low": 0.1, "clip_high": 0.4}
    assert own == topology.algorithm.model_copy(update={**values, "max_staleness": 3})
    assert values.keys() | {"max_staleness"} == set(PER_STAGE)
    assert [algorithm for _, _, algorithm in topology.rl_algorithms] == [own, plain]
    synchronous = load(tmp_path, HEAD + RL + OWN, "run.mode=synchronous")
    assert synchronous.algorithm_of(synchronous.stages[0]) == own.model_copy(update={"max_staleness": 0})
    assert load(tmp_path, resolved_text(topology)) == topology  # as the actors read it


@pytest.mark.parametrize("key", PER_STAGE)
def test_a_stage_accepts_the_values_that_the_run_accepts(key: str) -> None:
    def accepted(make: Any, value: Any) -> bool:
        try:
            return getattr(make(**{key: value}), key) == value
        except ValidationError:
            return False

    values = [-1, 0, 0.5, 1, 1.5, 7, "x"]
    of_run = [accepted(builders.algorithm, value) for value in values]
    assert of_run == [accepted(builders.rl_stage, value) for value in values]
    assert True in of_run
    assert False in of_run


OF_ALGORITHM = "only the run may set this key; write it in [algorithm]"


@pytest.mark.parametrize(
    ("stage", "key", "message"),
    [
        (RL, "keep = 2", f"{OF_ALGORITHM}; an rl stage may override samples, "),
        (RL, "seed = 2", "only the run may set this key; write it in [run]"),
        (RL, "dtype = 'bfloat16'", "only the run may set this key; write it in [model]"),
        (SFT + "steps = 3\n", "keep = 2", OF_ALGORITHM),
        (SFT + "steps = 3\n", "clip_low = 0.1", "is no key of this kind of stage; an rl stage may have it"),
    ],
)
def test_a_key_that_only_the_run_may_set_is_one_message(tmp_path: Path, stage: str, key: str, message: str) -> None:
    (line,) = faults(tmp_path, HEAD + stage + key + "\n")
    name = key.partition(" ")[0]
    place = f"{tmp_path / 'topology.toml'}:{(HEAD + stage).count(chr(10)) + 1}"
    assert line.startswith(f"{place}: stages.0.{name}: {message}")
    (line,) = faults(tmp_path, HEAD + stage, f"stages.0.{key.replace(' ', '')}")
    assert f"--set stages.0.{name}: {message}" in line


def test_a_stage_with_fewer_samples_than_are_kept_is_a_fault_of_the_stage(tmp_path: Path) -> None:
    text = HEAD + RL + RL + "samples = 3\n"
    (line,) = faults(tmp_path, text)
    assert f":{text.count(chr(10))}: stages.1.samples: keeps 4 of 3 samples of a group" in line


def test_the_filters_window_is_compared_with_the_stage_that_needs_most(tmp_path: Path) -> None:
    topology = load(tmp_path, HEAD + RL + RL + "samples = 100\ngroups_per_step = 90\nmax_staleness = 4\n")
    (fault,) = RoCFilter.check(topology, RoCFilter.Settings(training_window=454))
    assert fault.endswith("set it to at least 455")
    assert RoCFilter.check(topology, RoCFilter.Settings(training_window=455)) == []


def test_the_needs_are_those_of_the_stage_that_needs_most(tmp_path: Path) -> None:
    topology = load(tmp_path, HEAD + RL + RL + OWN.replace("groups_per_step = 2", "groups_per_step = 40"))
    assert steps_kept(topology) == 3 * 50 + 2 * 4
    text = "\n".join(needs(topology))
    assert "open at once: 160 groups = 4 steps of 40, 2,560 rollouts" in text
    assert f"{size_text(4 * 160 * 64 * MEMORY_BYTES)} = 4 steps x 160 rollouts x 64 tokens" in text
    assert f"{size_text(158 * 640 * 64 * JOURNAL_BYTES)} = 158 steps kept x 640 rollouts x 64 tokens" in text


def algorithm_of(stage: Any) -> Algorithm:
    own = {key: value for key in PER_STAGE if (value := getattr(stage, key, None)) is not None}
    return builders.algorithm(**own)


STAGES = [builders.rl_stage(), builders.rl_stage(samples=3, groups_per_step=1, temperature=0.5, max_staleness=0)]


def test_the_scheduler_samples_and_bounds_each_stage_by_its_own_values() -> None:
    world = World(stages=STAGES, algorithm_of=algorithm_of)
    done = []
    for stage in (0, 1):
        world.policy_published(builders.published(stage, stage=stage, stage_version=stage))
        world.engine_load(builders.engine_load(total=10_000, version=stage))
        world.unfinished(GroupsUnfinished(stage, 0, ()))
        while world.placed:
            done.append(world.placed[0].request)
            world.finish(world.placed[0])
    assert Counter((each.group, each.sampling.temperature) for each in done) == {
        **{(f"s0-g{number:06d}", 1.0): 4 for number in range(4)},
        ("s1-g000000", 0.5): 3,
    }


def test_the_filter_closes_the_steps_of_each_stage_by_its_own_sizes() -> None:
    made = GroupBook(algorithm_of=algorithm_of, stages=STAGES, seed=0, select=lambda group, rng: (0, 1))
    for stage, groups in ((0, 2), (1, 1)):
        made.enter(StageEntered(stage, 0, 0, restored=True), next_version=0)
        closed: list[Closed] = []
        for number in range(groups):
            assert closed == []
            group = builders.opened(number, stage=stage, samples=3)
            made.group_opened(group)
            done = [made.trajectory(builders.trajectory(group, each, answer="45"[each % 2])) for each in range(3)]
            closed += [each for some in done for each in some if isinstance(each, Closed)]
        assert len(closed[0].step.trained) == groups


@pytest.mark.parametrize(("model", "rate"), [('path = "x"', 5e-6), ("initialise = {}", 3e-3)])
def test_the_default_rate_of_a_supervised_stage_goes_by_the_model(tmp_path: Path, model: str, rate: float) -> None:
    text = HEAD.replace("initialise = {}", model) + SFT + "steps = 5\n"
    (stage,) = load(tmp_path, text).stages
    assert stage.learning_rate == rate
    (stage,) = load(tmp_path, text + "learning_rate = 0.5\n").stages
    assert stage.learning_rate == 0.5


def test_a_high_rate_for_a_given_model_is_a_warning_and_no_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = HEAD + SFT + "steps = 5\nlearning_rate = 2e-4\n"
    path = tmp_path / "topology.toml"
    assert warnings(load(tmp_path, text), path) == []
    text = text.replace("initialise = {}", 'path = "there_is_none"')
    sound = ["stages.0.learning_rate=1e-4"]
    assert warnings(load(tmp_path, text, *sound), path, sound) == []
    monkeypatch.setattr("agent_rl.topology_checks.topology.check_topology", lambda *_, **__: [])
    assert sound_topology((path,), ()) == load(tmp_path, text)
    message = "0.0002 is above 0.0001, which can destroy what the given model knows; the default is 5e-6"
    assert capsys.readouterr().err == f"warning: {path}:15: stages.0.learning_rate: {message}\n"


KEPT = ""


@pytest.mark.parametrize(
    ("right", "rule", "reason"),
    [
        (8, {}, "always_solved"),
        (7, {}, KEPT),
        (0, {}, KEPT),
        (0, {"drop_unsolved": True}, "never_solved"),
        (7, {"below": 0.75}, "too_easy"),
        (1, {"at_least": 0.25}, "too_hard"),
        (2, {"at_least": 0.25}, KEPT),
        (None, {}, "not_sampled"),
    ],
)
def test_difficulty_by_the_share_of_right_answers(right: int | None, rule: dict[str, Any], reason: str) -> None:
    solved = Solved() if right is None else Solved(right, 8)
    assert Difficulty(**rule).reason(solved) == reason


@settings(max_examples=30)
@given(st.lists(st.tuples(st.lists(st.booleans(), max_size=4), st.integers(0, 2)), min_size=1, max_size=4))
def test_samples_of_several_results_add_up_and_what_was_lost_is_not_right(results: list[Any]) -> None:
    total = Solved()
    for successes, lost in results:
        total = total + Solved.counted(successes, len(successes) + lost)
    every = [success for successes, lost in results for success in [*successes, *[False] * lost]]
    assert total == Solved(sum(every), len(every))
    always = bool(every) and all(every)
    assert (Difficulty().reason(total) == KEPT) == (bool(every) and not always)
