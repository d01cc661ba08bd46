"""The plan of chaos, what is read of a run under it, its accounts; and a few real faults."""

from __future__ import annotations

import copy
import json
import math
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
import trio

from actors.engines.base import EngineError, TurnRequest
from agent_rl.config.examples import EXAMPLES
from agent_rl.config.load import load_topology
from agent_rl.environments.load import Environments
from agent_rl.figures import StepFigures, TrainingFigures
from agent_rl.learning.tiny import build_tokenizer
from agent_rl.messages import Policy, TrainingGroup
from agent_rl.records.checkpoint_files import CheckpointError, Position
from agent_rl.records.journal import Journal
from benchmarks.chaos.accounting import (
    SHARES,
    Ended,
    figures_of,
    intervals_meet,
    percentile,
    read_accounts,
    wrong_prompts,
    wrongly_trained,
)
from benchmarks.chaos.accounting import within_noise as agree
from benchmarks.chaos.cluster import network_fault
from benchmarks.chaos.doing import Done
from benchmarks.chaos.host import CLOCK, Host
from benchmarks.chaos.plan import IN_RL, NETWORK, Fault, Kind, Moment, each_once, in_order, make_plan
from benchmarks.chaos.recording import Turns, read_turns
from benchmarks.chaos.scripted import LENGTH, TRAINED, ScriptedTurns, Trained, write_model
from benchmarks.chaos.sight import Frontier, Lines, Row, Sight, work_seen
from tests.end_to_end.processes import wait_for
from tests.machines import skip_without

ACTORS = ("kv_scheduler.0", "rollout_generator.0", "tool_executor.0", "roc_filter.0", "learner.0")
EXAMPLE = EXAMPLES / "quickstart.toml"
SUPERVISOR = "supervisor.local"
HOMES = dict.fromkeys(ACTORS, "local")
HERE = [kind for kind in Kind if kind not in NETWORK]
BLUR = 1.5

# The plan -------------------------------------------------------------------------------------------------------------


def test_a_seed_decides_the_plan_and_every_kind_actor_and_moment_comes() -> None:
    plan = make_plan(3, 200, HOMES, per_run=16, kinds=HERE)
    assert plan == make_plan(3, 200, HOMES, per_run=16, kinds=HERE)
    assert plan != make_plan(4, 200, HOMES, per_run=16, kinds=HERE)
    assert [fault.number for fault in plan] == list(range(1, 201))
    assert {fault.kind for fault in plan[: len(HERE)]} == set(HERE)
    assert {fault.moment for fault in plan} == set(Moment)
    kills = Counter(fault.victims[0] for fault in plan if fault.kind is Kind.KILL)
    assert kills.keys() == set(ACTORS)
    assert min(kills.values()) >= 4


def test_only_the_kinds_that_were_asked_for_come() -> None:
    plan = make_plan(0, 9, HOMES, per_run=9, kinds=[Kind.STOP, Kind.CLOCK])
    assert {fault.kind for fault in plan} == {Kind.STOP, Kind.CLOCK}


def test_a_quick_plan_has_the_same_faults_that_last_a_quarter_as_long() -> None:
    slow = make_plan(3, 60, HOMES, per_run=60, kinds=HERE)
    quick = make_plan(3, 60, HOMES, per_run=60, kinds=HERE, quick=True)
    assert [(each.kind, each.victims, each.moment) for each in quick] == [
        (each.kind, each.victims, each.moment) for each in slow
    ]
    for one, other in zip(quick, slow, strict=True):
        assert one.delay == other.delay / 4
        assert one.seconds == (other.seconds if one.kind is Kind.CLOCK else other.seconds / 4)


def test_the_faults_of_a_run_come_in_the_order_of_the_recipe() -> None:
    ordered = in_order(make_plan(1, 40, HOMES, per_run=40, kinds=HERE))
    early = [fault.moment for fault in ordered if fault.moment not in IN_RL]
    assert early == sorted(early, key=list(Moment).index)
    assert all(fault.moment in IN_RL for fault in ordered[len(early) :])


