"""`agent-rl run` for real: five processes, sockets, an engine, a sandbox, training; then nothing left behind."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from actors.roc_filter.replay import decode_stored
from agent_rl.config.addresses import runtime_directory
from agent_rl.config.load import load_topology
from tests.actors.sandbox.running import commands
from tests.agent_rl.records.journals import STATES
from tests.end_to_end.processes import CALLS_TOOLS, SECONDS, Run, Said, port_blocks, processes_of, rows, wait_for
from tests.end_to_end.topologies import write_half_right, write_micro, write_two_hosts
from tests.event_files import scalars

ROOT = Path(__file__).parents[2]
FAILING = """
class Failing:
    def __init__(self, *, directory, run, identity):
        raise RuntimeError("no such server")
"""


@pytest.mark.slow
def test_interrupted_a_run_drains_and_the_next_one_ends_with_a_balanced_journal_and_a_model_that_loads(tmp_path):
    folder = tmp_path / "a b ключ"  # weights travel by URI: a name that needs quoting must arrive as what it is
    folder.mkdir()
    run = Run(*write_micro(folder, steps=40))
    said = run.start().until(3).interrupt()
    assert "continue with: agent-rl run" in said.all
    assert "Not finished: the run stands in stage 3 of 4" in run.text("report.html")
    done = run.trained
    assert done < 40
    run.balanced()
    assert run.processes == []
    check_nothing_left(run)
    with run.journal() as journal:
        trained_before = {group for step in journal.steps() if step.trained for group in step.groups}

    fewer = f"stages.2.steps={done + 2}"
    summary = run.finished(run.to_end(fewer), steps=done + 2)
    with run.journal() as journal:
        assert journal.fact("epoch") == "2"
    assert trained_before <= set(run.trained_once())
    check_nothing_left(run)
    check_logs(run.directory, "kv_scheduler", "rollout_generator", "tool_executor", "roc_filter", "learner")

    from transformers import AutoModelForCausalLM, AutoTokenizer

    newest = max((run.directory / "checkpoints").iterdir())
    model = AutoModelForCausalLM.from_pretrained(newest)
    tokens = AutoTokenizer.from_pretrained(newest)("How many eggs?", return_tensors="pt")
    assert model(**tokens).logits.shape[-1] == model.config.vocab_size

    repeated = run.finished(run.to_end(fewer), steps=done + 2)  # nothing is left to do: the same summary, no step more
    assert repeated | {"minutes": summary["minutes"]} == summary  # the time of this start counts


def check_nothing_left(run: Run) -> None:
    """Neither socket files nor published weights are left."""
    assert not runtime_directory(load_topology(run.path)).exists()
    assert not (run.directory / "weights").exists()


def check_logs(directory: Path, *roles: str) -> None:
    """Each of these actors has a log, with the common fields and without an error."""
    for role in roles:
        logged = rows(directory / "logs" / f"{role}.0.jsonl")
        assert {"timestamp", "level", "event", "actor"} <= logged[0].keys()
        assert [row for row in logged if row["level"] == "error"] == []


@pytest.mark.slow
def test_hosts_that_share_no_disk_train_together_and_one_tracker_that_fails_disturbs_nothing(tmp_path):
    run = Run(*write_two_hosts(tmp_path, port_blocks(2)))
    (tmp_path / "my_tracker.py").write_text(FAILING)
    settings = ("actors.rollout_generator.links.weights=learner", 'run.trackers=["tensorboard", "my_tracker:Failing"]')
    other = Run(run.path, tmp_path / "elsewhere")
    run.start(*settings, host="a").start(*settings, f"run.directory={other.directory}", host="b")
    said, _ = run.finish(host="a"), run.finish(host="b")
    run.finished(said, steps=3)
    taken_up = other.logged("rollout_generator.0", "policy taken up")
    assert [row["version"] for row in taken_up][-1] == 4
    assert all(row["fetched_bytes"] > 0 for row in taken_up)
    assert not (other.directory / "weights").exists()
    assert said.out.count("tracker 'my_tracker:Failing' has stopped: RuntimeError: no such server") == 1
    check_tracked(run)
    check_logs(run.directory, "kv_scheduler", "roc_filter", "learner")
    check_logs(other.directory, "rollout_generator", "tool_executor")


def check_tracked(run: Run) -> None:
    """TensorBoard's files hold the figures of every step, evaluation and supervised stage of metrics.jsonl."""
    kept = scalars(run.directory)
    supervised, steps, (before, after) = run.told("stage")[0], run.told("step"), run.told("evaluation")
    assert kept["supervised/sft/loss"][-1] == (3, pytest.approx(supervised["loss"]))
    for name in ("reward", "success", "train_seconds"):
        assert kept[f"train/{name}"] == [(row["version"], pytest.approx(row[name])) for row in steps]
    for row, stage in ((before, "before"), (after, "after")):
        name = f"success_{stage}_greedy"
        assert kept[f"evaluation/{name}"] == [(row["version"], pytest.approx(row[name]))]


