"""The plans of faults and changes, what is read of a run under them, and its accounts."""

import copy
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from actors.engines.base import EngineError, TurnRequest
from agent_rl.config.load import load_topology
from agent_rl.environments.load import Environments
from agent_rl.figures import StepFigures, TrainingFigures
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import PolicyVersion, TrainingGroup
from agent_rl.records.checkpoint_files import CheckpointError, Position
from agent_rl.records.journal import Journal
from benchmarks import bench_chaos
from benchmarks.bench_chaos import EXAMPLE
from benchmarks.chaos.accounting import (
    SHARES,
    Accounts,
    Verdict,
    read_accounts,
    trained_too_late,
    within_noise,
    wrong_prompts,
    wrongly_trained,
)
from benchmarks.chaos.actors import LENGTH, TRAINED, ScriptedTurns, Trained, Turns, read_turns, write_model
from benchmarks.chaos.doing import Done
from benchmarks.chaos.host import CLOCK, Host, network_fault
from benchmarks.chaos.plan import IN_RL, KINDS, MOMENTS, NETWORK, Change, Fault, each_once, in_order, make_plan
from benchmarks.chaos.sight import Frontier, Lines, Row, Sight, work_seen
from tests.end_to_end.processes import wait_for

ACTORS = ("kv_scheduler.0", "rollout_generator.0", "tool_executor.0", "roc_filter.0", "learner.0")
SUPERVISOR = "supervisor.local"
HOMES = dict.fromkeys(ACTORS, "local")
HERE = [kind for kind in KINDS if kind not in NETWORK]
BLUR = 1.5

# The plans ------------------------------------------------------------------------------------------------------------


def test_a_seed_decides_the_plan_and_every_kind_actor_and_moment_comes():
    plan = make_plan(3, 200, HOMES, per_run=16, kinds=HERE)
    assert plan == make_plan(3, 200, HOMES, per_run=16, kinds=HERE)
    assert plan != make_plan(4, 200, HOMES, per_run=16, kinds=HERE)
    assert [fault.number for fault in plan] == list(range(1, 201))
    assert {fault.kind for fault in plan[: len(HERE)]} == set(HERE)
    assert {fault.moment for fault in plan} == set(MOMENTS)
    kills = Counter(fault.victims[0] for fault in plan if fault.kind == "kill")
    assert kills.keys() == set(ACTORS)
    assert min(kills.values()) >= 4
    assert {fault.kind for fault in make_plan(0, 9, HOMES, per_run=9, kinds=["stop", "kill"])} == {"stop", "kill"}


def test_a_quick_plan_has_the_same_faults_that_last_a_quarter_as_long():
    slow, quick = (make_plan(3, 60, HOMES, per_run=60, kinds=HERE, quick=quick) for quick in (False, True))
    for one, other in zip(quick, slow, strict=True):
        assert (one.kind, one.victims, one.moment) == (other.kind, other.victims, other.moment)
        assert one.delay == other.delay / 4
        assert one.seconds == (other.seconds if "choices" in KINDS[one.kind] else other.seconds / 4)


def test_the_faults_of_a_run_come_in_the_order_of_the_recipe():
    ordered = in_order(make_plan(1, 40, HOMES, per_run=40, kinds=HERE))
    early = [fault.moment for fault in ordered if fault.moment not in IN_RL]
    assert early == sorted(early, key=list(MOMENTS).index)
    assert all(fault.moment in IN_RL for fault in ordered[len(early) :])


def test_each_process_once_ends_with_the_supervisor():
    plan = each_once(HOMES)
    assert [fault.victims[0] for fault in plan] == [*ACTORS, SUPERVISOR]
    assert (plan[-1].kind, plan[-1].victims) == ("supervisor", (SUPERVISOR, *ACTORS))


def test_over_hosts_a_fault_of_a_host_hits_its_own_actors():
    homes = {"kv_scheduler.0": "a", "learner.0": "a", "rollout_generator.0": "b", "rollout_generator.1": "c"}
    plan = make_plan(0, 300, homes, per_run=16, kinds=list(KINDS))
    whole = {fault.victims for fault in plan if fault.kind == "host"}
    a = ("supervisor.a", "kv_scheduler.0", "learner.0")
    assert whole == {a, ("supervisor.b", "rollout_generator.0"), ("supervisor.c", "rollout_generator.1")}
    assert {len(fault.victims) for fault in plan if fault.kind == "full_disk"} == {7}  # the main host ends the run
    assert all(len(set(fault.victims)) == 2 for fault in plan if fault.kind == "partition")