# What is seen of a run ------------------------------------------------------------------------------------------------


def timeline(actor: str, *told: tuple[float, float | None]) -> list[Row]:
    """Rows at (time, figure) where the figure is None while the actor is not heard."""
    figure = {"learner.0": "step", "tool_executor.0": "calls", "kv_scheduler.0": "groups_opened"}[actor]
    stage = {"stage": 2.0} if actor == "learner.0" else {}
    return [
        Row(at, {} if count is None else {actor: {"state": "running", "figures": {figure: float(count), **stage}}})
        for at, count in told
    ]


def test_a_role_that_counts_from_nothing_is_back_once_its_new_process_counts() -> None:
    rows = timeline("tool_executor.0", (98, 480), (99, 490), (100, 500), (101, 505), (102, None), (105, 0), (106, 3))
    assert work_seen(rows, "tool_executor.0", 99.8, 99.8, BLUR) == 106.0
    assert work_seen(rows[:-1], "tool_executor.0", 99.8, 99.8, BLUR) is None


def test_a_role_that_is_restored_is_back_once_it_is_past_where_it_was() -> None:
    rows = timeline("learner.0", (99, 12), (100, 12), (104, 10), (105, 11), (106, 12), (107, 13))
    assert work_seen(rows, "learner.0", 99.5, 99.5, BLUR) == 107.0
    assert work_seen(rows, SUPERVISOR, 99.5, 99.5, BLUR) == 107.0


def test_what_the_killed_process_said_last_is_not_its_successors() -> None:
    rows = timeline("kv_scheduler.0", (100, 40), (101, 42), (103, 42), (104, 43))
    assert work_seen(rows, "kv_scheduler.0", 100.1, 100.1, BLUR) == 104.0


def test_progress_while_a_process_is_stopped_is_not_its_own() -> None:
    rows = timeline("tool_executor.0", (100, 40), (103, 40), (107, 45))
    assert work_seen(rows, "tool_executor.0", 100.0, 104.0, BLUR) == 107.0


def test_an_actor_without_work_is_back_once_it_runs_and_the_run_goes_on() -> None:
    def row(at: float, step: float, state: str) -> Row:
        learner = {"state": "running", "figures": {"stage": 0.0, "step": step}}
        return Row(at, {"learner.0": learner, "kv_scheduler.0": {"state": state, "figures": {}}})

    rows = [row(100, 5, "running"), row(102, 9, "starting"), row(103, 9, "running")]
    assert work_seen(rows[:2], "kv_scheduler.0", 100.0, 100.0, BLUR) is None
    assert work_seen(rows, "kv_scheduler.0", 100.0, 100.0, BLUR) == 103.0


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = Lines(path)
    assert lines.new() == []
    path.write_text('{"a": 1}\n{"a"')
    assert lines.new() == [{"a": 1}]
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert lines.new() == [{"a": 2}]


