"""The end-to-end benchmark without its peer: what both sides are told, what is read and said of them, and our side,
small.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.cli.main import main
from actors.testing import running, stand_ins
from agent_rl.config.topology import InitialiseModel
from agent_rl.environments.python_tools import PYTHON_TOOL
from agent_rl.learning.tiny import build_tokenizer, initialise_model
from agent_rl.rollout.prompts import ChatFormat
from agent_rl.testing import tool_call
from benchmarks.bench_end_to_end import Measured, Options, read_peer, report, specification
from benchmarks.in_process_tools import InProcessExecutor, Ran, run_python
from benchmarks.peers.trl_grpo import (
    CHAT_TEMPLATE,
    RESPONSE_TEMPLATE,
    InProcess,
    Isolated,
    Rewards,
    Spec,
    python_tool,
    shown,
)
from benchmarks.peers.trl_settings import CANDIDATES, Setting
from tests.actors.topologies import micro
from tests.builders import wanted

CALL = (
    '<tool_call>{"name": "python_code_with_standard_io", "arguments": {"code": "print(1+2)", "input": ""}}</tool_call>'
)


def steps(*seconds: float, trained: float = 8.0, success: float = 0.5) -> list[dict[str, Any]]:
    return [{"kind": "step", "wall": 100 + s, "rollouts": 8, "trained": trained, "success": success} for s in seconds]


def measured(*seconds: float, trained: float = 8.0) -> Measured:
    return Measured.read(95.0, steps(*seconds, trained=trained), 30.0)


def test_rates_begin_with_the_first_steps_end_and_from_start_where_training_began() -> None:
    one = measured(5.0, 7.0, 9.0, trained=6.0)
    assert one.trained_per_s == 12 / 4
    assert one.sampled_per_s == 16 / 4
    assert one.trained_per_s_from_start == 18 / 14
    assert one.late == (8.0, 16.0)


def test_a_single_step_is_no_measurement() -> None:
    with pytest.raises(ValueError, match="two steps"):
        measured(5.0)


def test_ratios_are_taken_within_a_round(capsys: pytest.CaptureFixture[str]) -> None:
    found = {
        ("isolated", "agent_rl"): [measured(0.0, 1.0), measured(0.0, 2.0), measured(0.0, 4.0)],
        ("isolated", "trl"): [measured(0.0, 3.0), measured(0.0, 2.0), measured(0.0, 8.0)],
    }
    report(found)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["over_trl_isolated"] == 2.0
    assert figures["agent_rl_isolated_trained_per_s"] == 4.0
    assert figures["trl_isolated_success"] == 0.5
    assert not any("in_process" in name for name in figures)


def test_what_the_peer_left_is_read(tmp_path: Path) -> None:
    rows = [{"kind": "begin", "wall": 95.0, "threads": 2}, *steps(5.0, 6.0)]
    (tmp_path / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_peer(tmp_path / "rows", 30.0) == measured(5.0, 6.0)


def test_both_sides_are_told_the_same(tmp_path: Path) -> None:
    options = Options(peer="trl", steps=3)
    setting = Setting(config={"cache_implementation": "static"})
    spec = specification(options, "isolated", setting, Path("/m"), tmp_path)
    spec.write(tmp_path / "spec.json")
    assert Spec.read(tmp_path / "spec.json") == spec
    assert (spec.steps, spec.groups, spec.samples, spec.max_tokens, spec.micro_batch) == (3, 16, 16, 100, 256)
    assert spec.config == {"cache_implementation": "static"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--python", "nowhere/python"], "no environment with TRL: there is no nowhere/python"),
        (["--python", "/bin/false"], "the environment of /bin/false lacks TRL or agent_rl"),
        (["--python", "/bin/true", "--steps", "1"], "--steps 1, --tournament-steps 5: name at least 2"),
        (["--python", "/bin/true", "--setting", '{"micro_batch": 48}'], "micro-batches of 48 do not divide the 256"),
        (["--python", "/bin/true", "--setting", "fast"], "--setting fast: neither a candidate ("),
        (["--python", "/bin/true", "--setting", '{"thread": 1}'], "nor a JSON object of a setting's fields ("),
    ],
)
def test_what_is_missing_or_wrong_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "end_to_end", "--peer", "trl", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_the_peers_template_makes_the_same_tokens_as_ours() -> None:
    tokenizer = build_tokenizer()
    ours = ChatFormat(build_tokenizer(), compact=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    problem = {"role": "user", "content": "A shop has 12 eggs."}
    called = {"name": PYTHON_TOOL, "arguments": {"code": "print(1+2)", "input": ""}}
    turn = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": called}]}
    responses = [{"role": "tool", "name": PYTHON_TOOL, "content": text} for text in ("3", "SyntaxError: x")]

    def tokens(messages: list[dict[str, Any]], *, generate: bool) -> list[int]:
        made = tokenizer.apply_chat_template(messages, add_generation_prompt=generate, return_dict=False)
        return list(made)

    prompt, before = tokens([problem], generate=True), tokens([problem, turn], generate=False)
    after = tokens([problem, turn, *responses], generate=True)
    shown, _ = ours.conversation_tokens([problem, {"role": "assistant", "content": CALL}])
    assert before == shown
    assert shown[: len(prompt)] == prompt
    assert after == before + ours.response_tokens(["3", "SyntaxError: x"])


def test_the_peer_reads_calls_and_answers_of_a_turn() -> None:
    tokenizer = build_tokenizer()
    tokenizer.response_template = RESPONSE_TEMPLATE
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
        ("def f(n): return n and f(n - 1)\nprint(f(3))", "", "success", "0\n", "", ""),
    ],
)
def test_code_runs_here_as_the_sandbox_would_tell(
    code: str, stdin: str, outcome: str, stdout: str, stderr: str, value: str
) -> None:
    ran = run_python(code, stdin)
    assert (ran.outcome, ran.stdout, ran.stderr, ran.value) == (outcome, stdout, stderr, value)


def test_the_executor_runs_and_judges_in_its_own_process(tmp_path: Path) -> None:
    topology = micro(tmp_path)
    calls = [{"code": "import os; print(os.getpid())"}, {"code": 1}, {"code": "1 / 0"}]

    async def body() -> None:
        async with stand_ins(topology, "tool_executor") as stage:
            async with running(InProcessExecutor, topology, "tool_executor", tmp_path, stage):
                ask = stage["rollout_generator"].call("tools", "tool_executor.0")
                done = [await ask(tool_call(call, number=str(i))) for i, call in enumerate(calls)]
                other = await ask(tool_call({"code": "1"}, "shell"))
                check = stage["roc_filter"].call("checks", "tool_executor.0")
                verdicts = [await check(wanted("42", answer)) for answer in ("42.0", "41")]
        assert [result.outcome for result in (*done, other)] == ["success", "malformed", "error", "unknown_tool"]
        assert done[0].stdout == f"{os.getpid()}\n"
        assert [verdict.judgement.success for verdict in verdicts] == [True, False]

    trio.run(body)


@pytest.mark.parametrize("kind", [InProcess, Isolated])
def test_the_peers_tool_and_reward_are_ours(kind: type[InProcess | Isolated]) -> None:
    tools = kind()
    try:
        run = python_tool(tools, 4096)
        assert run.__name__ == PYTHON_TOOL
        assert [run(code="print(2+3)"), run(code="print(2+", input="")] == ["5", "SyntaxError: '(' was never closed"]
        rewards = Rewards(tools)
        said = [r"<answer>\boxed{5}</answer>", r"<answer>\boxed{6}</answer>", "5"]
        completions = [[{"role": "assistant", "content": CALL}, {"role": "tool", "content": "5"}] for _ in said]
        for completion, text in zip(completions, said, strict=True):
            completion.append({"role": "assistant", "content": text})
        assert rewards(completions=completions, gold=["5"] * 3, prompts=[]) == [1.0, 0.0, 0.0]
        assert rewards.success == pytest.approx(1 / 3)
    finally:
        if isinstance(tools, Isolated):
            tools.close()


def test_a_long_result_is_cut_as_our_generator_cuts_it() -> None:
    assert "characters cut" in shown(Ran("success", "x" * 5000, "", "", 0.0), 4096)


PEER = """
import json, pathlib, sys
if sys.argv[1] == "-m":
    spec = json.loads(pathlib.Path(sys.argv[3]).read_text())
    if spec["attention"] == "eager":
        sys.exit("no such attention")
    count = spec["groups"] * spec["samples"]
    seconds = 0.5 if spec["threads"] == 1 else 1.0
    rows = [{"kind": "begin", "wall": 99.0}]
    for step in range(spec["steps"]):
        rows.append({"kind": "step", "wall": 100.0 + seconds * step, "rollouts": count, "trained": count, "success": 0.25})
    pathlib.Path(spec["rows"]).write_text("".join(json.dumps(row) + chr(10) for row in rows))
