"""What a topology and a profile make of a run, what is printed of it, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.scheduling.policies.base import Decision, Place
from agent_rl.simulation.plan import TORCH, Choice, Plan, engine_on, plan_of
from agent_rl.simulation.prediction import lines, predict, schedule_line
from agent_rl.simulation.profile import FOLDER, ProfileError, names, read_profile
from agent_rl.simulation.trace import TraceError, write
from agent_rl.simulation.tuning import lines_of, tune
from benchmarks.traces.devices import learner, mi300x

PAPER = Path(__file__).parents[3] / "examples" / "paper_size.toml"
SMALL = (
    "algorithm.groups_per_step=4",
    "algorithm.samples=4",
    "algorithm.keep=2",
    "actors.rollout_generator.replicas=3",
)


def planned(
    *overrides: str, steps: int = 2, profile: str = "mi300x", traces: Path | None = None, policy: str = ""
) -> Plan:
    topology = load_topology(PAPER, (*SMALL, *overrides))
    return plan_of(
        topology, read_profile(profile), where="paper.toml", steps=steps, seed=3, traces=traces, policy=policy
    )


def test_engines_learner_and_rule_are_the_topologys() -> None:
    plan = planned(
        "actors.rollout_generator.settings.engine_settings.tensor_parallel_size=4",
        "actors.rollout_generator.settings.kv_tokens=500_000",
        "algorithm.max_staleness=2",
    )
    trace = plan.trace
    assert [engine.name for engine in trace.engines] == [f"rollout_generator.{number}" for number in range(3)]
    assert {engine.model.kv_total for engine in trace.engines} == {500_000}
    assert (trace.samples, trace.groups_per_step, trace.steps, trace.max_staleness) == (4, 4, 2, 2)
    assert (plan.policy, plan.devices) == ("predictive", 3 * 4 + 20)
    assert trace.learner.kept == 0.5
    assert not trace.learner.kv_kept, "vLLM recomputes after an update unless told otherwise"
    assert planned("actors.rollout_generator.settings.engine_settings.kv_on_update=keep").trace.learner.kv_kept
    assert planned("actors.kv_scheduler.settings.policy=margin").policy == "margin"
    assert planned(policy="static").spec.evicts_half


def test_engines_have_the_habits_of_their_kind() -> None:
    from actors.engines.torch.decode import PREFILL_SHARE, PREFILL_WAIT_STEPS

    assert TORCH == {"page": 1, "join_share": PREFILL_SHARE, "join_steps": PREFILL_WAIT_STEPS}
    model = planned("actors.rollout_generator.settings.engine=torch").trace.engines[0].model
    assert {name: getattr(model, name) for name in TORCH} == TORCH
    assert planned().trace.engines[0].model.page == 16


def test_an_engine_by_the_profile_is_that_of_the_traces() -> None:
    profile = read_profile("mi300x")
    assert profile.device is not None
    assert profile.model is not None
    for width in (1, 4):
        made, known = engine_on(profile.device, profile.model, 2, width, 512 * width, None), mi300x(width)
        for field in ("kv_total", "max_rollouts", "step_s", "row_s", "context_s", "prefill_s", "prefill_context_s"):
            assert getattr(made, field) == pytest.approx(getattr(known, field)), field
    assert planned().trace.learner.tokens_per_s == pytest.approx(learner(20).tokens_per_s)


def test_the_same_input_gives_the_same_text_and_schedule_and_each_turn_is_placed_once() -> None:
    texts = []
    for _ in range(2):
        decisions: list[tuple[float, Decision]] = []
        plan = planned()
        made = predict(plan, lambda now, decision, to=decisions: to.append((now, decision)))
        texts.append("\n".join([*lines(made, read_profile("mi300x")), *(schedule_line(*each) for each in decisions)]))
        placed = [decision for _, decision in decisions if isinstance(decision, Place)]
        assert len(placed) == sum(len(shape.written) for group in plan.trace.groups for shape in group)
        assert made.outcome.steps == 2
    assert texts[0] == texts[1]
    assert "not measured here" in texts[0]


def test_what_takes_the_time_is_said() -> None:
    slow = planned("actors.learner.ranks=1")
    slow = replace(slow, trace=replace(slow.trace, learner=replace(slow.trace.learner, tokens_per_s=5.0)))
    assert predict(slow).dominated_by.startswith("training")
    made = predict(planned())
    assert sum(made.engine_seconds().values()) == pytest.approx(1)
    assert made.dominated_by.startswith(("rollout", "waiting"))


def test_traces_give_the_groups(tmp_path: Path) -> None:
    write(planned(steps=1).trace, tmp_path / "a.jsonl")
    plan = planned(steps=3, traces=tmp_path)
    assert plan.trace.groups == planned(steps=1).trace.groups * 3
    with pytest.raises(TraceError, match=r"a\.jsonl, samples: a group has 4 rollouts, and the topology's 8"):
        planned("algorithm.samples=8", traces=tmp_path)
    (tmp_path / "b.jsonl").write_text((tmp_path / "a.jsonl").read_text().replace('"prompt": ', '"prompt": -', 1))
    with pytest.raises(TraceError, match=r"b\.jsonl, group 0, rollout 0: prompt"):
        planned(traces=tmp_path)


def test_the_profiles_that_come_along_are_sound_and_say_that_they_are_not_measured() -> None:
    assert names() == ["h200", "mi300x"]
    for name in names():
        assert not read_profile(name).measured
        text = (FOLDER / f"{name}.toml").read_text()
        assert "NOT MEASURED HERE" in text
        assert "data sheet" in text


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("bandwidth = 5.3e12\n", "", "device.bandwidth: is missing"),
        ("bandwidth = 5.3e12", "bandwidth = -1.0", "device.bandwidth: Input should be greater than 0, not -1.0"),
        ("publish_s = 10.0", "publish_s = nan", "learner.publish_s: Input should be a finite number"),
        ("prompt_tokens = [250, 600]", "prompt_tokens = [600, 250]", "rollouts: prompt_tokens is unsorted"),
        ("calls = 2.75", "calls = 12.0", "rollouts: calls, the mean, is above most_calls = 10"),
        ("[device]", "[devices]", "devices: Extra inputs"),
        ("measured = false", "measured =", "it cannot be read as TOML"),
    ],
)
def test_a_bad_profile_is_refused_by_file_and_field(old: str, new: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((FOLDER / "mi300x.toml").read_text().replace(old, new, 1))
    with pytest.raises(ProfileError) as refused:
        read_profile(str(path))
    assert str(refused.value).startswith(str(path))
    assert said in str(refused.value)


def test_the_command_prints_writes_its_schedule_and_refuses_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [part for override in SMALL for part in ("--set", override)]
    schedule = tmp_path / "schedule.jsonl"
    assert main(["simulate", str(PAPER), "--steps", "1", "--schedule", str(schedule), *overrides]) == 0
    assert "dominated by" in capsys.readouterr().out
    rows = [json.loads(line) for line in schedule.read_text().splitlines()]
    assert {row["decision"] for row in rows} >= {"place"}
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    for arguments, said in (
        (["--profile", "none.toml"], "there is no profile none.toml"),
        (["--stage", "sft"], "there is no rl stage sft"),
        (["--policy", "mine"], "'mine' cannot be simulated"),
        (["--traces", str(tmp_path / "none")], "there is no trace"),
        (["--set", "actors.rollout_generator.settings.kv_tokens=1000"], "kv_total: a rollout of 30600 tokens"),
    ):
        assert main(["simulate", str(PAPER), "--steps", "1", *overrides, *arguments]) == 2
        lines_said = capsys.readouterr().err.splitlines()
        assert len(lines_said) == 1
        assert said in lines_said[0]


def test_tuning_tries_splits_of_the_devices_and_says_what_is_best_and_why() -> None:
    topology = load_topology(PAPER, (*SMALL, "actors.learner.ranks=5", "actors.rollout_generator.replicas=3"))

    def made_of(choice: Choice) -> Plan:
        return plan_of(topology, read_profile("mi300x"), where="paper.toml", steps=2, seed=3, choice=choice)

    tried = tune(made_of)
    assert {each.made.plan.devices for each in tried} == {8}
    assert len({each.choice for each in tried}) == len(tried) > 6
    assert [each.made.step_s for each in tried] == sorted(each.made.step_s for each in tried)
    assert tried[0].made.step_s < predict(made_of(Choice())).step_s, "5 of 8 devices for the learner are too many here"
    text = list(lines_of(tried))
    assert text == list(lines_of(tune(made_of)))
    assert text[-2].startswith(f"best: {tried[0].text}; dominated by")
    assert text[-1].startswith(f"runner-up: {tried[1].text}; ")
