"""The command line: exit codes, messages without tracebacks, and a quick start."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import trio
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from actors.cli import output
from actors.cli.main import command_line, main
from agent_rl.records.journal import Journal
from agent_rl.records.run_directory import RunRefused
from agent_rl.records.summary import CHECKPOINT
from transport import BindError, CurveKeys

ACTORS = "from actors.base import Actor\n\nclass Idle(Actor):\n    pass\n"

TOPOLOGY = """\
[run]
name = "demo"
directory = "RUN"

[model]
initialise = {}

[[environments]]
class = "examples.quickstart.arithmetic:Arithmetic"
name = "arithmetic"

[[stages]]
kind = "sft"
steps = 2

[actors.learner]
class = "idle_actors:Idle"
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    (tmp_path / "idle_actors.py").write_text(ACTORS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "topology.toml"
    path.write_text(TOPOLOGY.replace("RUN", str(tmp_path / "run")), encoding="utf-8")
    return path


def test_a_sound_file_is_described(file, capsys):
    assert main(["check", str(file)]) == 0
    output = capsys.readouterr().out
    assert f"{file} is sound" in output
    assert "learner" in output
    assert "ipc://" in output


def test_faults_of_the_whole_are_listed_too(file, capsys):
    assert (
        main(["check", str(file), "--set", "algorithm.keep=99", "--set", "actors.learner.class=idle_actors:Idel"]) == 2
    )
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert any("did you mean 'Idle'?" in line for line in lines)


def test_check_prints_the_plan_of_other_machines_before_what_is_missing_here(capsys, tmp_path):
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    for path, said, remedy in (
        ("./nowhere", "there is no directory nowhere", "it is relative to the working directory"),
        ("/nowhere", "there is no directory /nowhere", "correct the path"),
        (f"{tmp_path}/run", f"{tmp_path}/run is a run", "name a model in its folder `checkpoints`"),
    ):
        assert main(["check", "rstar2_14b_mi300x", "--set", f"model.path={path}"]) == 2
        captured = capsys.readouterr()
        assert "needs at most, where every response is as long" in captured.out
        assert f"model.path: {said} (from --set); {remedy}" in captured.err


def test_a_mistyped_example_is_answered_with_the_examples(capsys):
    assert main(["run", "quickstrt"]) == 2
    assert capsys.readouterr().err.strip().endswith("No such file or directory; examples: did you mean 'quickstart'?")
    assert main(["run", "nonsense"]) == 2
    assert "examples: there is agents, coding_agent, doors, evaluate_gpqa, " in capsys.readouterr().err


def replace_run(monkeypatch, does):
    """A run does this, and ends with the exit code that it returns."""

    async def run_topology(*given, **shown):
        await trio.lowlevel.checkpoint()
        return does(*given)

    monkeypatch.setattr("actors.runtime.run.run_topology", run_topology)


def test_run_returns_the_exit_code_and_ends_with_the_summary(file, monkeypatch, capsys):
    asked = []

    def does(topology, path, overrides, host):
        asked.append((topology.stages[0].steps, path, overrides, host))
        topology.run.directory.mkdir()
        (topology.run.directory / "summary.json").write_text(json.dumps({"steps": 5, "success": float("nan")}))
        return 1

    replace_run(monkeypatch, does)
    assert main(["run", str(file), "--set", "stages.0.steps=5", "--host", "local"]) == 1
    assert asked == [(5, (file,), ("stages.0.steps=5",), "local")]
    output = capsys.readouterr().out
    assert json.loads(output.splitlines()[-1]) == {"steps": 5, "success": None}
    assert "summary" in output


@pytest.mark.parametrize(
    ("code", "done"),
    [
        (2, None),  # an actor found a mistake while the others were starting
        (0, None),  # stopped before anything was done
        (0, lambda journal: journal.add_record("{}")),  # a step, an evaluation or a supervised stage
        (2, lambda journal: journal.open_group("g", 0, 0, "train", b"")),  # training had to be stopped
        (0, lambda journal: journal.set_fact(CHECKPOINT, "here")),  # stopped within a supervised stage
    ],
)
def test_a_summary_is_shown_when_there_is_something_to_sum_up(file, monkeypatch, capsys, code, done):
    def does(topology, *_):
        topology.run.directory.mkdir()
        journal = Journal(topology.run.directory / "journal.sqlite")
        if done is not None:
            done(journal)
        journal.close()
        (topology.run.directory / "summary.json").write_text(json.dumps({"steps": 0, "checkpoint": "here"}))
        return code

    replace_run(monkeypatch, does)
    assert main(["run", str(file)]) == code
    output = capsys.readouterr().out
    assert ("checkpoint: here" in output.splitlines()) == (done is not None)
    assert bool(output) == (done is not None)


FINISHES = """
import json, sys, trio, actors.runtime.run
async def run_topology(topology, *_, **shown):
    await trio.lowlevel.checkpoint()
    topology.run.directory.mkdir(exist_ok=True)
    with open(topology.run.directory / "summary.json", "w") as summary:
        assert summary.fileno() > 2
        summary.write(json.dumps({"steps": 3}))
    return 1
actors.runtime.run.run_topology = run_topology
from actors.cli.main import main
sys.exit(main(["run", sys.argv[1]]) + 41)
"""


@pytest.fixture
def command(file, tmp_path, monkeypatch):
    """A run that finishes at once."""
    (tmp_path / "script.py").write_text(FINISHES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return [sys.executable, str(tmp_path / "script.py"), str(file)]


def test_results_that_cannot_be_shown_do_not_change_the_exit_code(command, tmp_path):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 42
    (line,) = done.stderr.splitlines()
    assert line == (
        "agent-rl: the results could not be shown (No space left on device); "
        f"they are in {tmp_path / 'run' / 'summary.json'}"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert b"(Broken pipe)" in process.stderr.read()
    assert process.returncode == 42


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>/dev/full | true"])
def test_closed_output_does_not_change_the_exit_code_and_no_file_takes_its_place(command, tmp_path, closed):
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{shlex.join(command)} {closed}"], capture_output=True, check=False
    )
    assert done.returncode == 42, done.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == {"steps": 3}


@pytest.mark.parametrize("delay", [0.1, 0.3, 0.6, 1.0])
def test_an_early_interrupt_is_one_line_and_an_exit_code(file, tmp_path, delay):
    command = [sys.executable, "-m", "actors.cli", "run", str(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background the shell has it ignored
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            time.sleep(delay)  # when a user happens to press it
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    if "Fatal Python error: init" in err or process.returncode == -signal.SIGINT:
        pytest.skip("the machine is so busy that Python itself was not there yet")
    assert "Traceback" not in out + err
    if process.returncode == 0:  # it had started, and was stopped as at any other time
        assert "SIGINT: stopping" in out
        assert "continue with: " in out
    else:
        assert (process.returncode, out, err) == (130, "", "agent-rl: interrupted\n")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RunRefused("in use"), "agent-rl: in use"),
        (PermissionError(13, "Permission denied", "runs"), "agent-rl: [Errno 13] Permission denied: 'runs'"),
        (ExceptionGroup("x", [ExceptionGroup("y", [BindError("port 5700 is taken")])]), "agent-rl: port 5700 is taken"),
        (BaseExceptionGroup("x", [BindError("port taken"), KeyboardInterrupt()]), "agent-rl: interrupted"),
    ],
)
def test_what_prevents_a_run_is_one_clear_line(file, monkeypatch, capsys, error, message):
    replace_run(monkeypatch, Mock(side_effect=error))
    assert main(["run", str(file)]) == (130 if "interrupted" in message else 2)
    assert capsys.readouterr().err.strip() == message


OBEYED = "\x1b]0;owned\x07\x9b31m\r\x7f"
ROOT = Path(__file__).parents[3]


def test_control_characters_of_others_reach_no_terminal(tmp_path, capsys):
    output.say(f"said {OBEYED}")
    output.complain(f"told {OBEYED}\ud83d")
    console = output.table_console()
    table = Table("a", OBEYED, title=OBEYED)
    table.add_row(OBEYED, Text(OBEYED))
    console.print(OBEYED, table, Panel(OBEYED))
    assert main(["check", str(tmp_path / OBEYED)]) == main(["eval", "--" + OBEYED]) == main(["status", OBEYED]) == 2
    lines = "".join(capsys.readouterr())
    assert not [line for line in lines.splitlines() if any(each in line for each in OBEYED if not each.isprintable())]
    assert "said \u241b]0;owned\u2407\u27e8U+009B\u27e931m\u240d\u2421\n" in lines


def test_the_command_line_and_displays_have_no_other_ways_out():
    folders = ("actors/cli", "actors/cluster", "actors/runtime", "agent_rl/observe", "benchmarks/gateway_traps")
    ways = re.compile(r"(?<![\w.])print\(|std(?:out|err)\.write\(|(?<![\w.])Console\(")
    found = {
        str(file.relative_to(ROOT)): len(lines)
        for folder in folders
        for file in (ROOT / folder).rglob("*.py")
        if (lines := [line for line in file.read_text().splitlines() if ways.search(line) and "visible(" not in line])
    }
    # A flush; what is made visible just before, in colours and on a console.
    assert found == {"actors/cli/output.py": 1, "agent_rl/observe/live.py": 1}


def test_a_bug_keeps_its_traceback(file, monkeypatch):
    replace_run(monkeypatch, Mock(side_effect=ExceptionGroup("x", [BindError("port"), ZeroDivisionError("bug")])))
    with pytest.raises(ExceptionGroup):
        main(["run", str(file)])


def test_keys_are_made_once(tmp_path, capsys):
    file = tmp_path / "cluster.key"
    assert main(["keys", str(file)]) == 0
    assert f'key_file = "{file}"' in capsys.readouterr().out
    made = CurveKeys.load(file)
    assert main(["keys", str(file)]) == 2
    assert "exists" in capsys.readouterr().err
    assert CurveKeys.load(file) == made
    assert main(["keys", str(tmp_path / "none" / "key")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_audit_says_whether_the_journal_balances(tmp_path, capsys):
    assert main(["audit", str(tmp_path / "none")]) == 2
    assert "there is no run directory" in capsys.readouterr().err
    assert main(["audit", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    Journal(tmp_path / "journal.sqlite").close()
    assert main(["audit", str(tmp_path)]) == 0
    assert capsys.readouterr().out


LONG = "x" * 300  # no file can have this name


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", f"{LONG}.toml"],
        ["run", f"{LONG}.toml"],
        ["audit", LONG],
        ["audit", "--deep", LONG],
        ["report", LONG],
        ["keys", LONG],
        ["eval", LONG, "--data", "a.jsonl"],
        ["eval", "--compare", LONG, LONG],
        ["data", "sft", f"{LONG}.jsonl", "--out", "b.jsonl"],
    ],
)
def test_a_path_that_the_system_refuses_is_one_clear_line(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"problem": "1 + 1", "answer": "2"}\n')
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert LONG in line
    assert "File name too long" in line


@pytest.mark.parametrize("command", [["check"], ["run"], ["audit"], ["audit", "--deep"], ["report"], ["keys"]])
def test_a_directory_that_the_user_may_not_enter_is_one_clear_line(command, tmp_path, monkeypatch, capsys):
    """The tests may run as root, whom no directory keeps out: the system's answer is put in its place."""
    path = tmp_path / "secret" / "micro.toml"
    stat = os.stat

    def refuse(looked_at, *arguments, **named):
        if str(looked_at) == str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(looked_at, *arguments, **named)

    monkeypatch.setattr(os, "stat", refuse)
    assert main([*command, str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line
    assert "Permission denied" in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name a command: new, check, run, "),
        (["data"], "name a command: fetch, "),
        (["frobnicate"], 'Unknown command "frobnicate"'),
        (["check"], "FILE requires an argument"),
        (["check", "a", "--sett", "b"], "--sett. Did you mean --set?"),
        (["keys", "a", "b"], "Unused Tokens: ['b']"),
        (["check", "a", "--set"], "--set requires an argument"),
        (["eval", "m", "--data"], "--data requires"),
        (["eval", "m", "--n", "many"], 'unable to convert "many" into int'),
        (["eval", "m", "--prompt", "plein"], 'Choose from: "plain", "rstar2"'),
        (["eval", "--compare", "a"], "--compare requires 2"),
        (["data", "sft", "a"], "--out requires an argument"),
    ],
)
def test_a_wrong_call_is_one_clear_line_that_names_the_help(arguments, told, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("agent-rl")
    assert told in line
    assert " --help " in line


def commands(app, names=()):
    """Every command with the names that call it."""
    yield names
    for name in app:
        if not name.startswith("-") and name != "bench":
            yield from commands(app[name], (*names, name))


def test_help_of_every_command_is_plain_text_of_80_columns(capsys):
    called = list(commands(command_line()))
    assert ("data", "demonstrate") in called
    for names in called:
        assert main([*names, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(" ".join(["Usage: agent-rl", *names]))
        assert max(map(len, lines)) <= 80, names
        assert all(line.isascii() and line.isprintable() for line in lines), names


def test_a_shell_completes_commands_and_options(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BASH_COMPLETION_USER_DIR", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert main(["--install-completion", "--shell", "bash"]) == 0
    (script,) = (path for path in tmp_path.rglob("agent-rl") if path.is_file())
    assert str(script) in capsys.readouterr().out
    complete = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _agent_rl; echo "${COMPREPLY[@]}"'
    for words, completed in (
        (["che"], "check"),
        (["data", "demon"], "demonstrate"),
        (["eval", "--show"], "--show-problems"),
    ):
        done = subprocess.run(
            ["bash", "-c", complete, str(script), "agent-rl", *words], capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [completed]


INSTALLED = "import sys; sys.path[0] = '/nowhere'; from actors.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    ("command", "place"), [(["-c", INSTALLED], "."), (["-m", "actors.cli"], "elsewhere")], ids=["installed", "module"]
)
def test_a_class_beside_the_user_or_the_topology_is_found(file, tmp_path, command, place):
    (tmp_path / place).mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, *command, "check", str(file)],
        cwd=tmp_path / place,
        env={"PYTHONPATH": ":".join(path for path in sys.path if path != str(tmp_path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_the_version_is_told_quickly():
    before = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "actors.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("agent-rl ")
    assert " torch" not in result.stderr
    assert " pydantic" not in result.stderr
    assert time.monotonic() - before < 10


def test_bench_lists_its_subjects_without_importing_them():
    code = "import sys; from actors.cli.main import main; assert main(['bench']) == 0"
    code += "; print([name for name in sys.modules if 'bench_' in name or name == 'torch'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "learning" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "begins", "said"),
    [
        (["learnin"], "", "there is no benchmark 'learnin'; there are"),
        (["learning", "--seeds", "many"], "agent-rl bench learning: ", '--seeds: unable to convert "many" into int'),
    ],
)
def test_bench_names_its_subjects_for_a_wrong_one_and_hands_arguments_to_a_right_one(capsys, words, begins, said):
    assert main(["bench", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(begins)
    assert said in error
