"""What the benchmarks compute from what they have measured."""

import copy
import json
import math
import os
import subprocess
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
from transformers import AutoModelForCausalLM, AutoTokenizer

from actors.roc_filter.replay import encode_stored
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.records.journal import Journal
from agent_rl.rollout.parsing import ParsedCall, parse_calls
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.rollout.supervised import sequences
from agent_rl_contract.builders import opened, tool_call, trajectory
from agent_rl_contract.stage import running, stand_ins
from benchmarks import bench_end_to_end, bench_learner, bench_overlap, bench_real, learner_tree, runs
from benchmarks.bench_end_to_end import Measured
from benchmarks.bench_learner import save_model
from benchmarks.bench_learning import overlap_of
from benchmarks.bench_real import effective_figures, kind_figures
from benchmarks.bench_roc import curves, reached
from benchmarks.bench_throughput import limit
from benchmarks.bench_transport import SIZES, trajectories
from benchmarks.command import Failure
from benchmarks.hostile import REACH, SHARES
from benchmarks.in_process_tools import InProcessExecutor, Ran, run_python
from benchmarks.learner_sides import Row, Setting, Spent, pad
from benchmarks.peer_trl import Frame, InProcess, Isolated, Rewards, Spec, Tools, python_tool, shown
from benchmarks.peer_trl import Setting as PeerSetting
from benchmarks.rollout_models import quickstart_model, save_writer
from benchmarks.rollout_sides import turns
from benchmarks.runs import Run, RunFailed, Window, finished, made, resident_gib, stage_rows, window
from examples.quickstart.arithmetic import ArithmeticTasks
from tests.actors.topologies import micro
from tests.builders import wanted
from transport import encode
from transport.codec import size_of

# transport ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_messages_have_the_size_they_are_named_for_and_differ(size):
    frames = [b"".join(map(bytes, encode(message))) for message in trajectories(size)]
    assert len(set(frames)) == len(frames)
    for message in trajectories(size):
        assert size_of(encode(message)) == pytest.approx(size.bytes, rel=0.02)


# learning -------------------------------------------------------------------------------------------------------------


def write_journal(folder: Path, groups: Sequence[tuple[str, str]]) -> Path:
    """A journal with a group of each (purpose, problem id)."""
    folder.mkdir()
    journal = Journal(folder / "journal.sqlite")
    for number, (purpose, name) in enumerate(groups):
        group = opened(number, purpose=purpose)
        group = replace(group, problem=replace(group.problem, id=name))
        journal.open_group(group.group, 0, number, group.purpose, encode_stored(group))
    journal.commit()
    journal.close()
    return folder


def test_operands_of_training_and_evaluation_are_read_from_the_journal(tmp_path):
    trained = [("train", "sum:12+345"), ("train", "difference:7+8")]
    assert overlap_of(write_journal(tmp_path / "apart", [*trained, ("evaluate_sampled", "sum:12+346")])) == 0
    assert overlap_of(write_journal(tmp_path / "shared", [*trained, ("evaluate_greedy", "product:345+12")])) == 1
    other = [("train", "doors:a"), ("evaluate_greedy", "doors:a"), ("evaluate_greedy", "doors:b")]
    assert overlap_of(write_journal(tmp_path / "other", other)) == 1
    with pytest.raises(Failure, match="nothing was trained or nothing evaluated"):
        overlap_of(write_journal(tmp_path / "half", trained))


# roc ------------------------------------------------------------------------------------------------------------------


def test_without_correct_rollouts_their_errors_are_unknown():
    steps = [{"tool_error_share_correct": s, "success": 2 * s, "response_tokens": 30.0} for s in (0.0, 0.25)]
    found = curves(steps)
    assert math.isnan(found["error_share"][0])
    assert found["error_share"][1] == 0.25
    assert found["response_tokens"] == [30.0, 30.0]


def test_the_reached_value_is_the_mean_of_the_late_steps():
    assert reached([9.0] * 8 + [1.0, 3.0]) == 2.0
    assert reached([9.0] * 8 + [math.nan, 3.0]) == 3.0
    assert math.isnan(reached([1.0, math.nan]))


