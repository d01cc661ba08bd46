"""Every benchmark at its smallest size: it ends well and prints its figures."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import pytest

from actors.cli.main import main
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from benchmarks import tool_loads
from benchmarks.bench_chaos import CLIENTS
from benchmarks.chaos.accounting import SHARES
from benchmarks.command import call
from benchmarks.peer_trl import CANDIDATES
from tests.actors.sandbox.running import commands, groups_or_skip, require
from tests.machines import skip_without

Figures = dict[str, float]

SIZES = {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp_size": 32}
SMALL = (
    f"model.initialise={{{', '.join(f'{name}={size}' for name, size in SIZES.items())}}}",
    *("algorithm.groups_per_step=2", "algorithm.samples=4", "algorithm.keep=2"),
)


def settings(*each: str) -> tuple[str, ...]:
    return tuple(part for setting in each for part in ("--set", setting))


@dataclass(frozen=True)
class Smallest:
    """The options of a benchmark's smallest size, figures that it prints, and what holds of them."""

    options: Sequence[str]
    names: Sequence[str]
    holds: Callable[[Figures], object] = lambda _: True
    needs: Callable[[], object] = lambda: None
    codes: Sequence[int] = (0,)


def nothing_lost(figures: Figures) -> bool:
    """A run has lost, repeated and left nothing, and trained nothing too late."""
    zero = (figures[f"chaos.{name}"] for name in ("lost", "repeated", "stale", "left_behind"))
    return not any(zero) and figures["chaos.balanced"] == 1


def as_its_twin(figures: Figures) -> bool:
    """The same, and success is that of the twin to the last bit."""
    return nothing_lost(figures) and all(figures[f"chaos.{each}"] == figures[f"chaos.{each}_twin"] for each in SHARES)


CHAOS = ("chaos.faults", "chaos.p95_s", "chaos.p95_heavy_s", "chaos.regenerated_turns_over_in_flight")
FEW_FAULTS = ("--kinds", "kill", "stop", "double_kill", "supervisor", "clock_jump")

