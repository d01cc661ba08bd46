"""Policies on real engines: lengths by a seed, turns that have them, the fit, and what is reported."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from actors.engines.base import EngineFigures, TurnRequest, TurnResult
from agent_rl.config.load import load_topology
from agent_rl.environments.load import Environments
from agent_rl.messages import ObserveTurn, Transcript
from agent_rl.simulation.trace import Shape
from benchmarks.bench_policies import Options, checked, in_turn, interval, report
from benchmarks.command import WrongOptions, call
from benchmarks.policies.generator import STOP, LengthsFormat, Row, ShapedEngine, read_rows
from benchmarks.policies.prediction import Simulated, TooFewRowsError, fitted, simulate, trace_of
from benchmarks.policies.service import Measured, Sizes, answer
from benchmarks.policies.workload import LIMIT, MAX_TURNS, ShapedTasks, shape_in, shapes, turn_after

SHAPE = Shape(5, (4, 3, 2), (0.5, 1.0), (6, 1))


def test_a_seed_is_the_same_work_and_another_seed_other_work() -> None:
    drawn = shapes(0, 8, 16)
    assert drawn == shapes(0, 8, 16) != shapes(1, 8, 16)
    every = [shape for group in drawn for shape in group]
    assert all(shape.context - shape.prompt <= LIMIT and len(shape.written) <= MAX_TURNS for shape in every)
    assert max(sum(shape.written) for shape in every) > 2 * sum(sum(shape.written) for shape in every) / len(every)


def test_lengths_travel_with_the_problem(tmp_path: Path) -> None:
    file = tmp_path / "topology.toml"
    file.write_text(Sizes("torch", 3, 4, 4096, 8).topology(tmp_path))
    topology = load_topology(file, ["run.seed=7"])
    tasks, drawn = Environments(topology, tmp_path).tasks(), shapes(7, 3, 4)
    for number, group in enumerate(drawn):
        problem = tasks.problem(0, number)
        assert [shape_in(problem, sample) for sample in range(4)] == list(group)
        assert len(problem.text) + 1 == group[0].prompt == len(LengthsFormat({}).prompt_tokens(problem))
    assert len({tasks.problem(0, number).id for number in range(3)}) == 3


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=5), st.integers(1, 9))
def test_the_turn_follows_from_the_number_of_tokens(turns: list[tuple[int, int]], prompt: int) -> None:
    written, answers = [each[0] for each in turns], [each[1] for each in turns[1:]]
    shape = Shape(prompt, tuple(written), (0.0,) * len(answers), tuple(answers))
    context, starts = prompt, {}
    for turn, count in enumerate(written):
        starts[context] = turn
        context += count + (answers[turn] if turn < len(answers) else 0)
    for tokens in range(prompt + sum(written) + sum(answers) + 2):
        if tokens in starts:
            assert turn_after(shape, tokens) == starts[tokens]
        else:
            with pytest.raises(ValueError, match=f"after {tokens} tokens"):
                turn_after(shape, tokens)


class Written:
    """An engine that writes as many tokens as it may, at once."""

    figures = EngineFigures(kv_tokens_total=64, max_rollouts=2, generated_tokens=9)

    async def generate(self, request: TurnRequest) -> TurnResult:
        assert not request.stop_tokens
        await trio.lowlevel.checkpoint()
        count = request.max_tokens
        arrays = np.full(count, 7, np.int32), np.zeros(count, np.float32), np.zeros((count, 2), np.int32)
        return TurnResult(tokens=arrays[0], logprobs=arrays[1], policies=arrays[2], finish="length")


def test_a_turn_has_its_length_and_time_beside_tools_is_counted(tmp_path: Path) -> None:
    engine = ShapedEngine(Written(), {"r": SHAPE}.__getitem__)  # type: ignore[arg-type]

    async def main() -> list[int]:
        lengths = []
        for context in (5, 15, 19):
            wanted = TurnRequest(
                rollout="r",
                tokens=[9] * context,
                max_tokens=100,
                temperature=1.0,
                stop_tokens=frozenset({STOP}),
                seed=0,
            )
            result = await engine.generate(wanted)
            assert (result.tokens[-1], result.finish) == (STOP, "stop")
            lengths.append(len(result.tokens))
        return lengths

    assert trio.run(main) == list(SHAPE.written)
    assert (engine.turns, engine.gaps) == (3, 2)
    assert -1.5 <= engine.gap_s < -1.0  # the tools did not sleep here
    line = json.dumps(asdict(engine.row()))
    (tmp_path / "rows").write_text(f"{line}\n{line[:20]}")
    assert [(row.turns, row.generated) for row in read_rows(tmp_path / "rows")] == [(3, 9)]


def test_tools_sleep_as_long_as_the_rollout_says_and_the_last_turn_is_done() -> None:
    problem = ShapedTasks(3, 1, 8).problem(0, 0)
    sample = next(number for number in range(8) if len(shape_in(problem, number).written) > 1)
    shape = shape_in(problem, sample)

    async def main() -> None:
        for turn in range(1, len(shape.written) + 1):
            began = trio.current_time()
            asked = ObserveTurn(f"g/{sample}/0", problem, Transcript(("",) * turn), b"", 0)
            answered = await answer(asked)
            last = turn == len(shape.written)
            assert answered.done is last
            assert trio.current_time() - began == pytest.approx(0.0 if last else shape.tool_s[turn - 1])
            tokens = LengthsFormat({}).message_tokens([(each.role, each.content) for each in answered.messages])
            assert len(tokens) == (0 if last else shape.tool_tokens[turn - 1])

    trio.run(main, clock=MockClock(autojump_threshold=0))


IDLE = Row(
    at=0.0,
    running=0,
    waiting=0,
    kv_used=0,
    kv_total=4096,
    preempted=0,
    generated=0,
    prefilled=0,
    cached=0,
    busy_s=0.0,
    turns=0,
    gaps=0,
    gap_s=0.0,
)
STEP_S, ROW_S, CONTEXT_S, PREFILL_S = 0.010, 0.001, 2e-6, 5e-4


def record(running: int, kv_used: int, steps: int, *, preempted: int = 0, busy: float = 1.0) -> list[Row]:
    """Three seconds of an engine with the speeds above; ``busy`` makes it slower."""
    made = [replace(IDLE, running=running, kv_used=kv_used)]
    for second in range(1, 4):
        last, prefilled = made[-1], 40 * second
        seconds = steps * (STEP_S + ROW_S * running + CONTEXT_S * kv_used) + PREFILL_S * prefilled
        made.append(
            replace(
                last,
                at=float(second),
                generated=last.generated + steps * running,
                prefilled=last.prefilled + prefilled,
                busy_s=last.busy_s + busy * seconds,
                preempted=last.preempted + preempted,
                turns=last.turns + 4,
                cached=last.cached + 60 * second,
                gaps=last.gaps + 2,
                gap_s=last.gap_s + 0.02,
            )
        )
    return made


RECORDS = [record(running, kv, 20 + kv // 100) for running in (1, 4, 9, 20) for kv in (100, 1500, 3000)]


def test_an_engine_is_fitted_to_what_it_did() -> None:
    model, gap_s = (found := fitted(RECORDS, max_rollouts=32, page=16)).model, found.gap_s
    assert gap_s == pytest.approx(0.01)
    seconds = (model.step_s, model.row_s, model.context_s, model.prefill_s)
    assert seconds == pytest.approx((STEP_S, ROW_S, CONTEXT_S, PREFILL_S), rel=1e-6)
    assert (model.kv_total, model.max_rollouts, model.page) == (4096, 32, 16)


def test_idle_windows_and_preemptions_tell_nothing() -> None:
    idle = [replace(row, running=0) for row in record(5, 100, 30, busy=9.0)]
    strange = [idle, record(5, 100, 30, preempted=1, busy=9.0)]
    both, alone = (fitted(each, max_rollouts=32, page=16).model for each in ([*RECORDS, *strange], RECORDS))
    assert both == alone
    with pytest.raises(TooFewRowsError, match="0 seconds"):
        fitted(strange, max_rollouts=32, page=16)


def test_the_simulator_has_the_same_rollouts_and_policies_differ() -> None:
    fit = fitted(RECORDS, max_rollouts=32, page=16)
    drawn = shapes(0, 6, 16)
    trace = trace_of(drawn, ["a", "b"], fit, 0)
    assert trace.written() == sum(sum(shape.written) for group in drawn for shape in group)
    assert trace.groups[0][0].tool_s == tuple(each + fit.gap_s for each in drawn[0][0].tool_s)
    found = {policy: simulate(policy, trace) for policy in ("static", "worst_case", "least_requests", "predictive")}
    assert found["worst_case"] == simulate("worst_case", trace)
    assert found["worst_case"].preempted_share == 0 < found["least_requests"].preempted_share
    assert found["worst_case"].makespan_s > found["least_requests"].makespan_s
    at_once = simulate("static", replace(trace, opens_late=False)).makespan_s
    assert found["static"].makespan_s > 1.2 * at_once, "a group is opened in each turn of all, as in a run"


def test_figures_are_means_with_intervals_and_the_worst_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    def measured(policy: str, seed: int, makespan_s: float, preempted: int) -> Measured:
        return Measured(policy, seed, makespan_s, 0, [record(4, 100, 20, preempted=preempted)])

    found = [measured("a", 0, 10.0, 0), measured("b", 0, 20.0, 1), measured("a", 1, 14.0, 0), measured("b", 1, 20.0, 3)]
    said = [Simulated(12.0, 0.0, 0.5, 0), Simulated(16.0, 0.1, 0.5, 0), Simulated(12.6, 0.0, 0.5, 0)]
    figures = report(["a", "b"], found, [*said, Simulated(16.0, 0.3, 0.5, 0)])
    assert figures["real.a.makespan_s"] == 12.0
    low, high = figures["real.a.makespan_s_low"], figures["real.a.makespan_s_high"]
    assert (low, high) == pytest.approx((12 - 12.71 * 2, 12 + 12.71 * 2))
    assert figures["real.a.preempted_share"] == 0
    assert figures["real.b.preempted_share"] == pytest.approx(0.5)  # 3 and 9 of 12 turns
    assert figures["real.a.hit_rate"] == pytest.approx(0.6)
    assert figures["real.a.simulated_over_measured"] == pytest.approx(1.05)
    assert figures["real.simulated_over_measured"] == figures["real.b.simulated_over_measured"] == pytest.approx(0.8)
    printed = capsys.readouterr().out
    assert "1.2" in printed  # the worst seed of a
    assert all(math.isnan(each) for each in interval([1.0]))


def test_each_policy_comes_first_for_some_seed() -> None:
    orders = [in_turn(["a", "b", "c"], seed) for seed in range(4)]
    assert [order[0] for order in orders] == ["a", "b", "c", "a"]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (Options(policies=("fifo",)), "no policy 'fifo'"),
        (Options(policies=()), "--policies"),
        (Options(seeds=0), "--seeds"),
        (Options(kv_tokens=800), "--kv-tokens 800"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: Options, words: str) -> None:
    with pytest.raises(WrongOptions, match=words):
        checked(options)


def test_vllm_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(WrongOptions, match="make test-vllm"):
        checked(Options(engine="vllm"))


@pytest.mark.slow
def test_a_short_measurement_ends_with_its_figures(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("policies", ["--short", "--policies", "worst_case", "least_requests"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    for policy in ("worst_case", "least_requests"):
        assert figures[f"real.{policy}.makespan_s"] > 0
        assert 0 < figures[f"real.{policy}.hit_rate"] < 1
    assert 0.2 < figures["real.simulated_over_measured"] < 5
