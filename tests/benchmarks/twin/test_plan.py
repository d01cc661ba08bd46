"""What a topology and a profile make of a run, what is printed of it, and what is refused."""

import json
from pathlib import Path

import pytest

from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.models.hub import HubError
from benchmarks.bench_twin import PAPER
from benchmarks.twin import plan
from benchmarks.twin.plan import TORCH, Plan, engine_on, plan_of
from benchmarks.twin.profile import FOLDER, ProfileError, names, read_profile

SMALL = (
    "algorithm.groups_per_step=4",
    "algorithm.samples=4",
    "algorithm.keep=2",
    "actors.rollout_generator.replicas=3",
)


def planned(*overrides: str, steps: int = 2, policy: str = "") -> Plan:
    topology = load_topology(PAPER, (*SMALL, *overrides))
    return plan_of(topology, read_profile("mi300x"), where="paper.toml", steps=steps, seed=3, policy=policy)


def test_engines_learner_and_rule_are_the_topologys():
    plan = planned(
        "actors.rollout_generator.settings.engine_settings.tensor_parallel_size=4",
        "actors.rollout_generator.settings.kv_tokens=500_000",
        "algorithm.max_staleness=2",
    )
    trace = plan.trace
    assert trace.engines == tuple(f"rollout_generator.{number}" for number in range(3))
    assert trace.model.kv_total == 500_000
    assert (trace.samples, trace.groups_per_step, trace.steps, trace.max_staleness) == (4, 4, 2, 2)
    assert (plan.policy, plan.devices) == ("sticky", 3 * 4 + 20)
    assert trace.learner.kept == 0.5
    assert not trace.learner.kv_kept, "vLLM recomputes after an update unless told otherwise"
    assert planned("actors.rollout_generator.settings.engine_settings.kv_on_update=keep").trace.learner.kv_kept
    own = "agent_rl.scheduling.policies.worst_case:WorstCase"
    assert planned(f"actors.kv_scheduler.settings.policy={own}").policy == own
    assert planned(policy="worst_case").policy == "worst_case"


def test_engines_have_the_habits_of_their_kind():
    from actors.engines.torch.decode import PREFILL_SHARE, PREFILL_WAIT_STEPS

    assert TORCH == {"page": 1, "join_share": PREFILL_SHARE, "join_steps": PREFILL_WAIT_STEPS}
    model = planned("actors.rollout_generator.settings.engine=torch").trace.model
    assert {name: getattr(model, name) for name in TORCH} == TORCH
    assert planned().trace.model.page == 16


def test_seconds_of_an_engine_and_of_the_learner_follow_from_the_data_sheet():
    profile = read_profile("mi300x")
    weights, kv_bytes, bandwidth, flops = 29.6e9, 163_840, 0.6 * 5.3e12, 0.35 * 1307e12
    for width, reached in ((1, 1.0), (4, 0.85 * 4)):
        built = engine_on(profile.device, profile.model, 2, width, 512 * width, None)
        assert built.kv_total == int((0.9 * 192e9 * width - weights) / kv_bytes)
        assert built.step_s == pytest.approx(3e-3 + weights / (bandwidth * reached))
        assert built.row_s == built.prefill_s == pytest.approx(2 * 14.8e9 / (flops * reached))
        assert built.context_s == pytest.approx(kv_bytes / (bandwidth * reached))
        assert built.prefill_context_s == pytest.approx(4 * 40 * 5120 / (flops * reached))
    assert planned().trace.learner.tokens_per_s == pytest.approx(20 * flops / (8 * 14.8e9))


def test_sizes_are_those_of_the_topologys_own_model(tmp_path, monkeypatch):
    sizes = {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
    config = sizes | {"head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr(plan, "metadata", lambda _: tmp_path)
    small, large = planned("model.path=Qwen/Qwen3-4B"), planned()
    assert small.trace.learner.tokens_per_s == pytest.approx(14.8e9 / 4.022272e9 * large.trace.learner.tokens_per_s)

    def silent(_: str) -> Path:
        raise HubError("the hub cannot be asked for Qwen/Qwen3-4B")

    monkeypatch.setattr(plan, "metadata", silent)
    with pytest.raises(ProfileError, match=r"paper.toml, model.path: the hub cannot be asked .*\[model\] of a profile"):
        planned("model.path=Qwen/Qwen3-4B")


def test_the_profiles_that_come_along_are_sound_and_say_that_they_are_not_measured():
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
def test_a_bad_profile_is_refused_by_file_and_field(old, new, said, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text((FOLDER / "mi300x.toml").read_text().replace(old, new, 1))
    with pytest.raises(ProfileError) as refused:
        read_profile(str(path))
    assert str(refused.value).startswith(str(path))
    assert said in str(refused.value)


def test_the_command_has_a_row_for_each_number_of_engines_and_refuses_in_one_line(capsys):
    overrides = [part for override in SMALL for part in ("--set", override)]
    assert main(["bench", "twin", "--steps", "1", "--engines", "1", "3", *overrides]) == 0
    table, last = capsys.readouterr().out.strip().rsplit("\n", 1)
    figures = json.loads(last)
    assert "not measured here" in table
    assert (figures["1.devices"], figures["3.devices"]) == (21, 23)
    assert figures["1.step s"] > figures["3.step s"]
    assert figures["1.engines idle"] < figures["3.engines idle"]
    for arguments, said in (
        (["--profile", "none.toml"], "there is no profile none.toml"),
        (["--stage", "sft"], "there is no rl stage sft"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--policy", "mine"], "settings.policy: "),
        (["--policy", "agent_rl.environments.maths:Maths"], "Maths fails before the start with TypeError"),
        (["--set", "actors.rollout_generator.settings.kv_tokens=1000"], "kv_total: a rollout of 30600 tokens"),
        (["--set", "algorithm.samples=x"], "algorithm.samples: "),
    ):
        assert main(["bench", "twin", *overrides, *arguments]) == 2
        lines_said = capsys.readouterr().err.splitlines()
        assert len(lines_said) == 1
        assert said in lines_said[0]