@pytest.mark.slow  # tests/actors/test_learner_safety.py has the learner that leaves the stage for the evaluation
def test_past_its_wall_clock_limit_a_run_trains_no_more_but_still_evaluates(tmp_path):
    run = Run(*write_micro(tmp_path))
    summary = run.to_end("run.max_minutes=0.0001").summary
    assert summary["steps"] == 0
    assert "success_after_greedy" in summary
    run.balanced()


@pytest.mark.slow
def test_synchronous_mode_never_trains_on_an_older_policy(tmp_path):
    run = Run(*write_micro(tmp_path))
    summary = run.finished(run.to_end("run.mode=synchronous"), steps=3)
    assert not summary["max_staleness"]
    assert all(not row.get("staleness_max") for row in run.told("step"))  # one without a group that trained has none


@pytest.mark.slow
def test_the_quickstart_learns_to_use_its_tool(tmp_path):
    command = [sys.executable, "-m", "actors.cli", "run", "examples/quickstart/quickstart.toml"]
    command += ["--set", f"run.directory={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=True)
    summary = json.loads(done.stdout.strip().splitlines()[-1])
    assert summary["success_before_sampled"] <= 0.3
    assert summary["success_before_greedy"] <= 0.3
    assert summary["success_after_sampled"] >= 0.8
    assert summary["success_after_greedy"] >= 0.9
    assert summary["groups_opened"] == summary["groups_trained"] + summary["groups_dropped"]
    assert summary["max_staleness"] <= 1


@pytest.mark.slow
def test_a_closed_terminal_as_at_the_end_of_an_ssh_session_loses_nothing(tmp_path):
    run = Run(*write_micro(tmp_path, steps=40))
    process, terminal = pty.fork()
    if process == 0:  # it leads the session of this terminal, and gets SIGHUP when the other end closes
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, which ignores it
        os.execv(sys.executable, [sys.executable, "-m", "actors.cli", "run", str(run.path)])
    os.set_blocking(terminal, False)

    def trained() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(terminal, 1 << 16)  # a terminal that nobody reads fills up
        return run.trained >= 2

    wait_for(trained, "two steps")
    os.close(terminal)
    ended = os.pidfd_open(process)
    wait_for(lambda: bool(select.select([ended], [], [], 0)[0]), f"the run to end within {SECONDS} s")
    os.close(ended)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert run.processes == []
    run.balanced()
    assert (run.directory / "report.html").exists()
    assert 2 <= run.trained < 40


@pytest.mark.slow
def test_the_page_that_a_run_offers_ends_with_it_even_when_the_run_is_killed(tmp_path, temporary):
    path, directory = write_half_right(tmp_path, steps=500, generator=CALLS_TOOLS)
    command = [sys.executable, "-m", "actors.cli", "run", str(path), "--view"]
    environment = os.environ | {"TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        address = next(line for line in process.stdout if "look at it in a browser" in line).split()[-1]
        assert commands(b"--descriptor", bytes(directory)) == []
        with urllib.request.urlopen(address, timeout=SECONDS) as page:
            assert "connect-src 'self'" in page.read().decode()
        assert len(commands(b"--descriptor", bytes(directory))) == 1
        process.kill()
        process.communicate()
    wait_for(lambda: commands(b"--descriptor", bytes(directory)) == [], "the page to end")


def run_example(name: str, directory: Path, *settings: str) -> tuple[Run, Said]:
    """Run an example of three steps, whose model answers nothing right, to its end."""
    run = Run(ROOT / "examples" / name, directory)
    said = run.to_end(f"run.directory={directory}", *settings)
    assert processes_of(directory) == []
    run.balanced(steps=3)
    return run, said


@pytest.mark.slow
def test_three_steps_of_gsm8k_close_and_the_summary_says_that_nothing_was_learnt(tmp_path):
    run, said = run_example("gsm8k.toml", tmp_path)
    summary = said.summary
    assert summary["rollouts_correct"] == 0
    assert summary["groups_dropped"] == summary["groups_opened"] == 12
    assert (summary["steps"], summary["steps_updated"], summary["mean_staleness"]) == (3, 0, None)
    assert (summary["success_after_greedy"], summary["problems_after_greedy"]) == (0.0, 20)
    for line in (
        "note: 0 of 48 training rollouts correct: ",
        "note: all 12 groups were dropped for equal rewards",
        "note: no update was made in 3 of 3 steps: nothing was learnt",
        "0.0 % of 20  (95 %: 0.0 to ",
        "steps without update 3",
    ):
        assert line in said.out
    assert [(row["groups_trained"], row.get("staleness_mean")) for row in run.told("step")] == [(0, None)] * 3


@pytest.mark.slow
def test_three_steps_of_a_mix_with_latex_chinese_and_texts_too_long_for_the_model_close(tmp_path):
    """The mix of the example, and one source more. Length limit and step size are such that some of the problems
    cannot fit.
    """
    other = tmp_path / "other.jsonl"
    texts = [f"求 $x$ 使 $\\frac{{x}}{{{number}}} = 7$。" for number in range(2, 40)] + ["How long is this? " * 30] * 8
    lines = [{"id": f"other-{n}", "problem": text, "answer": "\\frac{7}{2}"} for n, text in enumerate(texts)]
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    mix = [*load_topology(ROOT / "examples" / "mixed_math.toml").environments[0].settings["files"], str(other)]
    settings = (
        f"environments.0.settings.files={json.dumps(mix)}",
        "environments.0.settings.weights=[2, 1, 1]",
        "model.initialise.max_length=384",
        "algorithm.groups_per_step=16",
    )
    run, said = run_example("mixed_math.toml", tmp_path / "run", *settings)
    summary = said.summary
    assert summary["groups_opened"] == summary["groups_dropped"] == 48
    assert summary["groups_dropped_equal_rewards"] >= 24
    assert summary["groups_dropped_prompt_too_long"] > 0
    assert summary["groups_dropped_equal_rewards"] + summary["groups_dropped_prompt_too_long"] == 48
    assert "a prompt is too long: its group is not sampled" in run.log("roc_filter.0")
    assert "nothing was learnt" in said.out
    with run.journal() as journal:
        problems = [decode_stored(row.opened).problem for row in journal.groups(stage=0, states=STATES)]
    assert any("\u4e00" <= character <= "\u9fff" for problem in problems for character in problem.text)
    assert any("\\frac" in problem.text for problem in problems)
    sources = ["other" if problem.id.startswith("other") else str(problem.answer.isdigit()) for problem in problems]
    assert {source: sources.count(source) for source in sources} == {"True": 24, "False": 12, "other": 12}
