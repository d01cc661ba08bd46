"""Every mistake a user makes before a run, through the command line: one clear message, exit code 2, and nothing
starts.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.models.devices import Machine, device_fault
from agent_rl.models.model_files import ModelFiles, Unreadable
from agent_rl.records.run_directory import run_lock
from agent_rl.topology_checks.model import model_findings
from agent_rl.topology_checks.topology import check_topology
from tests.end_to_end.processes import port_blocks
from tests.end_to_end.topologies import ENVIRONMENT, SELECT, write_micro, write_two_hosts

OWN = """
from examples.quickstart.arithmetic import Arithmetic
from agent_rl.environments.base import Environment
from agent_rl.environments.tasks import ListedTasks
from agent_rl.messages import Judgement, Problem


class Sound(Environment):
    parts = [[Problem("a", "?")]]

    def __init__(self, *, seed, base):
        pass

    def problems(self):
        return ListedTasks(self.parts, [Problem(f"held out {number}", "!") for number in range(3)], seed=0)

    def prompt(self, problem):
        return [{"role": "user", "content": problem.text}]

    def judge_at_once(self, problem, transcript):
        return Judgement(1.0, True)


class ByTemplate(Arithmetic):
    lists_tools = "template"


class Shy(Sound):
    def problems(self):
        made = super().problems()
        made.demonstrations = lambda rng: self.shown()
        return made