"""


def test_our_side_runs_small_beside_a_stand_in_for_the_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in, model = tmp_path / "python", tmp_path / "model"
    (tmp_path / "peer.py").write_text(PEER)
    # A path with spaces cannot stand behind "#!".
    stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/peer.py" "$@"\n')
    stand_in.chmod(0o700)
    sizes = InitialiseModel(hidden_size=32, layers=1, heads=2, kv_heads=1, head_dim=16, mlp_size=32)
    initialise_model(sizes, model, 0)
    small = [
        "--steps",
        "2",
        "--groups",
        "2",
        "--samples",
        "4",
        "--rounds",
        "1",
        "--max-tokens",
        "20",
    ]
    chosen = ["--tools", "in_process", "--python", str(stand_in), "--model", str(model)]
    assert main(["bench", "end_to_end", "--peer", "trl", *small, *chosen]) == 0
    out = capsys.readouterr().out
    assert "no such attention" in out
    assert "its micro-batches do not divide a step's completions" in out
    assert any(f"TRL's setting: {name}\n" in out for name, each in CANDIDATES.items() if each.threads == 1)
    figures = json.loads(out.splitlines()[-1])
    assert figures["trl_in_process_trained_per_s"] == 16.0
    assert figures["trl_in_process_success"] == 0.25
    assert figures["agent_rl_in_process_sampled_per_s"] > 0
    assert "over_trl_in_process" in figures
    assert "over_trl_isolated" not in figures