def test_a_sight_knows_processes_phases_and_moments(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "checkpoints").mkdir()
    sight = Sight(tmp_path, ["sft", "evaluate", "rl"], {"local": logs / "supervisor.local.jsonl"})
    sight.look(0.0)
    assert (sight.phase, sight.shows(Moment.START), sight.shows(Moment.SFT)) == ("start", True, False)
    log = [{"event": "started", "actor": "learner.0", "pid": 7}, {"event": "ended", "actor": "learner.0", "pid": 7}]
    log += [{"event": "started", "actor": "learner.0", "pid": 8}, {"event": "x", "text": "a.0 runs again, 2.5 s after"}]
    (logs / "supervisor.local.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    (logs / "learner.0.jsonl").write_text('{"event": "stage", "stage": 0}\n')
    sight.look(1.0)
    assert (sight.processes, sight.starts, sight.phase) == ({"learner.0": 8}, [("a.0", 2.5)], "sft")
    assert (sight.shows(Moment.SFT), sight.shows(Moment.EVALUATION)) == (True, False)
    before = Sight(tmp_path, [], {})
    assert sight.shows(Moment.STAGE_CHANGE, before)
    assert not sight.shows(Moment.STAGE_CHANGE, sight)
    (logs / "learner.0.jsonl").write_text('{"event": "stage", "stage": 0}\n{"event": "stage", "stage": 2}\n')
    sight.look(2.0)
    before = copy.copy(sight)
    assert not sight.shows(Moment.CHECKPOINT, before)
    (tmp_path / "checkpoints" / "version-1").mkdir()
    assert sight.shows(Moment.CHECKPOINT, before)  # it was written between two looks
    sight.look(2.5)
    assert not sight.shows(Moment.CHECKPOINT, sight)
    (tmp_path / "checkpoints" / ".version-2.partial").mkdir()
    assert sight.shows(Moment.CHECKPOINT, sight)
    sight.started(3.0, ["learner.0"])
    assert (sight.processes, sight.phase, sight.frontier) == ({}, "start", Frontier())


def test_faults_of_the_network_are_begun_and_ended_where_they_are() -> None:
    a, b = SimpleNamespace(address="10.0.0.1"), SimpleNamespace(address="10.0.0.2")
    ((machine, down, up),) = network_fault(Kind.LINK, [a])
    assert (machine, down[-1], up[-1]) == (a, "down", "up")
    ((_, slow, fast),) = network_fault(Kind.SLOW, [a])
    assert ("20mbit" in slow, slow[2], fast[2]) == (True, "add", "del")
    ways = network_fault(Kind.PARTITION, [a, b])
    assert [(machine, begin[-1], end[2]) for machine, begin, end in ways] == [
        (a, "10.0.0.2/32", "del"),
        (b, "10.0.0.1/32", "del"),
    ]


# Accounts -------------------------------------------------------------------------------------------------------------


def test_a_turn_under_way_that_is_begun_again_is_one_and_a_complete_turn_that_is_lost_counts_too() -> None:
    record = """
        begun g.0#1 a 10
        begun g.0#1 a 30
        begun g.0#1 b 10
        begun g.0#1 c 10
        acknowledged g.0#1 c
        fault kill
        begun g.0#2 a 30
        begun g.0#2 b 10
    """
    turns = read_turns(record.strip().splitlines())
    assert (turns.again, turns.in_flight) == ({"kill": 2}, {"kill": 2})
    again = read_turns([*record.strip().splitlines(), "fault host", "begun g.0#3 a 10"])
    assert (again.again["host"], again.in_flight["host"]) == (2, 2)  # both turns of a


def test_a_run_in_order_regenerates_nothing() -> None:
    turns = read_turns(["begun g.0#1 a 10", "begun g.0#1 a 30", "acknowledged g.0#1 a", "begun g.1#1 b 10"])
    assert (sum(turns.again.values()), sum(turns.in_flight.values())) == (0, 0)


def journal(folder: Path, *numbers: int) -> Journal:
    made = Journal(folder / "journal.sqlite")
    for number in numbers:
        made.open_group(f"g{number}", 0, number, "train", b"")
        made.ready(f"g{number}", [(0, 0)], [1.0], 0, 0)
    return made


def train(made: Journal, version: int, *groups: str) -> None:
    made.close_step(version, 0, groups, groups, StepFigures())
    made.step_trained(version, TrainingFigures())


def test_a_whole_run_has_lost_and_repeated_nothing(tmp_path: Path) -> None:
    made = journal(tmp_path, 0, 1)
    train(made, 0, "g0", "g1")
    accounts = read_accounts(made, 1)
    assert (accounts.lost, accounts.repeated, accounts.balanced) == ((), (), True)


def test_open_missing_and_failed_groups_are_lost_and_groups_in_two_steps_are_repeated(tmp_path: Path) -> None:
    made = journal(tmp_path, 0, 1, 3)
    made.open_group("g4", 0, 4, "train", b"")
    made.drop("g4", "too_few_rollouts", 0.0, 0, 0)
    train(made, 0, "g0")
    train(made, 1, "g0", "g1")
    accounts = read_accounts(made, 1)
    assert sorted(accounts.lost) == ["g3 is ready", "g4 was dropped: too_few_rollouts", "stage 0: no group 2 to train"]
    assert accounts.repeated == ("g0 was trained twice",)


def test_a_prompt_that_is_not_that_of_its_group_is_lost(tmp_path: Path) -> None:
    topology = load_topology(EXAMPLE)
    tasks = Environments(topology, EXAMPLE.parent).tasks()
    made = journal(tmp_path)
    right = {"g0": tasks.problem(2, 0), "e0": tasks.evaluation(0), "e1000": tasks.evaluation(0)}
    prompts = {name.encode(): SimpleNamespace(problem=problem) for name, problem in right.items()}
    made.open_group("g0", 2, 0, "train", b"g0")
    made.open_group("e0", 1, 0, "evaluate_sampled", b"e0")
    made.open_group("e1000", 1, 1000, "evaluate_greedy", b"e1000")
    assert wrong_prompts(made, topology, EXAMPLE.parent, prompts.__getitem__) == []
    made.open_group("g1", 2, 1, "train", b"g0")
    (line,) = wrong_prompts(made, topology, EXAMPLE.parent, prompts.__getitem__)
    assert line == f"g1 asks {right['g0'].id}, and its number is that of {tasks.problem(2, 1).id}"


def test_what_a_scripted_model_was_trained_on_is_what_the_journal_says(tmp_path: Path) -> None:
    made = journal(tmp_path, 0, 1, 2)
    train(made, 0, "g0", "g1")
    train(made, 1, "g2")
    assert wrongly_trained(made, ["g0", "g1", "g2"]) == ([], [])
    lost, again = wrongly_trained(made, ["g0", "g2", "g2", "g7"])
    assert lost == ["the model was not trained on g1"]
    assert again == ["the model was trained 2 times on g2", "the model was trained on g7 of no step"]


def test_a_scripted_model_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    trained = Trained(60.0, tmp_path)  # the folder is there: steps take no time
    group = TrainingGroup("g0", 2, Policy(1, 0), (), np.zeros(0, dtype=np.float32))
    trained.rl_step([group], load_topology(EXAMPLE).stages[2], 0)  # type: ignore[arg-type]
    trained.stage(tmp_path / "version-000001-stage-02", Position(2, 0, 1), {"watch": 3}).write()
    restored = Trained(60.0, tmp_path)
    assert restored.restore(tmp_path / "version-000001-stage-02") == (Position(2, 0, 1), {"watch": 3})
    assert restored.groups == ["g0"]
    assert restored.copy_weights(1) == {"version": 1, "groups": 1, "padding": ""}
    (tmp_path / "version-000001-stage-02" / TRAINED).write_text("[]")
    with pytest.raises(CheckpointError, match="bytes long"):
        restored.restore(tmp_path / "version-000001-stage-02")


def test_a_scripted_engine_calls_its_tool_then_answers_and_refuses_other_weights(tmp_path: Path) -> None:
    engine = ScriptedTurns(write_model(tmp_path / "model"), {"a": "12"}, rows=8)
    chat = build_tokenizer(LENGTH)  # the tokenizer that was written without transformers is the quickstart's
    assert engine.decode(chat.encode("<tool_call>print(12)\n", add_special_tokens=False)) == "<tool_call>print(12)\n"

    async def turns() -> tuple[str, str]:
        texts = []
        for prompt in ("A shop has 5", "A shop has 5<tool_response>12</tool_response>"):
            tokens = chat.encode(prompt, add_special_tokens=False)
            request = TurnRequest(
                rollout="a", tokens=tokens, max_tokens=120, temperature=1.0, stop_tokens=frozenset([2]), seed=1
            )
            texts.append(engine.decode((await engine.generate(request)).tokens.tolist()))
        (tmp_path / "3").write_text(json.dumps({"version": 3}))
        await engine.load_weights(tmp_path / "3", Policy(1, 3))
        with pytest.raises(EngineError, match="version 3 instead of 4"):
            await engine.load_weights(tmp_path / "3", Policy(1, 4))
        return texts[0], texts[1]

    call, answer = trio.run(turns)
    assert call.startswith("<tool_call>")
    assert "print(12" in call
    assert answer.startswith("<answer>\\boxed{12")
    assert engine.policy == Policy(1, 3)


def summary(**shares: float) -> dict[str, float]:
    given = dict.fromkeys(SHARES, 0.5) | shares
    return {
        f"{name}{end}": value + by
        for name, value in given.items()
        for end, by in (("", 0), ("_low", -0.1), ("_high", 0.1))
    }


def test_success_is_compared_by_intervals_or_over_pairs() -> None:
    assert intervals_meet({"s_low": 0.4, "s_high": 0.5}, {"s_low": 0.5, "s_high": 0.6}, "s")
    assert agree([]) is None
    assert agree([(summary(), summary(success_after_greedy=0.65))])
    assert not agree([(summary(), summary(success_after_greedy=0.75))])
    noisy = [(summary(success_after_sampled=0.5 + by), summary()) for by in (-0.1, 0.0, 0.12)]
    assert agree(noisy)
    worse = [(summary(success_after_sampled=0.4 + by), summary()) for by in (-0.01, 0.0, 0.01)]
    assert not agree(worse)


def test_the_figures_count_what_is_lost_and_part_the_learner_from_the_rest(tmp_path: Path) -> None:
    def done(number: int, kind: Kind, victim: str, lost: float) -> Done:
        return Done(Fault(number, kind, Moment.STEP, 0.0, (victim,)), "rl", lost, 1.0)

    faults = [done(n, Kind.KILL, "tool_executor.0", n / 10) for n in range(1, 21)]
    faults += [done(21, Kind.KILL, "learner.0", 7.0), done(22, Kind.SUPERVISOR, SUPERVISOR, 9.0)]
    turns = Turns(Counter(kill=3), Counter(kill=4))
    made = journal(tmp_path, 0)
    run = Ended(faults, read_accounts(made, 1), turns, ["/tmp/x"], summary(), 60.0)
    figures = figures_of([run])
    assert (figures["chaos.faults"], figures["chaos.lost"], figures["chaos.left_behind"]) == (22, 1, 1)
    assert figures["chaos.regenerated_turns_over_in_flight"] == 0.75
    assert (figures["chaos.p95_s"], figures["chaos.p95_heavy_s"]) == (1.9, 9.0)
    assert figures["chaos.p95_s_kill_learner"] == 7.0
    assert math.isnan(percentile([], 0.95))


# Real faults ----------------------------------------------------------------------------------------------------------


def test_the_clock_of_a_process_jumps_and_the_hosts_does_not(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("d", -86400.0))
    code = "import time; print(time.time(), time.time_ns() / 1e9, time.monotonic())"
    environment = os.environ | {"PYTHONPATH": str(CLOCK), "CHAOS_CLOCK": str(clock)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    wall, nanoseconds, monotonic = map(float, done.stdout.split())
    assert wall == pytest.approx(time.time() - 86400, abs=120)
    assert nanoseconds == pytest.approx(wall, abs=1)
    assert monotonic == pytest.approx(time.monotonic(), abs=120)


def test_what_a_host_leaves_is_found(tmp_path: Path) -> None:
    start = "import os, subprocess, time; subprocess.Popen(['sleep', '60'])"
    host = Host(
        [sys.executable, "-c", f"{start}; open(os.environ['TMPDIR'] + '/x', 'w'); time.sleep(60)"], tmp_path, ""
    )

    async def lose_power() -> None:
        await host.start()
        left_file = tmp_path / "t" / "x"
        wait_for(lambda: left_file.exists() and len(host.everyone()) == 2, "the process below and its file")
        os.kill(host.pid, signal.SIGKILL)
        await host.ended()

    trio.run(lose_power)
    left = host.left_behind()
    (below,) = (int(line.split()[1].rstrip(":")) for line in left if line.startswith("process"))
    os.kill(below, signal.SIGKILL)
    assert left == [f"process {below}: sleep 60", str(tmp_path / "t" / "x")]


def test_a_process_that_nobody_saw_below_the_supervisor_is_found_by_its_environment(tmp_path: Path) -> None:
    start = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"
    host = Host([sys.executable, "-c", start], tmp_path, "")

    async def run() -> None:
        await host.start()
        await host.ended()

    trio.run(run)
    (line,) = host.left_behind()
    os.kill(int(line.split()[1].rstrip(":")), signal.SIGKILL)
    assert line.endswith(": sleep 60")


def test_each_process_once_ends_with_the_supervisor() -> None:
    plan = each_once(HOMES)
    assert [fault.victims[0] for fault in plan] == [*ACTORS, SUPERVISOR]
    assert (plan[-1].kind, plan[-1].victims) == (Kind.SUPERVISOR, (SUPERVISOR, *ACTORS))


def test_over_hosts_a_fault_of_a_host_hits_its_own_actors() -> None:
    homes = {"kv_scheduler.0": "a", "learner.0": "a", "rollout_generator.0": "b", "rollout_generator.1": "c"}
    plan = make_plan(0, 300, homes, per_run=16, kinds=list(Kind))
    whole = {fault.victims for fault in plan if fault.kind is Kind.HOST}
    a = ("supervisor.a", "kv_scheduler.0", "learner.0")
    assert whole == {a, ("supervisor.b", "rollout_generator.0"), ("supervisor.c", "rollout_generator.1")}
    assert {len(fault.victims) for fault in plan if fault.kind is Kind.DISK} == {7}  # the main host ends the run
    assert all(len(set(fault.victims)) == 2 for fault in plan if fault.kind is Kind.PARTITION)


def chaos(*arguments: str) -> dict[str, float]:
    """The figures of a real run."""
    command = [sys.executable, "-m", "actors.cli", "bench", "chaos", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAULT" not in done.stdout
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    assert figures["chaos.lost"] == figures["chaos.repeated"] == figures["chaos.left_behind"] == 0
    assert figures["chaos.balanced"] == 1
    return figures


def test_ten_faults_of_every_kind_cost_nothing_but_time() -> None:
    figures = chaos("--scripted", "--faults", "10", "--seed", "95")
    assert figures["chaos.faults"] == 10
    for kind in ("kill", "stop", "clock_jump"):  # whoever keeps completed turns lives
        assert figures.get(f"chaos.regenerated_turns_over_in_flight_{kind}", 0.0) <= 1.0


@pytest.mark.slow
def test_twenty_faults_cost_nothing_but_time_and_success_is_that_of_the_twin() -> None:
    figures = chaos("--scripted", "--faults", "20", "--seed", "2", "--twins", "1")
    assert figures["chaos.faults"] == 20
    for share in SHARES:
        assert figures[f"chaos.{share}"] == figures[f"chaos.{share}_twin"]


@pytest.mark.slow
def test_five_faults_of_a_run_with_a_model_cost_nothing_but_time() -> None:
    figures = chaos("--short", "--faults", "5", "--kinds", "kill", "stop", "double_kill", "supervisor", "clock_jump")
    assert figures["chaos.faults"] == 5


@pytest.mark.slow
def test_ten_faults_over_three_hosts_cost_nothing_but_time() -> None:
    skip_without("tc")
    figures = chaos("--scripted", "--hosts", "--faults", "10", "--seed", "1")
    assert figures["chaos.faults"] == 10


@pytest.mark.slow
def test_the_quickstart_survives_the_kill_of_each_of_its_processes() -> None:
    figures = chaos("--each-once")
    assert figures["chaos.faults"] == 6
    assert figures["chaos.success_within_noise"] == 1