def test_a_change_is_a_command_of_a_user():
    assert Change("tool_executor", number=2).words("run") == ["scale", "run", "tool_executor", "2"]
    assert Change("learner", "x:Y").words("run") == ["swap", "run", "learner", "--class", "x:Y"]


# What is seen of a run ------------------------------------------------------------------------------------------------


def timeline(actor: str, *told: tuple[float, float | None]) -> list[Row]:
    """Rows at (time, figure) where the figure is None while the actor is not heard."""
    figure = {"learner.0": "step", "tool_executor.0": "calls", "kv_scheduler.0": "groups_opened"}[actor]
    stage = {"stage": 2.0} if actor == "learner.0" else {}
    return [
        Row(at, {} if count is None else {actor: {"state": "running", "figures": {figure: float(count), **stage}}})
        for at, count in told
    ]


FROM_NOTHING = timeline(
    "tool_executor.0", (98, 480), (99, 490), (100, 500), (101, 505), (102, None), (105, 0), (106, 3)
)
RESTORED = timeline("learner.0", (99, 12), (100, 12), (104, 10), (105, 11), (106, 12), (107, 13))
SAID_LAST = timeline("kv_scheduler.0", (100, 40), (101, 42), (103, 42), (104, 43))
STOPPED = timeline("tool_executor.0", (100, 40), (103, 40), (107, 45))


@pytest.mark.parametrize(
    ("rows", "victim", "fault_at", "over_at", "back"),
    [
        (FROM_NOTHING, "tool_executor.0", 99.8, 99.8, 106.0),  # its new process counts from nothing
        (FROM_NOTHING[:-1], "tool_executor.0", 99.8, 99.8, None),
        (RESTORED, "learner.0", 99.5, 99.5, 107.0),  # past where it was
        (RESTORED, SUPERVISOR, 99.5, 99.5, 107.0),
        (SAID_LAST, "kv_scheduler.0", 100.1, 100.1, 104.0),  # what the killed process said last is not its successor's
        (STOPPED, "tool_executor.0", 100.0, 104.0, 107.0),  # progress while it is stopped is not its own
    ],
)
def test_a_victim_is_back_when_its_own_work_goes_on(rows, victim, fault_at, over_at, back):
    assert work_seen(rows, victim, fault_at, over_at, BLUR) == back


def test_an_actor_without_work_is_back_once_it_runs_and_the_run_goes_on():
    def row(at: float, step: float, state: str) -> Row:
        learner = {"state": "running", "figures": {"stage": 0.0, "step": step}}
        return Row(at, {"learner.0": learner, "kv_scheduler.0": {"state": state, "figures": {}}})

    rows = [row(100, 5, "running"), row(102, 9, "starting"), row(103, 9, "running")]
    assert work_seen(rows[:2], "kv_scheduler.0", 100.0, 100.0, BLUR) is None
    assert work_seen(rows, "kv_scheduler.0", 100.0, 100.0, BLUR) == 103.0


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = Lines(path)
    assert lines.new() == []
    path.write_text('{"a": 1}\n{"a"')
    assert lines.new() == [{"a": 1}]
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert lines.new() == [{"a": 2}]


