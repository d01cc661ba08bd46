"""The rollout generator among stand-ins, in virtual time: the agent loop, tool failures, what is counted, loads."""

from __future__ import annotations

import json
import shutil
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from actors.engines.base import EngineError, EngineFigures, EngineRefusedError
from actors.rollout_generator import RolloutGenerator
from actors.weights.files import model_directory
from agent_rl.config.topology import EnvironmentEntry
from agent_rl.environments.base import TaskError
from agent_rl.environments.python_tools import notebook
from agent_rl.figures import numbers
from agent_rl.groups.statistics import RolloutFigures, rollout_means
from agent_rl.messages import EngineLoad, Judgement, PolicyVersion, Sampling, ToolCall, ToolResult, Trajectory
from agent_rl_contract import builders
from agent_rl_contract.generator_bench import GeneratorBench
from agent_rl_contract.scripted import ScriptedEngine
from agent_rl_contract.stage import Stage, running, stand_ins
from examples.quickstart.arithmetic import Arithmetic
from tests.actors.ends import bench_of
from tests.actors.topologies import micro
from tests.transport.contract import Cut, FaultyNetwork
from transport import Limits, LinkEvent, PeerBack, PeerGone
from transport.memory import MemoryNetwork

CALL = (
    '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(2+2)", "input": ""}}</tool_call>'
)
ANSWER = "<answer>\\boxed{4}</answer>"
GENERATOR = "rollout_generator.0"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generator")
    return model_directory(micro(folder), folder)


def result(call: ToolCall, outcome: Any = "success", stdout: str = "4\n", stderr: str = "") -> ToolResult:
    return ToolResult(call.call, outcome, stdout, stderr, "", 0.0, 0.001)


def scripted(
    model: Path, script: Any, engine: type[ScriptedEngine] = ScriptedEngine, *, longest: int = 10_000, **options: Any
) -> type[RolloutGenerator]:
    """A generator whose engine writes what the script says."""

    class Scripted(RolloutGenerator):
        def _make_engine(self, directory: Path, settings: Any) -> Any:
            return engine(model, initial_policy=PolicyVersion(0, 0), script=script, longest=longest, **options)

    return Scripted


@asynccontextmanager
async def generator(
    folder: Path,
    model: Path,
    script: Any,
    *,
    reply: Any = result,
    longest: int = 10_000,
    tasks: Any = None,
    template: str | None = None,
    **settings: Any,
):
    """A generator with a scripted engine, a policy published, and an executor that answers with ``reply``.

    ``longest`` is what the engine allows a sequence; ``tasks`` replaces the topology's, ``template`` the tokenizer's.
    """
    topology = micro(folder, rollout_generator=settings)
    if tasks is not None:
        topology = topology.model_copy(update={"environments": (tasks,)})
    chosen = topology.model.model_copy(update={"chat_template": template})
    topology = topology.model_copy(update={"model": chosen})
    (folder / "model").symlink_to(model)
    async with stand_ins(topology, "rollout_generator", concurrency={"tool_executor": 8}) as stage:
        stage["tool_executor"].reply = reply
        stage["learner"].announce("policy", GENERATOR).set(builders.published(3))
        async with running(
            scripted(model, script, longest=longest), topology, "rollout_generator", folder, stage
        ) as actor:
            yield stage, actor


async def ask(stage: Stage, *, acks: list[str] | None = None, **changes: Any) -> None:
    request = builders.request(**{"sampling": Sampling(1.0, 120, 3), **changes})
    seen = acks if acks is not None else []
    await stage["kv_scheduler"].push("requests", GENERATOR).send(request, on_ack=lambda: seen.append(request.rollout))


async def rollout(stage: Stage, **changes: Any) -> Trajectory:
    """The trajectory that comes of a request."""
    await ask(stage, **changes)
    made: Trajectory = await stage["roc_filter"].receive(Trajectory)
    return made