"""
OF_TEXT = 'def judge_at_once(self, problem, transcript):\n        text = "".join(transcript.texts)\n        '
OWN_MISTAKES = {
    # a class, its base in OWN, its body, and the parts of what is said of it
    "Unmade(Sound)": (
        "def __init__(self, *, seed, base): raise ValueError('not today')",
        "the constructor fails with ValueError: not today (own_environments.py, line ",
    ),
    "Mute(Sound)": (
        "def prompt(self, problem): return 'hm?'",
        "Mute.prompt returned 'hm?' for the problem 'a'; it must return",
    ),
    "Empty(Sound)": ("parts = []", "there are no training problems, and a stage trains"),
    "Packed(Sound)": (
        "parts = [[Problem('a', '?', payload={'pair': [(1, 2)]})]]",
        "the payload of problem 'a' is {'pair': [(1, 2)]}, which is no JSON",
    ),
    "Twice(Sound)": ("parts = [[Problem('a', '?'), Problem('a', '!')]]", "two problems have the id 'a', '?' and '!'"),
    "Endless(Sound)": (
        f"{OF_TEXT}while True: pass",
        "Endless.judge_at_once fails with BlockedError: it did not return ... leave to `judge` what takes long",
    ),
    "Quitting(Sound)": (f"{OF_TEXT}raise SystemExit(0)", "SystemExit: 0 (own_environments.py, line"),
    "Brittle(Sound)": (
        """def judge_at_once(self, problem, transcript):
        return None

    async def judge(self, problem, transcript, context):
        printed = await context.execute("".join(transcript.texts))
        return Judgement(1.0, printed.stdout.splitlines()[-1] == "4")""",
        "Brittle.judge fails with IndexError ... and ToolOutput(outcome='success', stdout=''",
    ),
    "Credulous(Sound)": (
        f"{OF_TEXT}return Judgement(float('nan' if text == 'nan' else 0), False)",
        "Credulous.judge_at_once returned a Judgement whose reward is nan ... texts=('nan',)",
    ),
    "Digital(Sound)": (
        f"{OF_TEXT}return Judgement(0.0, text.isdigit() and int(text[:99]) == 4)",
        "ValueError: invalid literal for int() with base 10: '\u00b2'",
    ),
    "Looping(Sound)": (
        "def rollout(self, problem, model): pass",
        "its rollout ... is no asynchronous function; write it as `async def rollout(",
    ),
    "Early(Shy)": (
        "def shown(self):\n        raise ValueError('not before people')\n        yield",
        "its demonstrations fail with ValueError: not before people (own_environments.py, line",
    ),
    "Leaving(Shy)": (
        "def shown(self):\n        raise SystemExit(0)\n        yield",
        "its demonstrations fail with SystemExit: 0 (own_environments.py",
    ),
    "Brief(Shy)": ("def shown(self): return iter(())", "its demonstrations come to an end; give them without end"),
    "Blunt(Shy)": ("def shown(self): yield 'yes'", "its demonstrations gave 'yes'; give Demonstrations of a Problem"),
}


def files(named: str) -> str:
    return f"class = 'maths'\nsettings.files = ['{named}']\nsettings.evaluation_files = ['held_out.jsonl']"


RL, MODEL = '[[stages]]\nkind = "rl"', "[model.initialise]"
SETTINGS, GENERATOR = "max_rollouts = 8", "actors.rollout_generator"
ENGINE = f"{GENERATOR}.settings: engine"
LEARNER = 'class = "actors.learner:Learner"'
LERNER = LEARNER.replace("Learner", "Lerner")
NEVER_ENDS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}" + "{% endfor %}" * 3
OF_ENVIRONMENTS = [
    # what stands in place of the sound environment, and the parts of the message
    (f"{ENVIRONMENT}\nsettings.right_share = true", "environments.0.settings.right_share: must be a valid numb"),
    (f"{ENVIRONMENT}\nsettings.right_shar = 0.5", "right_shar: is no known key; did you mean 'right_share'?"),
    (files("none.jsonl"), "settings.files.0: environment 'maths': no file matches ... relative to the topology"),
    (files("malformed.jsonl"), "malformed.jsonl:2: not JSON ( ... at column ... each line must be one JSON object"),
    ('class = "own_environments:ByTemplate"', "environments.0: the chat template does not list tools ... name another"),
    *(
        (f'class = "own_environments:{name.partition("(")[0]}"', f"environment '{name.partition('(')[0]}': ... {told}")
        for name, (_, told) in OWN_MISTAKES.items()
    ),
]
MISTAKES = [
    # what of the sound file becomes what, and the parts of the message; what loading refuses is in test_load
    ("keep = 2", "keep = = 2", "not TOML: "),
    ("groups_per_step = 2", 'groups_per_step = "two"', "algorithm.groups_per_step: must be a whole number, not 'two'"),
    (LEARNER, LERNER, "learner.class: actors.learner has no class 'Lerner'; did you mean 'L"),
    (RL, SELECT + RL, "stages.2: ... draws its problems without end ... give the environment a list"),
    (
        'kind = "evaluate"\nname = "after"\nproblems = 3\n',
        'kind = "select"\n',
        "stages.3: nothing trains on the problems that it keeps ... add an rl stage after it, or remove it",
    ),
    (SETTINGS, "kv_tokens = 40", f"{GENERATOR} ... holds 40 tokens, and one rollout of stage before may take"),
    (
        "max_response_tokens = 40",
        "max_response_tokens = 400",
        "stages.1.max_response_tokens: asks for 400 tokens of a response, and a sequence has 256, its prompt included",
    ),
    (MODEL, f"[model]\nchat_template = 'broken.jinja'\n{MODEL}", "chat_template: the chat template ... cannot be comp"),
    (MODEL, f"[model]\nchat_template = 'mine.jinja'\n{MODEL}", 'there is no file ... or take ours, "chatml"'),
    ('directory = "', 'directory = "/proc/nope" #', "run.directory: /proc takes no files: its file system (proc)"),
    (SETTINGS, 'device = "gpu"', f"{GENERATOR}.settings.device: 'gpu' is no device; write ... \"cuda:1\""),
    (LEARNER, f'{LEARNER}\nsettings = {{ device = "cuda:" }}', "actors.learner.settings.device: 'cuda:' is no device"),
    (SETTINGS, 'engine = "vlm"', f"{ENGINE}: 'vlm' is no engine; write module:Name of a class, or a built-in one"),
    (SETTINGS, "engine_settings = { kv_on_updat = 1 }", f"{ENGINE}_settings.kv_on_updat is no setting of torch; did"),
    (SETTINGS, "engine_settings = { kv_on_update = 1 }", f"{ENGINE}_settings.kv_on_update: Input should be 'keep' or"),
    *((ENVIRONMENT, new, told) for new, told in OF_ENVIRONMENTS),
]
RUN_TOO = MISTAKES[:3]


def edit(name: str, **changes: Any) -> Callable[[Path], None]:
    """Change keys of a JSON file; None removes one."""

    def apply(model: Path) -> None:
        value = {**json.loads((model / name).read_text()), **changes}
        (model / name).write_text(json.dumps({key: given for key, given in value.items() if given is not None}))

    return apply


def write(name: str, text: str) -> Callable[[Path], Any]:
    return lambda model: (model / name).write_text(text)


def cut(name: str) -> Callable[[Path], Any]:
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:-7])


def remove(*names: str) -> Callable[[Path], Any]:
    return lambda model: [(model / name).unlink() for name in names]


TEMPLATE = "chat_template.jinja"
NO_TOKEN = "generation_config.json: eos_token_id is"
MODELS: list[tuple[Callable[[Path], Any], str]] = [
    # how a model's directory becomes unsound, and the parts of the message
    (remove("model.safetensors"), "has no weights (*.safetensors or ... save the model's weights beside"),
    (remove("tokenizer.json", "tokenizer_config.json"), "has no tokenizer (tokenizer.json or ... save the tokenizer"),
    (cut("model.safetensors"), "bytes long, and its header says ... save the model again"),
    (write("model.safetensors", "x" * 99), "model.safetensors is no safetensors file"),
    (write("model.safetensors", "\x02" + "\0" * 7 + "{}"), "safetensors holds no tensors ... save the model again"),
    (edit("config.json", model_type="mystery"), "model_type 'mystery', and transformers ... choose another model, or"),
    (edit("config.json", model_type=None), "config.json has no model_type"),
    (edit("config.json", hidden_size=64), "embed_tokens.weight has shape [ ... config.json says [ ... save the m"),
    (edit("config.json", num_key_value_heads=3), "do not share 3 num_key_value_heads evenly"),
    (edit("config.json", num_hidden_layers="one"), "num_hidden_layers is 'one' ... whole number"),
    (edit("config.json", max_position_embeddings=float("nan")), "max_position_embeddings is nan"),
    (write("config.json", '{"vocab_size": 1' + "0" * 5000 + "}"), "cannot be read as JSON"),
    (write("config.json", "[]"), "holds a JSON list, not an object"),
    (write("config.json", "[" * 99999), "cannot be read as JSON"),
    (
        edit("tokenizer.json", added_tokens=[{"id": 9999, "content": "<far>"}]),
        "has tokens up to 9999, and the model's vocab_size is ... save the tokenizer that belongs to the model",
    ),
    (edit("generation_config.json", eos_token_id="<|end|>"), f"{NO_TOKEN} '<|end|>', not the number of ... save the"),
    (edit("generation_config.json", eos_token_id=[2, 10**12]), f"{NO_TOKEN} [2, 1000000000000], not the number of a"),
    (cut("tokenizer.json"), "tokenizer.json cannot be read as JSON ... save the tokenizer again"),
    (remove(TEMPLATE), "has no chat template ... name a template as chat_template in [model]"),
    (write(TEMPLATE, "{% for %}"), "the chat template of ... cannot be compiled: line 1 ... mend it, or name another"),
    (write(TEMPLATE, NEVER_ENDS), "did not render four short messages within ... mend it, or name another"),
    (write(TEMPLATE, "{{ 'x' * 99999999999 }}"), "takes more than 2 GiB of memory to render four short messages"),
    (
        write(TEMPLATE, "{{ raise_exception('System role not supported') }}"),
        "refuses a conversation of system, user, assistant and user: System role not supported",
    ),
    # sound: as it is, and with a template of transformers' own kind
    (remove(), ""),
    (write(TEMPLATE, "{% generation %}{{ strftime_now('%d') }}{% endgeneration %}"), ""),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "sound"
    tiny = InitialiseModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_size=16)
    initialise_model(tiny, made, seed=0)
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Task files, environments and a chat template, sound and otherwise."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.jinja").write_text("{{ message")
    (tmp_path / "held_out.jsonl").write_text('{"problem": "5 + 5?", "answer": 10}\n' * 3)
    (tmp_path / "malformed.jsonl").write_text(
        '{"problem": "1 + 1?", "answer": "2"}\n{"problem": "2 + 2?", "answer": "4"\n'
    )
    classes = [f"class {name}:\n    {body}\n" for name, (body, _) in OWN_MISTAKES.items()]
    (tmp_path / "own_environments.py").write_text("\n".join([OWN, *classes]))
    return tmp_path


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("actors.runtime.processes.start_child", start)
    monkeypatch.setattr("actors.runtime.supervise.Janitor", start)


@pytest.mark.parametrize(
    ("command", "old", "new", "told"), [*(("check", *each) for each in MISTAKES), *(("run", *each) for each in RUN_TOO)]
)
@pytest.mark.usefixtures("nothing_starts")
def test_a_mistake_is_one_message_with_its_place_and_remedy(
    folder: Path,
    command: str,
    old: str,
    new: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "Endless" in new:
        monkeypatch.setattr("agent_rl.topology_checks.environments.AT_ONCE_SECONDS", 0.2)
    path, directory = write_micro(folder)
    text = path.read_text()
    changed = text[: text.index(old)].count("\n") + 1
    path.write_text(text.replace(old, new, 1))
    assert main([command, str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (said,) = captured.err.splitlines()
    assert said.startswith(f"{path}:")
    line = int(said.removeprefix(f"{path}:").partition(":")[0])
    assert abs(line - changed) <= 3, f"line {line} is named, line {changed} was changed: {said}"
    for part in told.split(" ... "):
        assert part in said
    assert not directory.exists()


@pytest.mark.parametrize(("damage", "told"), MODELS)
def test_a_model_that_cannot_be_served_is_refused_by_what_its_files_say(
    model: Path, damage: Callable[[Path], Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = Path(shutil.copytree(model, tmp_path / "model"))
    damage(damaged)
    if "did not render" in told:
        monkeypatch.setattr("agent_rl.models.template_trial.TRIAL_SECONDS", 1.0)
    try:
        said = [f"{message}; {remedy}" for message, remedy in ModelFiles.read(damaged).faults()]
    except Unreadable as error:
        said = [str(error)]
    assert len(said) == bool(told), said
    assert all(part in said[0] for part in told.split(" ... ") if told), said


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"layer_types": ["conv"]}, "cannot be trained: it has layers of the kinds conv"),
        ({"final_logit_softcapping": 30.0}, "cannot be trained: it caps its logits"),
        ({"kv_lora_rank": 8}, "the torch engine cannot serve "),
    ],
)
def test_an_architecture_that_cannot_be_computed_is_refused(
    model: Path, changes: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(model, tmp_path / "model"))
    edit("config.json", **changes)(path)
    file, _ = write_micro(tmp_path)
    text = file.read_text()
    file.write_text(
        f'{text[: text.index("[model.initialise]")]}[model]\npath = "{path}"\n\n{text[text.index("[[env") :]}'
    )
    facts: Any = SimpleNamespace(base=tmp_path)
    assert told in " ".join(each.message for each in model_findings(load_topology(file), facts))


CARD = Machine("cuda", ["nvidia0"], None)


@pytest.mark.parametrize(
    ("device", "machine", "told"),
    [
        ("cpu", Machine("", [], None), ""),
        ("mps", Machine("", [], None), ""),
        ("cuda", CARD, ""),
        ("cuda:0", CARD, ""),
        ("cuda:1", CARD, "there is 1 of them, counted from cuda:0"),
        ("cuda:1", Machine("cuda", ["nvidia0", "nvidia1"], "1"), "there is 1 of them"),
        ("cuda", Machine("cuda", ["nvidia0"], ""), "CUDA_VISIBLE_DEVICES hides all GPUs"),
        ("cuda", Machine("", ["nvidia0"], None), "was built for processors alone"),
        ("cuda", Machine("cuda", [], None), "this machine has no GPU"),
        ("cuda:3", Machine("hip", ["kfd"], None), ""),
        ("cuda", Machine("unknown", ["dxg"], None), ""),
        ("CUDA", CARD, "is no device"),
        ("cuda:x", CARD, "is no device"),
        ("", CARD, "is no device"),
    ],
)
def test_devices_that_are_not_there_are_told_without_torch(device: str, machine: Machine, told: str) -> None:
    said = device_fault(device, machine)
    assert told in said
    assert bool(said) == bool(told)


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.parametrize(
    ("content", "told"), [(None, "No such file or directory"), (b"[run]\xff", "is not UTF-8"), ("", "cannot be read")]
)
def test_a_file_that_cannot_be_read(
    tmp_path: Path, command: str, content: bytes | str | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topology.toml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    assert main([command, str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{path}: ")
    assert told in line


@pytest.mark.usefixtures("nothing_starts")
def test_a_host_names_its_own_ports_that_are_in_use_with_who_would_listen_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, other = port_blocks(2)
    path, directory = write_two_hosts(tmp_path, (base, other))
    place = next(number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith(f"{base}"))
    told = f"{path}:{place}: hosts.a.base_port: another process listens at 127.0.0.1:{base + 1} (kv_scheduler.0)"
    with socket.create_server(("127.0.0.1", base + 1)):
        for command in ("check", "run"):
            assert main([command, str(path)]) == 2
            assert capsys.readouterr().err == f"{told}; stop it, or choose another base_port\n"
        with run_lock(directory, ["a"]):  # it is this run that listens there
            assert main(["check", str(path)]) == 0
        # Another host of this machine may look at its own at that moment, and looking takes a port.
        assert [len(check_topology(load_topology(path), path, host=host)) for host in "ab"] == [1, 0]
    assert main(["check", str(path)]) == 0


def test_weights_in_the_memory_of_one_host_reach_another_over_links_alone(tmp_path: Path) -> None:
    base, other = port_blocks(2)
    path, _ = write_two_hosts(tmp_path, (base, other))
    in_memory = "actors.learner.settings.weights_in=shared_memory"
    (fault,) = check_topology(load_topology(path, [in_memory]), path, [in_memory], host="a")
    assert "rollout_generator is on another host, and cannot read this one's memory" in fault.render(path)
    over_links = [in_memory, "actors.rollout_generator.links.weights=learner"]
    assert check_topology(load_topology(path, over_links), path, over_links, host="a") == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["weights_in=gloo"], ['rollout_generator is not sent the weights; give it the link transfer = "learner"']),
        (["weights_in=gloo", "LINK"], []),
        (["weights_in=nccl", "LINK"], ["the learner's device is cpu, and nccl", "rollout_generator's device is cpu"]),
        (["weights_in=nccl", "LINK", "device=cuda"], ["rollout_generator's device is cpu, and nccl sends"]),
    ],
)
def test_weights_can_be_sent_to_who_has_the_link_and_by_nccl_between_gpus(
    tmp_path: Path, changes: list[str], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "here", lambda: Machine("cuda", ["nvidia0"], None))
    path, _ = write_micro(tmp_path)
    link = "actors.rollout_generator.links.transfer=learner"
    settings = [link if change == "LINK" else f"actors.learner.settings.{change}" for change in changes]
    faults = check_topology(load_topology(path, settings), path, settings)
    assert len(faults) == len(told)
    for fault, words in zip(faults, told, strict=True):
        assert words in fault.render(path)


@pytest.mark.usefixtures("nothing_starts")
def test_a_run_that_is_under_way_is_not_started_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, directory = write_micro(tmp_path)
    with run_lock(directory, load_topology(path).hosts_in_use):
        assert main(["run", str(path)]) == 2
    assert "is in use by another supervisor (process " in capsys.readouterr().err


def test_from_a_shell_there_is_no_traceback_either(folder: Path) -> None:
    path, _ = write_micro(folder)
    path.write_text(path.read_text().replace("keep = 2", "keep = 9"))
    command = [sys.executable, "-m", "actors.cli", "run", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    (said,) = done.stderr.splitlines()
    assert "algorithm.keep: keeps 9 of 4 samples" in said
    assert (done.returncode, done.stdout) == (2, "")