SMALLEST = {
    "learning": Smallest(
        ("--seeds", "1", *settings(*SMALL, "stages.0.steps=20", "stages.1.problems=4", "stages.2.steps=2")),
        ("success_after_greedy_median", "minutes_median", "minutes_rl_median"),
        lambda figures: (figures["seeds"], figures["overlap"]) == (1, 0),
    ),
    "roc": Smallest(
        (
            *("--seeds", "1", "--modes", "none", "paper", "--sft-steps", "3", "--problems", "2", "--steps", "2"),
            *settings(*SMALL),
        ),
        ("seeds", "roc.error_share", "no_roc.error_share", "roc.success", "no_roc.response_tokens"),
    ),
    "limits": Smallest(
        ("--quick", "--rounds", "1"),
        ("update_share_of_matmul", "prefill_share", "decode_16_share", "update_tokens_per_s_beside_over_alone"),
        lambda figures: all(0 < figures[name] < 1 for name in ("update_share_of_matmul", "prefill_share")),
    ),
    "gateway": Smallest(
        ("--quick",),
        ("gateway_p50_ms", "gateway_p99_ms", "gateway_over_native", "gateway_connection_kib"),
        lambda figures: (
            min(figures["gateway_over_native_low"], figures["gateway_over_native_streamed_low"]) > 0
            and figures["gateway_connections"] == 128
        ),
    ),
    "throughput": Smallest(
        (
            *("quickstart", "--seconds", "3"),
            *settings(*SMALL, "stages.0.steps=3", "stages.1.problems=1", "stages.2.steps=4000"),
        ),
        ("steps_per_s", "limited_by", "busy_learner.0", "cpu_roc_filter.0"),
        lambda figures: figures["generated_tokens_per_s"] > figures["rollouts_per_s"] > 0,
    ),
    "overlap": Smallest(
        (
            *("--rounds", "1", "--steps", "12", "--sft-steps", "3"),
            *settings(*SMALL[1:], 'environments=[{class="benchmarks.passed.parity:Parity"}]'),
        ),
        ("async_over_sync", "async_over_sync_slow_tools_share_of_bound", "learner_idle_share", "success_sync"),
        lambda figures: figures["cpu_seconds_per_step_slow_tools_sync"] > 0,
    ),
    "serve_tools": Smallest(
        ("--rounds", "1", "--passes", "1", "--clients", "2", "--interpreters", "1"),
        ("serve_tools_calls_per_s_core", "serve_tools_p50_ms", "serve_tools_p99_ms", "serve_tools_calls_per_cpu_s"),
    ),
    "rollout": Smallest(
        ("--quick",),
        ("engine_ratio_to_generate", "engine_tokens_per_s", "generate_tokens_per_s"),
        lambda figures: figures["generator_share_of_engine"] > 0 < figures["agent_loop_share_of_engine"],
    ),
    "learner": Smallest(
        ("--quick",),
        ("learner_over_best_hf_last_small", "best_hf_small", "hf_tokens_per_s_small"),
        lambda figures: (
            figures["learner_over_best_hf_small_low"]
            <= figures["learner_over_best_hf_small"]
            <= figures["learner_over_best_hf_small_high"]
        ),
    ),
    "tools": Smallest(
        (*("--rounds", "1", "--passes", "1", "--interpreters", "1", "--outstanding", "60"),),
        ("share_of_floor", "median_overhead_ms", "linked_over_bare_cpu", "outstanding_rss_mib"),
        lambda figures: (
            figures["outstanding_lost"] == figures["outstanding_duplicated"] == 0 and figures["speedup_over_fresh"] > 1
        ),
    ),
    "hostile": Smallest(
        ("--quick",),
        ("attacks_tried", "attacks_broke", "neighbour_p95_ratio", "neighbour_timeouts", "check_neighbour_p95_ratio"),
        lambda figures: figures["neighbours_harmed"] == figures["checks_harmed"] == 0,
        lambda: require("strong"),
        codes=(0, 1),  # a busy machine makes neighbours wait
    ),
    "hostile: many processes and sessions": Smallest(
        ("--only", "spin-32", "sessions", "threads", "--seconds", "1.5"),
        ("worst_class",),
        lambda figures: figures["neighbour_timeouts"] == figures["neighbours_harmed"] == 0,
        lambda: (require("strong"), groups_or_skip("cpu")),
        codes=(0, 1),
    ),
    "transport": Smallest(
        ("--quick",),
        ("push_ratio_1m", "push_ratio_8k", "push_per_s_1k", "push_p99_ms", "calls_per_s"),
        lambda figures: min(figures.values()) > 0 and figures["push_ratio_8k"] < 1.5,  # bare pyzmq does less
    ),
    "weights": Smallest(
        ("--hosts", "1", "3", "--mbyte", "4", "--mbit", "100"),
        ("weights_s_1", "weights_3_over_1", "weights_cpu_3_over_1"),
        lambda figures: figures["weights_sent_3"] <= 2,  # hosts pass parts on
        lambda: skip_without("tc"),
    ),
    "chaos: every kind": Smallest(
        ("--scripted", "--faults", "10", "--seed", "95"),
        CHAOS,
        lambda figures: (
            nothing_lost(figures)
            and figures["chaos.faults"] == 10
            and all(  # whoever keeps completed turns lives
                figures.get(f"chaos.regenerated_turns_over_in_flight_{kind}", 0.0) <= 1.0
                for kind in ("kill", "stop", "clock_jump")
            )
        ),
    ),
    "chaos: beside a twin": Smallest(
        ("--scripted", "--faults", "20", "--seed", "2", "--twins", "1"), CHAOS, as_its_twin
    ),
    "chaos: with a model": Smallest(("--short", "--faults", "5", *FEW_FAULTS), CHAOS, nothing_lost),
    "chaos: over three hosts": Smallest(
        ("--scripted", "--hosts", "--faults", "10", "--seed", "1"), CHAOS, nothing_lost, lambda: skip_without("tc")
    ),
    "chaos: programs of others": Smallest(
        ("--agent", "--faults", "6", "--seed", "3", "--kinds", "kill", "double_kill"),
        (*CHAOS, "harness.kills", "harness.left_behind"),
        lambda figures: nothing_lost(figures) and figures["harness.lost"] == 0 and figures["harness.rollouts"] >= 240,
        lambda: (require("strong"), None if CLIENTS.is_file() else pytest.skip("make .venv-clients/installed")),
    ),
    "chaos: each process once": Smallest(
        ("--each-once",),
        CHAOS,
        nothing_lost,
        codes=(0, 1),  # one pair of runs does not tell how much success differs without faults
    ),
}
"""By name, which begins with the subject."""


def test_each_is_a_benchmark_that_is_there():
    assert [name for name in SMALLEST if not find_spec(f"benchmarks.bench_{name.partition(':')[0]}")] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALLEST)