def two_turns(number: int, _: Any) -> str:
    return CALL if number == 1 else ANSWER


async def test_the_ends_of_generation_config_end_turns_too(tmp_path: Path, model: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(model, own)
    (own / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    async with generator(tmp_path, own, two_turns) as (stage, actor):
        assert (await rollout(stage)).status == "finished"
        assert actor._engine.requests[0].stop_tokens == {actor._chat.end_of_turn, 2, 7}


NOTEBOOK = '<tool_call>{"name": "jupyter_code", "arguments": {"code": "CODE"}}</tool_call>'


async def test_calls_of_a_tool_with_state_are_made_in_order_with_the_state_that_the_last_one_left(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Arithmetic, "tools", (notebook,))

    turns = [*("".join(NOTEBOOK.replace("CODE", code) for code in codes) for codes in ("ab", "c")), ANSWER]

    def reply(call: ToolCall) -> ToolResult:
        code = call.arguments.get("code", "").encode()
        if code == b"b":  # it leaves the state as it was
            return ToolResult(call.call, "timeout", "4", "", "", 0.0, 0.001)
        return ToolResult(call.call, "success", "4", "", "", 0.0, 0.001, call.state + code)

    async with generator(tmp_path, model, lambda number, _: turns[number - 1], reply=reply) as (stage, _):
        made = await rollout(stage, sampling=Sampling(1.0, 400, 4))
        calls = stage["tool_executor"].log[:3]
        assert [(call.arguments["code"], call.state) for call in calls] == [("a", b""), ("b", b"a"), ("c", b"a")]
        assert len({call.call for call in calls}) == 3
        while len(stage["tool_executor"].log) < 4:
            await stage["tool_executor"].receive(ToolCall)
        last = stage["tool_executor"].log[3]
        assert (last.rollout, last.ends) == (made.rollout, True)
        assert [record.outcome for record in made.transcript.calls] == ["success", "timeout", "success"]


async def test_several_calls_that_no_executor_runs_fail_the_rollout(tmp_path: Path, model: Path) -> None:
    reply = partial(result, outcome="unavailable")
    async with generator(tmp_path, model, lambda *_: CALL * 3, reply=reply) as (stage, _):
        made = await rollout(stage, sampling=Sampling(1.0, 500, 3))
        assert (made.status, made.reason[:18]) == ("failed", "tools unavailable:")


async def test_a_storm_of_calls_is_bounded_and_other_rollouts_take_their_turns(tmp_path: Path, model: Path) -> None:
    def script(number: int, request: Any) -> str:
        return (CALL * 40 if request.rollout.startswith("s0-g000000") else CALL) if number == 1 else ANSWER

    most = dict.fromkeys(("at_once", "waiting"), 0)
    under_way: list[str] = []

    async def reply(call: ToolCall) -> ToolResult:
        under_way.append(call.rollout)
        most["at_once"] = max(most["at_once"], len(under_way))
        most["waiting"] = max(most["waiting"], actor._tools.waiting)
        await trio.sleep(1)
        under_way.remove(call.rollout)
        return result(call)

    bounds = {"tool_calls_outstanding": 2, "tool_calls_at_once": 6}
    async with generator(tmp_path, model, script, reply=reply, **bounds) as (stage, actor):
        await ask(stage, sampling=Sampling(1.0, 9000, 3))
        await stage["tool_executor"].receive(ToolCall)
        for number in (1, 2, 3):
            await ask(stage, rollout=f"s0-g{number:06d}/0/0", group=f"s0-g{number:06d}")
        for _ in range(4):
            await stage["roc_filter"].receive(Trajectory)
        served = [call.rollout for call in stage["tool_executor"].log]
        calm = [place for place, session in enumerate(served) if not session.startswith("s0-g000000")]
        assert (len(served), len(calm)) == (43, 3)
        assert max(calm) < 20
        assert most["at_once"] == 2
        assert most["waiting"] <= 4 + 3  # four of the storm's, and one of each other rollout


# Faults in flight: what becomes of the rollout, and where it is counted -----------------------------------------------


def figures(actor: Any) -> dict[str, float]:
    """The faults among the generator's live figures."""
    names = ("rollouts_", "calls_", "responses_", "prompts_")
    found = {name: value for name, value in numbers(actor.status()[1]).items() if name.startswith(names) and value}
    return {name: value for name, value in found.items() if not name.endswith("_per_s")}


def step_shares(made: Trajectory) -> dict[str, float]:
    """What of the rollout enters a step's metrics, without what is 0."""
    names = ("malformed", "unknown", "cut", "truncated", "tool_error_share", "rollouts_failed", "prompts")
    means = rollout_means([RolloutFigures.of(made, builders.opened()).judged(Judgement(1.0, success=True))])
    return {name: value for name, value in numbers(means).items() if name.startswith(names) and value}


async def test_of_a_malformed_batch_the_good_calls_run_and_each_has_its_answer(tmp_path: Path, model: Path) -> None:
    bad = ["<tool_call>{not json}</tool_call>", "<tool_call>[1, 2]</tool_call>", '<tool_call>{"name": "a"}</tool_call>']
    good, unknown = CALL.replace("2+2", "3+3"), CALL.replace("python_code_with_standard_io", "search")
    batch = bad[0] + CALL + bad[1] + bad[2] + good + unknown + '<tool_call>{"name": "python_'

    def reply(call: ToolCall) -> ToolResult:
        if call.tool == "search":
            return result(call, "unknown_tool", "", "there is no tool 'search'")
        return result(call, stdout=call.arguments["code"])

    script = [batch, ANSWER]
    async with generator(tmp_path, model, lambda number, _: script[number - 1], reply=reply) as (stage, actor):
        made = await rollout(stage, sampling=Sampling(1.0, 1800, 3))
        outcomes = [call.outcome for call in made.transcript.calls]
        malformed, sound = "malformed", "success"
        assert outcomes == [malformed, sound, malformed, malformed, sound, "unknown_tool", malformed]
        asked = sorted(call.arguments["code"] for call in stage["tool_executor"].log)
        assert asked == ["print(2+2)", "print(2+2)", "print(3+3)"], "what is no call goes to no executor"
        text = actor._chat.decode(made.unpack().tokens[made.unpack().loss_mask == 0].tolist())
        answers = [part.split("</tool_response>")[0] for part in text.split("<tool_response>")[1:]]
        assert (answers[1], answers[4]) == ("print(2+2)", "print(3+3)")
        assert all(answers[index].startswith("Error: ") for index in (0, 2, 3, 6))
        told = ("not valid JSON", "there is no tool 'search'", "the tool call is not closed")
        assert [said in answers[index] for said, index in zip(told, (0, 5, 6), strict=True)] == [True] * 3
        assert figures(actor) == {"calls_malformed": 4, "calls_unknown_tool": 1}
        assert step_shares(made) == {
            "malformed_call_share": 4 / 7,
            "unknown_tool_share": 1 / 7,
            "tool_error_share": 5 / 7,
            "tool_error_share_correct": 5 / 7,
        }


async def test_a_result_too_long_is_cut_in_the_middle_and_counts_with_what_the_model_sees(
    tmp_path: Path, model: Path
) -> None:
    def reply(call: ToolCall) -> ToolResult:
        return result(call, stdout="a" * 50_000 + "b" * 50_000)

    async with generator(tmp_path, model, two_turns, reply=reply, tool_response_chars=200) as (stage, actor):
        made = await rollout(stage, sampling=Sampling(1.0, 500, 3))
        assert made.status == "finished"
        response = made.unpack().tokens[made.unpack().loss_mask == 0].tolist()
        shown = actor._chat.decode(response).split("<tool_response>")[1].split("</tool_response>")[0]
        assert len(shown) == 200
        assert "\n... [99800 or more characters cut] ...\n" in shown
        assert (shown[0], shown[-1]) == ("a", "b")
        first, second = actor._engine.requests
        written = second.tokens[len(first.tokens) :]
        assert first.max_tokens - second.max_tokens == len(written)  # the budget: to the token
        assert written[-len(response) :] == response
        assert made.transcript.calls[0].cut
        assert figures(actor) == {"responses_cut": 1}
        assert step_shares(made) == {"cut_response_share": 1.0}


LONG, NO_ROOM = "y" * 121, "the prompt of problem p0 has {prompt} of the {longest} tokens a sequence may have"
NO_EXECUTOR = "tools unavailable: s0-g000000/0/0/1.0 had no result in 2 attempts; the last: no executor ran it"
TRUNCATED, FAILED = ({"rollouts_truncated": 1}, {"truncated_share": 1.0}), {"rollouts_failed": 1.0}


@pytest.mark.parametrize(
    ("script", "answer", "longest", "status", "reason", "counted"),
    [
        (LONG, {}, 10_000, "truncated", "", TRUNCATED),
        (LONG, {}, 40, "truncated", f"{NO_ROOM}: it leaves {{left}} of 120 response tokens", TRUNCATED),
        (CALL, {"stdout": "x" * 300}, 10_000, "truncated", "", TRUNCATED),
        (CALL, {}, 16, "prompt_too_long", NO_ROOM, ({"prompts_too_long": 1}, {"prompts_too_long": 1.0})),
        (CALL, {"outcome": "unavailable"}, 10_000, "failed", NO_EXECUTOR, ({"rollouts_failed": 1, "calls_failed": 2}, FAILED)),
        (EngineError("no room"), {}, 10_000, "failed", "no room", ({"rollouts_failed": 1}, FAILED)),
    ],
)  # fmt: skip
async def test_what_ends_a_rollout_is_said_and_counted(
    tmp_path: Path, model: Path, script: Any, answer: Any, longest: int, status: str, reason: str, counted: Any
) -> None:
    given = {"reply": lambda call: result(call, **answer), "longest": longest, "tool_attempts": 2}
    async with generator(tmp_path, model, lambda *_: script, **given) as (stage, actor):
        acks: list[str] = []
        made = await rollout(stage, acks=acks)
        prompt, left = made.prompt_length, min(120, longest - made.prompt_length)
        assert (made.status, made.reason) == (status, reason.format(prompt=prompt, left=left, longest=longest))
        assert [each.max_tokens for each in actor._engine.requests] == [left][: left > 0]
        assert made.unpack().loss_mask.all(), "every token is the model's"
        assert made.transcript.text == ("" if made.turns == 0 else CALL if script == CALL else "y" * left)
        assert len(stage["tool_executor"].log) == {"failed": 2, "truncated": 1}.get(status, 0) * (script == CALL)
        await trio.sleep(5)
        assert acks == ["s0-g000000/0/0"]
        assert (figures(actor), step_shares(made)) == counted


def write_problems(folder: Path, *lengths: int) -> EnvironmentEntry:
    rows = [{"id": f"n{n}", "problem": "x" * length, "answer": "4"} for n, length in enumerate(lengths)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return EnvironmentEntry.model_validate(
        {"class": "maths", "name": "arithmetic", "settings": {"files": ["problems.jsonl"]}}
    )


async def test_problems_in_files_that_cannot_fit_are_named_at_the_start(tmp_path: Path, model: Path) -> None:
    tasks = write_problems(tmp_path, 20, 45, 300)
    with capture_logs() as logs:
        async with generator(tmp_path, model, two_turns, longest=50, tasks=tasks) as (stage, _):
            await rollout(stage)  # the others can be sampled
    (said,) = [log["why"] for log in logs if log["event"] == "groups will be dropped"]
    assert said == "a sequence of 50 tokens has no room for the prompts of 1 of 3 training problems: n2 (303 tokens)"


async def test_when_no_problem_of_a_file_fits_the_run_does_not_start(tmp_path: Path, model: Path) -> None:
    tasks, said = write_problems(tmp_path, 60, 70), "all 2 training problems, n0 .63 tokens."
    with pytest.RaisesGroup(pytest.RaisesExc(TaskError, match=said), flatten_subgroups=True):
        async with generator(tmp_path, model, two_turns, longest=50, tasks=tasks):
            await trio.sleep_forever()


class Dead(ScriptedEngine):
    """Dies before it serves."""

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        raise EngineError("no memory for 9 GiB of KV cache")


@pytest.mark.parametrize(("incarnation", "fault"), [(0, EngineRefusedError), (1, EngineError)])
async def test_an_engine_that_never_started_is_a_mistake_one_that_did_once_is_tried_again(
    tmp_path: Path, model: Path, incarnation: int, fault: type[Exception]
) -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(fault, match="no memory for 9 GiB"), flatten_subgroups=True):
        topology = micro(tmp_path)
        (tmp_path / "model").symlink_to(model)
        async with stand_ins(topology, "rollout_generator") as stage:
            dead = scripted(model, two_turns, Dead)
            async with running(dead, topology, "rollout_generator", tmp_path, stage, incarnation=incarnation):
                await trio.sleep_forever()


# Loads: announced when they have changed, or when a peer that had lost the generator must hear them again ---------------


async def test_a_load_is_announced_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"kv_tokens_used": 0, "preempted": 0, "cached_tokens": 0}
    monkeypatch.setattr(
        ScriptedEngine, "figures", property(lambda _: EngineFigures(kv_tokens_total=6400, max_rollouts=8, **now))
    )
    bench = bench_of(GeneratorBench, RolloutGenerator)
    seen: list[list[EngineLoad]] = []
    async with bench.bench(tmp_path) as made:

        async def look(**changes: int) -> None:
            now.update(changes)
            await bench.settled(10)
            seen.append([each for each in made.stage["kv_scheduler"].log if isinstance(each, EngineLoad)])

        await made.ask()
        await made.trajectory()
        await look()
        await look()
        await look(kv_tokens_used=99)
        await look(kv_tokens_used=100, cached_tokens=7)
        await look(preempted=1)
    assert len(seen[0]) >= 1
    assert len(seen[1]) == len(seen[0]), "a load was sent again though nothing had changed"
    assert len(seen[2]) == len(seen[0]), "less than a 64th of the cache is no news"
    assert [(load.kv_tokens_used, load.cached_tokens) for load in seen[3][len(seen[2]) :]] == [(100, 7)]
    assert [load.preempted for load in seen[4][len(seen[3]) :]] == [1]
    assert all(before.news != after.news for before, after in pairwise(seen[4]))


async def test_whoever_had_lost_an_idle_generator_hears_its_load_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scheduler and learner drop the engine of a lost generator, which has nothing new to announce."""
    cut = Cut()
    monkeypatch.setattr("agent_rl_contract.stage.MemoryNetwork", lambda: FaultyNetwork(MemoryNetwork(), cut))
    bench = bench_of(GeneratorBench, RolloutGenerator)
    async with bench.bench(tmp_path) as made:
        peers = [made.stage[role] for role in ("kv_scheduler", "learner")]
        loads: dict[str, EngineLoad] = {}
        events: list[LinkEvent] = []
        for peer in peers:
            peer.node.watch(events.append)
        await bench.settled(10)
        for peer in peers:
            *_, loads[peer.name] = [each for each in peer.log if isinstance(each, EngineLoad)]
        cut.closed = True
        await trio.sleep(2 * Limits().lost_after)
        assert sum(isinstance(event, PeerGone) for event in events) == len(peers)
        for peer in peers:
            peer.forget()
        cut.closed = False
        for peer in peers:
            assert (await peer.receive(EngineLoad)).news == loads[peer.name].news
        assert sum(isinstance(event, PeerBack) for event in events) == len(peers)