def test_a_sweep_goes_on_where_it_stopped_and_refuses_other_settings(tmp_path):
    (tmp_path / "done.json").write_text('["a=1"]')
    made(tmp_path, tmp_path, ["a=1"])
    with pytest.raises(RunFailed, match="made with other settings"):
        made(tmp_path, tmp_path, ["a=2"])


async def test_a_run_is_looked_at_until_it_ends_with_all_that_it_started(tmp_path, monkeypatch):
    @asynccontextmanager
    async def running(*_):
        process = await trio.lowlevel.open_process(["sh", "-c", "cat; true"], stdin=subprocess.PIPE)
        yield Run(process, tmp_path / "run", tmp_path)

    monkeypatch.setattr(runs, "running", running)
    looks = []
    monkeypatch.setattr(bench_real, "resident_gib", lambda process: looks.append(resident_gib(process)) or looks[-1])
    end = (0.01, lambda run: run.process.stdin.close() if len(looks) > 2 else None)
    await finished(tmp_path, tmp_path, [], math.inf, (0.02, bench_real._memory), end)
    kept = float((tmp_path / bench_real.MEMORY).read_text())
    assert kept == max(looks) > 2e-4, "a shell and its child"


# real -----------------------------------------------------------------------------------------------------------------


def test_a_pause_is_lost_time_and_a_run_without_an_evaluation_has_no_kinds(tmp_path):
    for name, ends in (("effective", (60, 80, 120)), ("effective-killed", (60, 400))):
        (run := tmp_path / "seed-0" / name / "run").mkdir(parents=True)
        (run / "metrics.jsonl").write_text("\n".join(json.dumps({"kind": "step", "seconds": each}) for each in ends))
    found = {"taught": {"kinds": {"sum": (1, 2)}}, "rl": {"kinds": {"sum": (2, 2)}}, "effective": {"kinds": {}}}
    shares = {"effective_time": 3 * 30 / 1200, "effective_time_under_kills": 2 * 30 / 1200}
    assert effective_figures({0: found}, tmp_path) == pytest.approx(shares)
    assert kind_figures({0: found}) == {"kinds.worst_rl": 0.5}


# hostile --------------------------------------------------------------------------------------------------------------


def test_the_attacks_are_many_and_no_two_are_the_same():
    attacks = [*REACH, *SHARES]
    assert len(SHARES) >= 40
    assert len(REACH) >= 80
    assert len({attack.name for attack in attacks}) == len({attack.code for attack in SHARES}) + len(REACH)
    for attack in attacks:
        for code in (attack.code, attack.accomplice, attack.victim):
            assert "{{" not in code
            compile(code, attack.name, "exec")


# runs, throughput and overlap -----------------------------------------------------------------------------------------


def row(wall: float, seconds: float = 1.0, **actors: dict[str, Any]) -> dict[str, Any]:
    plain = {"state": "running", "busy": 0.0, "cpu": 0.0, "waiting_for": "", "waited": 0.0, "figures": {}}
    said = {name.replace("_", "."): plain | each for name, each in actors.items()}
    return {"wall": wall, "seconds": seconds, "actors": said, "cores": 2}


def test_rates_are_growth_over_the_window_and_the_first_row_is_where_it_starts():
    rows = [
        row(100.0, generator_0={"figures": {"rollouts": 50, "generated_tokens": 1000}}),
        row(101.0, generator_0={"figures": {"rollouts": 60, "generated_tokens": 1500}, "busy": 0.5, "cpu": 0.75}),
        row(104.0, 3.0, generator_0={"figures": {"rollouts": 90, "generated_tokens": 3000}, "busy": 0.9, "cpu": 0.75}),
    ]
    found = window(rows)
    assert (found.seconds, found.rollouts_per_s, found.generated_tokens_per_s) == (4.0, 10.0, 500.0)
    assert (found.busy["generator.0"], found.cpu["generator.0"]) == (pytest.approx(0.8), pytest.approx(0.75))
    assert found.idle("generator") == pytest.approx(0.2)
    with pytest.raises(ValueError, match="two rows"):
        window(rows[:1])