def test_the_smallest_size_of_each_benchmark_has_its_figures(name, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(tool_loads, "SAMPLE", 20)
    smallest, subject = SMALLEST[name], name.partition(":")[0]
    smallest.needs()
    out = ("--out", str(tmp_path)) if subject == "roc" else ()
    code = call(subject, [*smallest.options, *out])
    printed = capfd.readouterr().out
    assert code in smallest.codes, printed
    figures = json.loads(printed.splitlines()[-1])
    assert figures.keys() >= set(smallest.names)
    assert all(value is None or isinstance(value, str) or math.isfinite(value) for value in figures.values())
    assert smallest.holds(figures), figures


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("learning --seeds 1 --set stages.0.steps=many", 1, "agent-rl bench learning: the run ended with 2\n"),
        ("throughput quickstart --stage afterr", 2, "no stage to measure among format, before, rl, after"),
        ("throughput quickstart --set run.seed=x", 2, "run.seed"),
        ("throughput doors --stage afterr", 2, "no stage to measure among"),  # doors.py is beside it
        ("chaos --kinds floods", 2, "--kinds: no fault is named floods; there are kill, double_kill, "),
        ("end_to_end --peer trl --python nowhere/python", 2, "no environment with TRL: there is no nowhere/python"),
        ("end_to_end --peer trl --python /bin/false", 2, "the environment of /bin/false lacks TRL or agent_rl"),
        ("end_to_end --peer trl --python /bin/true --steps 1", 2, "--steps 1, --tournament-steps 5: name at least 2"),
        ('end_to_end --peer trl --python /bin/true --setting {"micro_batch":48}', 2, "of 48 do not divide the 256"),
        ("end_to_end --peer trl --python /bin/true --setting fast", 2, "--setting fast: neither a candidate ("),
        ('end_to_end --peer trl --python /bin/true --setting {"thread":1}', 2, "nor a JSON object of a setting's"),
    ],
)
def test_wrong_options_are_told_with_the_remedy(arguments, code, said, capsys):
    assert main(["bench", *arguments.split(" ")]) == code
    assert said in capsys.readouterr().err


PEER = """
import json, pathlib, sys
if sys.argv[1] == "-m":
    spec = json.loads(pathlib.Path(sys.argv[3]).read_text())
    if spec["setting"]["attention"] == "eager":
        sys.exit("no such attention")
    count = spec["groups"] * spec["samples"]
    seconds = 0.5 if spec["setting"]["threads"] == 1 else 1.0
    rows = [{"kind": "begin", "wall": 99.0}]
    for step in range(spec["steps"]):
        row = {"kind": "step", "wall": 100.0 + seconds * step, "rollouts": count, "trained": count}
        rows.append({**row, "signal": count / 2, "success": 0.25})
    pathlib.Path(spec["rows"]).write_text("".join(json.dumps(row) + chr(10) for row in rows))
"""


@pytest.mark.slow
def test_end_to_end_beside_a_stand_in_for_the_peer(tmp_path, capsys):
    stand_in, model = tmp_path / "python", tmp_path / "model"
    (tmp_path / "peer.py").write_text(PEER)
    # A path with spaces cannot stand behind "#!".
    stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/peer.py" "$@"\n')
    stand_in.chmod(0o700)
    initialise_model(InitialiseModel(**SIZES), model, 0)
    sizes = {"steps": "2", "groups": "2", "samples": "4", "rounds": "1", "max-tokens": "20", "tools": "in_process"}
    small = [word for name, size in sizes.items() for word in (f"--{name}", size)]
    assert call("end_to_end", ["--peer", "trl", *small, "--python", str(stand_in), "--model", str(model)]) == 0
    out = capsys.readouterr().out
    assert "no such attention" in out
    assert "its micro-batches do not divide a step's completions" in out
    assert any(f"TRL's setting: {name}\n" in out for name, each in CANDIDATES.items() if each.threads == 1)
    figures = json.loads(out.splitlines()[-1])
    assert figures["trl_in_process_trained_per_s"] == 16.0
    assert figures["trl_in_process_success"] == 0.25
    assert figures["agent_rl_in_process_sampled_per_s"] > 0
    assert figures["trl_in_process_signal_per_s"] == 8.0
    assert "over_trl_in_process" in figures
    assert "over_trl_isolated" not in figures


@pytest.mark.slow
def test_a_benchmark_that_is_told_to_end_leaves_nothing_running(tmp_path):
    command = [sys.executable, "-m", "actors.cli", "bench", "learning", "quickstart", "--seeds", "1"]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        deadline = time.monotonic() + 60
        while not commands(bytes(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert commands(bytes(tmp_path))
        process.terminate()
        assert process.wait(60) == 130
    assert commands(bytes(tmp_path)) == []