def test_a_sight_knows_processes_phases_and_moments(tmp_path):
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "checkpoints").mkdir()
    sight = Sight(tmp_path, ["sft", "evaluate", "rl"], {"local": logs / "supervisor.local.jsonl"})
    sight.look(0.0)
    assert (sight.phase, sight.shows("start"), sight.shows("sft")) == ("start", True, False)
    log = [{"event": "started", "actor": "learner.0", "pid": 7}, {"event": "ended", "actor": "learner.0", "pid": 7}]
    log += [{"event": "started", "actor": "learner.0", "pid": 8}, {"event": "x", "text": "a.0 runs again, 2.5 s after"}]
    (logs / "supervisor.local.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    (logs / "learner.0.jsonl").write_text('{"event": "stage", "stage": 0}\n')
    sight.look(1.0)
    assert (sight.processes, sight.starts, sight.phase) == ({"learner.0": 8}, [("a.0", 2.5)], "sft")
    assert (sight.shows("sft"), sight.shows("evaluation")) == (True, False)
    assert sight.shows("stage_change", Sight(tmp_path, [], {}))
    assert not sight.shows("stage_change", sight)
    (logs / "learner.0.jsonl").write_text('{"event": "stage", "stage": 0}\n{"event": "stage", "stage": 2}\n')
    sight.look(2.0)
    before = copy.copy(sight)
    assert not sight.shows("checkpoint", before)
    (tmp_path / "checkpoints" / "version-1").mkdir()
    assert sight.shows("checkpoint", before)  # it was written between two looks
    sight.look(2.5)
    assert not sight.shows("checkpoint", sight)
    (tmp_path / "checkpoints" / ".version-2.partial").mkdir()
    assert sight.shows("checkpoint", sight)
    sight.started(3.0, ["learner.0"])
    assert (sight.processes, sight.phase, sight.frontier) == ({}, "start", Frontier())


def test_faults_of_the_network_are_begun_and_ended_where_they_are():
    a, b = SimpleNamespace(address="10.0.0.1"), SimpleNamespace(address="10.0.0.2")
    ((machine, down, up),) = network_fault("link_down", [a])
    assert (machine, down[-1], up[-1]) == (a, "down", "up")
    ((_, slow, fast),) = network_fault("slow_link", [a])
    assert ("20mbit" in slow, slow[2], fast[2]) == (True, "add", "del")
    ways = network_fault("partition", [a, b])
    assert [(machine, begin[-1], end[2]) for machine, begin, end in ways] == [
        (a, "10.0.0.2/32", "del"),
        (b, "10.0.0.1/32", "del"),
    ]


# Accounts -------------------------------------------------------------------------------------------------------------

RECORD = """
begun g.0#1 a 10
begun g.0#1 a 30
begun g.0#1 b 10
begun g.0#1 c 10
acknowledged g.0#1 c
fault kill
begun g.0#2 a 30
begun g.0#2 b 10
"""


def test_a_turn_under_way_that_is_begun_again_is_one_and_a_complete_turn_that_is_lost_counts_too():
    lines = RECORD.strip().splitlines()
    turns = read_turns(lines)
    assert (turns.again, turns.in_flight) == ({"kill": 2}, {"kill": 2})
    again = read_turns([*lines, "fault host", "begun g.0#3 a 10"])
    assert (again.again["host"], again.in_flight["host"]) == (2, 2)  # both turns of a
    alone = read_turns([*lines[:5], "begun g.1#1 d 10"])
    assert (alone.again.total(), alone.in_flight.total()) == (0, 0)
    elsewhere = [*lines[:6], "begun g.1#1 a 30", "begun g.1#1 b 10"]
    for further in ([], ["begun g.0#2 d 10"]):  # the actor may begin nothing any more
        found = read_turns([*elsewhere, *further])
        assert (found.again, found.in_flight) == ({"kill": 2}, {"kill": 2})


def journal(folder: Path, *numbers: int) -> Journal:
    made = Journal(folder / "journal.sqlite")
    for number in numbers:
        made.open_group(f"g{number}", 0, number, "train", b"")
        made.ready(f"g{number}", [(0, 0)], [1.0], 0, 0)
    return made


def train(made: Journal, version: int, *groups: str) -> None:
    made.close_step(version, 0, groups, groups, StepFigures())
    made.step_trained(version, TrainingFigures())


def test_open_missing_and_failed_groups_are_lost_and_groups_in_two_steps_are_repeated(tmp_path):
    made = journal(tmp_path, 0, 1, 3)
    made.open_group("g4", 0, 4, "train", b"")
    made.drop("g4", "too_few_rollouts", 0.0, 0, 0)
    train(made, 0, "g0")
    train(made, 1, "g0", "g1")
    accounts = read_accounts(made, 1)
    assert sorted(accounts.lost) == ["g3 is ready", "g4 was dropped: too_few_rollouts", "stage 0: no group 2 to train"]
    assert accounts.repeated == ("g0 was trained twice",)


def test_a_prompt_that_is_not_that_of_its_group_is_lost(tmp_path):
    topology = load_topology(EXAMPLE)
    tasks = Environments(topology, EXAMPLE.parent).tasks()
    made = Journal(tmp_path / "journal.sqlite")
    right = {"g0": tasks.problem(2, 0), "e0": tasks.evaluation(0), "e1000": tasks.evaluation(0)}
    prompts = {name.encode(): SimpleNamespace(problem=problem) for name, problem in right.items()}
    made.open_group("g0", 2, 0, "train", b"g0")
    made.open_group("e0", 1, 0, "evaluate_sampled", b"e0")
    made.open_group("e1000", 1, 1000, "evaluate_greedy", b"e1000")
    assert wrong_prompts(made, topology, EXAMPLE.parent, prompts.__getitem__) == []
    made.open_group("g1", 2, 1, "train", b"g0")
    (line,) = wrong_prompts(made, topology, EXAMPLE.parent, prompts.__getitem__)
    assert line == f"g1 asks {right['g0'].id}, and its number is that of {tasks.problem(2, 1).id}"


def test_a_whole_run_has_lost_nothing_and_its_scripted_model_was_trained_on_what_the_journal_says(tmp_path):
    made = journal(tmp_path, 0, 1, 2)
    train(made, 0, "g0", "g1")
    train(made, 1, "g2")
    assert read_accounts(made, 2) == Accounts((), (), balanced=True)
    assert wrongly_trained(made, ["g0", "g1", "g2"]) == ([], [])
    lost, again = wrongly_trained(made, ["g0", "g2", "g2", "g7"])
    assert lost == ["the model was not trained on g1"]
    assert again == ["the model was trained 2 times on g2", "the model was trained on g7 of no step"]


def test_a_group_that_was_trained_too_late_is_told_by_the_versions_in_its_trajectories(tmp_path):
    topology = load_topology(EXAMPLE)
    at, _, algorithm = topology.rl_algorithms[0]
    made = Journal(tmp_path / "journal.sqlite")
    for number, oldest in enumerate((9 - algorithm.max_staleness, 8 - algorithm.max_staleness)):
        made.open_group(f"g{number}", at, number, "train", b"")
        made.add_trajectory(f"g{number}", 0, 0, "finished", str(oldest).encode())
        made.ready(f"g{number}", [(0, 0)], [1.0], 9, 0)
    train(made, 9, "g0", "g1")
    said = trained_too_late(made, topology, lambda stored: SimpleNamespace(oldest=int(stored)))
    permitted = algorithm.max_staleness
    assert said == [f"g1 was trained with staleness {permitted + 1}; {permitted} is permitted"]


def summary(**shares: float) -> dict[str, float]:
    given = dict.fromkeys(SHARES, 0.5) | shares
    ends = (("", 0), ("_low", -0.1), ("_high", 0.1))
    return {f"{name}{end}": value + by for name, value in given.items() for end, by in ends}


def test_success_is_compared_by_intervals_or_over_pairs():
    near, far = summary(success_after_greedy=0.65), summary(success_after_greedy=0.75)
    assert within_noise([]) is None
    assert within_noise([(summary(), near)]) is True
    assert within_noise([(summary(), far)]) is False
    assert within_noise([(summary(), far), (far, summary())]) is True  # the mean difference is 0
    assert within_noise([(far, summary()), (far, summary())]) is False


def test_figures_of_faults_tell_recovery_turns_and_what_was_lost():
    def done(kind: str, victim: str, lost: float) -> Done:
        return Done(Fault(1, kind, "step", 0.0, (victim,)), "rl", lost)

    faults = [done("kill", "kv_scheduler.0", 0.1 * n) for n in range(1, 21)]
    faults += [done("kill", "learner.0", 7.0), done("supervisor", SUPERVISOR, 9.0)]
    accounts = Accounts(("g0 is ready",), (), balanced=True, stale=("g1",))
    turns = Turns(Counter(kill=3), Counter(kill=4))
    run = bench_chaos.Ended(
        done=faults, turns=turns, accounts=accounts, left=["/tmp/x"], summary=summary(), seconds=60.0
    )
    verdict = Verdict([run])
    shown = {name: verdict.figures[name] for name in ("lost", "repeated", "stale", "balanced", "left_behind")}
    assert shown == {"lost": 1, "repeated": 0, "stale": 1, "balanced": 1, "left_behind": 1}
    assert (verdict.exit_code, verdict.figures["success_within_noise"]) == (1, None)
    figures = bench_chaos.figures_of([run])
    assert (figures["faults"], figures["regenerated_turns_over_in_flight"]) == (22, 0.75)
    assert (figures["p95_s"], figures["p95_heavy_s"]) == (pytest.approx(1.9), 9.0)
    assert figures["p95_s_kill_learner"] == 7.0


# Actors of no model, and what a run leaves ----------------------------------------------------------------------------


def test_a_scripted_model_goes_on_from_its_checkpoint(tmp_path):
    trained = Trained(60.0, tmp_path)  # the folder is there: steps take no time
    group = TrainingGroup("g0", 2, PolicyVersion(1, 0), (), np.zeros(0, dtype=np.float32))
    trained.rl_step([group], load_topology(EXAMPLE).stages[2], 0)
    trained.stage(tmp_path / "version-000001-stage-02", Position(2, 0, 1), {"watch": 3}).write()
    restored = Trained(60.0, tmp_path)
    assert restored.restore(tmp_path / "version-000001-stage-02") == (Position(2, 0, 1), {"watch": 3})
    assert restored.groups == ["g0"]
    (tmp_path / "version-000001-stage-02" / TRAINED).write_text("[]")
    with pytest.raises(CheckpointError, match="bytes long"):
        restored.restore(tmp_path / "version-000001-stage-02")


async def test_a_scripted_engine_calls_its_tool_then_answers_and_refuses_other_weights(tmp_path):
    engine = ScriptedTurns(write_model(tmp_path / "model"), {"a": "12"}, rows=8)
    chat = build_tokenizer(LENGTH)  # the tokenizer that was written without transformers is the quickstart's
    assert engine.decode(chat.encode("<tool_call>print(12)\n", add_special_tokens=False)) == "<tool_call>print(12)\n"

    texts = []
    for prompt in ("A shop has 5", "A shop has 5<tool_response>12</tool_response>"):
        tokens = chat.encode(prompt, add_special_tokens=False)
        stop = frozenset([2])
        request = TurnRequest(rollout="a", tokens=tokens, max_tokens=120, temperature=1.0, stop_tokens=stop, seed=1)
        texts.append(engine.decode((await engine.generate(request)).tokens.tolist()))
    (tmp_path / "3").write_text(json.dumps({"version": 3}))
    await engine.load_weights(tmp_path / "3", PolicyVersion(1, 3))
    with pytest.raises(EngineError, match="version 3 instead of 4"):
        await engine.load_weights(tmp_path / "3", PolicyVersion(1, 4))
    call, answer = texts
    assert call.startswith("<tool_call>")
    assert "print(12" in call
    assert answer.startswith("<answer>\\boxed{12")
    assert engine.policy == PolicyVersion(1, 3)


def test_the_clock_of_a_process_jumps_and_the_hosts_does_not(tmp_path):
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("d", -86400.0))
    code = "import time; print(time.time(), time.time_ns() / 1e9, time.monotonic())"
    environment = os.environ | {"PYTHONPATH": str(CLOCK), "CHAOS_CLOCK": str(clock)}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    wall, nanoseconds, monotonic = map(float, done.stdout.split())
    assert wall == pytest.approx(time.time() - 86400, abs=120)
    assert nanoseconds == pytest.approx(wall, abs=60)
    assert monotonic == pytest.approx(time.monotonic(), abs=120)


@pytest.mark.real_time
@pytest.mark.parametrize("unseen", [False, True])
async def test_what_a_host_leaves_is_found_also_by_its_environment_alone(tmp_path, unseen):
    """A process that leaves its session at once is never seen below the supervisor."""
    start = f"import os, subprocess, time; subprocess.Popen(['sleep', '60'], start_new_session={unseen})"
    stays = "" if unseen else "; open(os.environ['TMPDIR'] + '/x', 'w'); time.sleep(60)"
    host, file = Host([sys.executable, "-c", start + stays], tmp_path, ""), tmp_path / "t" / "x"
    await host.start()
    if not unseen:
        wait_for(lambda: file.exists() and len(host.everyone()) == 2, "the process below and its file")
        os.kill(host.pid, signal.SIGKILL)
    await host.ended()
    left = host.left_behind()
    below = int(left[0].split()[1].rstrip(":"))
    os.kill(below, signal.SIGKILL)
    assert left == [f"process {below}: sleep 60", *([] if unseen else [str(file)])]