def test_a_restarted_actor_and_one_that_appears_later_count_from_nothing():
    rows = [
        row(0.0, a_0={"figures": {"calls": 100}}),
        row(1.0, a_0={"figures": {"calls": 110}}),
        row(2.0, a_0={"figures": {"calls": 4}}, a_1={"figures": {"calls": 6}}),
    ]
    assert window(rows).tool_calls_per_s == (10 + 4 + 6) / 2


def test_waits_are_gathered_without_their_numbers():
    waits = [{"waiting_for": f"roc_filter: step {n}", "waited": 0.5} for n in range(1, 5)]
    rows = [row(0.0), *(row(float(n), learner_0=each) for n, each in enumerate(waits, 1))]
    assert window(rows).waits == {"learner.0": {"roc_filter: step": pytest.approx(0.5)}}


def test_rows_of_a_stage_are_those_in_which_the_learner_was_in_it():
    rows = [
        row(float(n), learner_0={"figures": {"stages": 2.0, "stage": stage, "step": step}})
        for n, (stage, step) in enumerate([(0, 9), (1, 0), (1, 1), (1, 2)])
    ]
    assert [found["wall"] for found in stage_rows(rows, 1, after_step=1)] == [2.0, 3.0]


SPENT = {"kv_scheduler.0": {"rollout_generator: a newer policy (the staleness budget is spent)": 0.7}}


@pytest.mark.parametrize(
    ("busy", "cpu", "waits", "limited_by"),
    [
        ({"a.0": 0.95, "b.0": 0.2}, {}, {}, "a.0"),
        ({"rollout_generator.1": 0.95}, {}, {}, "the engine of rollout_generator.1"),
        ({"a.0": 0.5}, {"a.0": 0.4, "b.0": 1.5}, {}, "cores (most: b.0)"),
        ({"a.0": 0.5, "b.0": 0.1}, {"a.0": 0.4}, {}, "a.0 (and waiting)"),
        ({}, {}, {}, "nothing was heard of any actor"),
        (
            {"a.0": 0.6, "b.0": 0.4},
            {},
            SPENT,
            "staleness budget (spent 70 % of the time; from policy to policy mostly a.0)",
        ),
        ({"a.0": 0.95}, {}, SPENT, "a.0"),
    ],
)
def test_the_limit_of_a_topology(busy, cpu, waits, limited_by):
    actors = Window(10.0, 0.0, 0.0, 0.0, 0.0, 0.0, busy, cpu, waits)
    assert limit(actors, 2) == limited_by


def overlap(tokens_per_s: float, cpu: float = 1.0) -> bench_overlap.Measured:
    """Ten steps in ten seconds."""
    used = {"learner.0": cpu / 4, "tool_executor.0": 3 * cpu / 4}
    return bench_overlap.Measured(10.0, 10 * tokens_per_s, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, used, 1.0, 2, 10)


def test_overlap_is_compared_within_each_round_and_bounded_where_the_cores_are_never_idle():
    found = {"asynchronous": [overlap(30), overlap(8), overlap(20)]}
    found["synchronous"] = [overlap(20), overlap(2), overlap(10)]
    assert bench_overlap.ratio(found, "") == 2.0
    # Ten steps in ten seconds: two cores have 2 s to give a step. Of these, ours used 1.6 s and theirs 1 s.
    found = {"asynchronous, slow tools": [overlap(30, cpu=1.6)], "synchronous, slow tools": [overlap(20, cpu=1.0)]}
    assert bench_overlap.bounds(found, ", slow tools") == pytest.approx(
        {
            "async_over_sync_slow_tools_bound": 1.5 / 0.8,
            "async_over_sync_slow_tools_bound_sync_cpu": 2.0,
            "async_over_sync_slow_tools_share_of_bound": 0.8,
        }
    )


def test_overlap_tells_what_a_step_costs_by_actor(tmp_path):
    def actors(wall: float) -> dict[str, dict[str, Any]]:
        figures = {"stages": 1.0, "stage": 0.0, "step": 2 * wall}
        return {"learner_0": {"figures": figures, "cpu": 0.8}, "scheduler_0": {"cpu": 0.1}}

    rows = [row(float(n), **actors(float(n))) for n in range(3)]
    (tmp_path / "timeline.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    step = {"kind": "step", "trained_tokens": 50, "groups_decided": 4, "rollouts": 8, "success": 0.5}
    metrics = [step | {"staleness_mean": 1.0}] * 4 + [{"kind": "stage", "stage_seconds": 2.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    found = bench_overlap.read(Run(None, tmp_path, tmp_path / "output"))
    assert found.cpu == {"learner.0": 0.4, "scheduler.0": 0.05}
    assert (found.step_seconds, found.cores, found.tokens_per_s) == (0.5, 2, 100.0)
    assert found.most_tokens_per_s == pytest.approx(2 * 50 / 0.45)


# learner --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    model = tmp_path_factory.mktemp("model") / "model"
    save_model("quickstart", model)
    sizes = {"sequences": 6, "scale": 0.1, "threads": 1, "microbatch_tokens": 256, "vocabulary": 100}
    return Setting(model=model, device="cpu", dtype="float32", **sizes)


def test_shared_prompts_give_the_gradient_of_separate_rows(setting, monkeypatch):
    monkeypatch.setattr(learner_tree, "LONG", 60)
    monkeypatch.setattr(learner_tree, "rstar2_prompt", lambda _: tuple(range(20, 60)))
    figures, rows = learner_tree.measure(setting, 1)
    assert [row[1:3] for row in rows] == [[40, 8], [60, 16]]
    assert float(figures["tree_gradient_difference"] or 1) < 1e-5
    for name in ("tree_tokens_per_s_ratio", "tree_tokens_per_s_ratio_long"):
        assert figures[f"{name}_low"] == figures[name] == figures[f"{name}_high"]


class Fake:
    """A side whose updates take these seconds, one after the other."""

    def __init__(self, *seconds: float, norm: float = 1.0) -> None:
        self._seconds, self._norm = list(seconds), norm

    def update(self, work: object, seed: int) -> Spent:
        del work, seed
        seconds = self._seconds.pop(0)
        return Spent(seconds, seconds, self._norm)


def test_of_each_batch_the_faster_attention_is_measured_and_slow_batches_and_other_gradients_are_not(
    monkeypatch, setting
):
    fakes = {
        "ours": Fake(5, 1, 1, 1),
        "padded-1-sdpa": Fake(1, 3, 3, 3),
        "padded-1-eager": Fake(9, 2, 2, 2),
        "padded-8-sdpa": Fake(1, 5),
        "padded-8-eager": Fake(1, 6),
    }
    monkeypatch.setattr(bench_learner, "side", lambda name, _: fakes[name])
    choices = [[f"padded-{batch}-{attention}" for attention in ("sdpa", "eager")] for batch in (1, 8)]
    spent = bench_learner.compare(setting, choices, 2)
    seconds = {name: [one.seconds for one in each] for name, each in spent.items()}
    assert seconds == {"ours": [1, 1], "padded-1-eager": [2, 2]}
    fakes |= {"ours": Fake(1), "padded-1-sdpa": Fake(1, norm=1.1)}
    with pytest.raises(Failure, match=r"gradients differ: norm 1\.0+ of ours, 1\.10+ of padded-1-sdpa"):
        bench_learner.compare(setting, [["padded-1-sdpa"]], 1)


def test_rows_are_padded_on_the_right_and_trained_on_responses_alone():
    rows = [Row(torch.tensor([5, 6, 7]), 1, 1.0), Row(torch.tensor([8, 9, 10, 11, 12]), 3, -1.0)]
    inputs, mask, labels = pad(rows)
    assert inputs.tolist() == [[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]]
    assert mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert labels.tolist() == [[6, 7, -100, -100, -100], [-100, -100, 11, 12, -100]]


# rollout --------------------------------------------------------------------------------------------------------------


def test_turns_of_a_trajectory_are_what_the_model_wrote_and_all_before_it():
    made = trajectory(opened(), tokens=7)  # the fourth token is a tool's
    assert turns(made) == [([0, 1, 2], 3), ([0, 1, 2, 5, 6, 7, 8], 3)]


def test_the_writer_writes_calls_and_answers(tmp_path):
    save_writer(tmp_path / "model", quickstart_model(), thinking=5.0, calling=0.5)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    start = torch.tensor([[tokenizer.convert_tokens_to_ids("<|assistant|>")]] * 40)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        written = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=80, top_k=0)
    texts = [tokenizer.decode(row[1:]).split("<|end|>")[0] for row in written]
    calls = [parse_calls(text) for text in texts]
    parsed = [call for found in calls for call in found if isinstance(call, ParsedCall)]
    assert {call.arguments["code"] for call in parsed} == {"print(1+2)"}
    assert 10 <= sum(len(found) == 1 for found in calls) <= 30
    assert all(found or text.endswith("<answer>\\boxed{3}</answer>") for found, text in zip(calls, texts, strict=True))


# end_to_end -----------------------------------------------------------------------------------------------------------

CALL = (
    '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(1+2)", "input": ""}}</tool_call>'
)


def measured(*seconds: float, trained: float = 8.0) -> Measured:
    rows = [
        {"wall": 100 + s, "rollouts": 8, "trained": trained, "signal": trained / 2, "success": 0.5} for s in seconds
    ]
    return Measured.read(95.0, rows, 30.0)


def test_rates_begin_with_the_first_steps_end_and_from_start_where_training_began():
    one = measured(5.0, 7.0, 9.0, trained=6.0)
    assert (one.trained_per_s, one.sampled_per_s, one.trained_per_s_from_start) == (12 / 4, 16 / 4, 18 / 14)
    assert one.late == (8.0, 16.0)
    with pytest.raises(ValueError, match="two steps"):
        measured(5.0)


def test_ratios_of_both_sides_are_taken_within_a_round(capsys):
    found: dict[tuple[Tools, str], list[Measured]] = {
        ("isolated", "agent_rl"): [measured(0.0, 1.0), measured(0.0, 2.0), measured(0.0, 4.0)],
        ("isolated", "trl"): [measured(0.0, 3.0), measured(0.0, 2.0), measured(0.0, 8.0)],
    }
    bench_end_to_end.report(found)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["over_trl_isolated"] == 2.0
    assert figures["agent_rl_isolated_trained_per_s"] == 4.0
    assert figures["trl_isolated_success"] == 0.5
    assert not any("in_process" in name for name in figures)


def test_both_sides_are_told_the_same(tmp_path):
    options = bench_end_to_end.Options(peer="trl", steps=3)
    config = {"cache_implementation": "static"}
    spec = bench_end_to_end.specification(options, "isolated", PeerSetting(config=config), Path("/m"), tmp_path)
    spec.write(tmp_path / "spec.json")
    assert Spec.read(tmp_path / "spec.json") == spec
    assert (spec.steps, spec.groups, spec.samples, spec.max_tokens) == (3, 16, 16, 100)
    assert (spec.max_turns, spec.learning_rate, spec.warmup_steps) == (4, 3e-4, 5)
    problems = [json.loads(line) for line in Path(spec.problems).read_text().splitlines()]
    assert len(problems) == 48
    ours = ArithmeticTasks(seed=0).problem(0, 47)
    assert problems[-1] == {"prompt": [{"role": "user", "content": ours.text}], "gold": ours.answer}
    assert spec.setting.config == config


CHATML = (
    "{% for message in messages %}"
    "{% if loop.first and message['role'] != 'system' %}{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("template", [None, CHATML])
def test_the_peers_template_makes_the_same_tokens_as_ours(template):
    tokenizer = build_tokenizer()
    if template:
        tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
        tokenizer.chat_template = template
    ours = ChatFormat(copy.deepcopy(tokenizer), compact=True)
    tokenizer.chat_template = Frame.of(tokenizer).chat_template
    problem = {"role": "user", "content": "A shop has 12 eggs."}
    called = {"name": PYTHON_TOOL, "arguments": {"code": "print(1+2)", "input": ""}}
    turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": called}]}
    responses = [{"role": "tool", "name": PYTHON_TOOL, "content": text} for text in ("3", "SyntaxError: x")]

    def tokens(messages: list[dict[str, Any]], *, generate: bool) -> list[int]:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=generate, return_dict=False))

    prompt, before = tokens([problem], generate=True), tokens([problem, turn], generate=False)
    after = tokens([problem, turn, *responses], generate=True)
    ((shown, _),) = sequences(ours, [problem, {"role": "assistant", "content": CALL}])
    assert before[: len(shown)] == shown
    assert tokenizer.decode(before[len(shown) :]).strip() == ""
    assert shown[: len(prompt)] == prompt
    assert after == shown + ours.response_tokens(["3", "SyntaxError: x"])


def test_the_peer_reads_calls_and_answers_of_a_turn():
    tokenizer = build_tokenizer()
    tokenizer.response_template = Frame.of(tokenizer).response_template
    prefix = tokenizer.encode("<|user|>A shop<|end|><|assistant|>")

    def read(text: str) -> dict[str, Any]:
        return dict(tokenizer.parse_response(tokenizer.encode(text + "<|end|>"), prefix=prefix))

    (call,) = read(CALL)["tool_calls"]
    assert call["function"] == {"name": PYTHON_TOOL, "arguments": {"code": "print(1+2)", "input": ""}}
    answer = r"<answer>\boxed{3}</answer>"
    assert read(answer)["content"] == answer
    assert not read(answer).get("tool_calls")


@pytest.mark.parametrize(
    ("code", "stdin", "outcome", "stdout", "stderr", "value"),
    [
        ("print(6 * 7)", "", "success", "42\n", "", ""),
        ("x = 6\nx * 7", "", "success", "", "", "42"),
        ("print(input()[::-1])", "abc", "success", "cba\n", "", ""),
        ("print(1", "", "error", "", "SyntaxError: '(' was never closed\n", ""),
        ("print(1)\n1 / 0", "", "error", "1\n", "ZeroDivisionError: division by zero\n", ""),
        ("raise SystemExit(3)", "", "error", "", "SystemExit: 3\n", ""),
    ],
)
def test_code_runs_in_process_as_the_sandbox_would_tell(code, stdin, outcome, stdout, stderr, value):
    ran = run_python(code, stdin)
    assert (ran.outcome, ran.stdout, ran.stderr, ran.value) == (outcome, stdout, stderr, value)


@pytest.mark.real_time
async def test_the_executor_runs_and_judges_in_its_own_process(tmp_path):
    topology = micro(tmp_path)
    calls = [{"code": "import os; print(os.getpid())"}, {"code": 1}, {"code": "1 / 0"}]
    async with stand_ins(topology, "tool_executor") as stage:
        async with running(InProcessExecutor, topology, "tool_executor", tmp_path, stage):
            ask = stage["rollout_generator"].call("tools", "tool_executor.0")
            done = [await ask(tool_call(call, number=str(i))) for i, call in enumerate(calls)]
            done.append(await ask(tool_call({"code": "1"}, "shell")))
            check = stage["roc_filter"].call("checks", "tool_executor.0")
            verdicts = [await check(wanted("42", answer)) for answer in ("42.0", "41")]
    assert [result.outcome for result in done] == ["success", "malformed", "error", "unknown_tool"]
    assert done[0].stdout == f"{os.getpid()}\n"
    assert [verdict.judgement.success for verdict in verdicts] == [True, False]


@pytest.mark.parametrize("kind", [InProcess, Isolated])
def test_the_peers_tool_and_reward_are_ours(kind):
    tools = kind()
    try:
        run = python_tool(tools, 4096)
        assert run.__name__ == PYTHON_TOOL
        assert [run(code="print(2+3)"), run(code="print(2+", input="")] == ["5", "SyntaxError: '(' was never closed"]
        rewards = Rewards(tools, 2)
        said = [r"<answer>\boxed{5}</answer>", r"<answer>\boxed{6}</answer>", "5"]
        completions = [[{"role": "assistant", "content": CALL}, {"role": "tool", "content": "5"}] for _ in said]
        for completion, text in zip(completions, said, strict=True):
            completion.append({"role": "assistant", "content": text})
        assert rewards(completions=completions, gold=["5"] * 3, prompts=[]) == [1.0, 0.0, 0.0]
        assert rewards.success == pytest.approx(1 / 3)
        assert "characters cut" in shown(Ran("success", "x" * 5000, "", "", 0.0), 4096)
    finally:
        if isinstance(tools, Isolated):
            tools.close()
