"""Every mistake a user makes before a run, through the command line: one clear message, exit code 2, and nothing
starts.
"""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from actors.cli.main import main
from agent_rl.config.load import load_topology
from agent_rl.config.topology import InitialiseModel
from agent_rl.learning.tiny import initialise_model
from agent_rl.models.devices import Machine, device_fault
from agent_rl.models.model_files import ModelFiles, Unreadable
from agent_rl.records.run_directory import run_lock
from agent_rl.topology_checks.topology import check_topology
from tests.end_to_end.processes import port_blocks
from tests.end_to_end.topologies import SELECT, write_micro, write_two_hosts

GENERATOR = 'class = "arithmetic"'
HELD_OUT = "settings.evaluation_files = ['held_out.jsonl']"
SOUND_ROW = '{"problem": "1 + 1?", "answer": "2"}\n'
LOOP = """
from actors.base import Call
from actors.tool_executor import ToolExecutor
from agent_rl.messages import ToolCall, ToolResult


class Loop(ToolExecutor):
    links = {"again": Call(ToolCall, ToolResult)}
"""
OWN = """
from agent_rl.environments.arithmetic import Arithmetic
from agent_rl.environments.base import Environment
from agent_rl.environments.tasks import ListedTasks
from agent_rl.messages import Judgement, Problem


class Unmade(Environment):
    def __init__(self, *, seed, base):
        if base:
            raise ValueError("not today")


class Mute(Environment):
    def __init__(self, *, seed, base):
        pass

    def judge_at_once(self, problem, transcript):
        return None

    def problems(self):
        return ListedTasks([[Problem("a", "?")]], [Problem("b", "!")], seed=0)

    def prompt(self, problem):
        return "hm?"


class Empty(Mute):
    def problems(self):
        return ListedTasks([], [Problem("b", "!")], seed=0)


class Packed(Mute):
    def problems(self):
        return ListedTasks([[Problem("a", "?", payload={"pair": [(1, 2)]})]], [Problem("b", "!")], seed=0)


class Twice(Mute):
    def problems(self):
        return ListedTasks([[Problem("a", "?")]], [Problem("a", "!")], seed=0)


class ByTemplate(Arithmetic):
    lists_tools = "template"


class Endless(Mute):
    def prompt(self, problem):
        return [{"role": "user", "content": problem.text}]

    def judge_at_once(self, problem, transcript):
        while True:
            pass


class Brittle(Endless):
    def judge_at_once(self, problem, transcript):
        return None

    async def judge(self, problem, transcript, context):
        printed = await context.execute("".join(transcript.texts))
        return Judgement(1.0, printed.stdout.splitlines()[-1] == "4")


class Credulous(Endless):
    def judge_at_once(self, problem, transcript):
        try:
            return Judgement(float("".join(transcript.texts)), True)
        except ValueError:
            return Judgement(0.0, False)


class Digital(Endless):
    def judge_at_once(self, problem, transcript):
        text = "".join(transcript.texts)
        return Judgement(0.0, text.isdigit() and int(text[:99]) == 4)


class Shy(Arithmetic):
    def problems(self):
        return Showing(super().problems(), self.shown())

    def shown(self):
        raise ValueError("not before people")
        yield


class Leaving(Shy):
    def shown(self):
        raise SystemExit(0)
        yield


class Quitting(Endless):
    def judge_at_once(self, problem, transcript):
        raise SystemExit(0)


class Brief(Shy):
    def shown(self):
        return iter(())


class Blunt(Shy):
    def shown(self):
        yield "yes"


class Showing:
    def __init__(self, source, shown):
        self.problem, self.evaluation, self.evaluation_count = source.problem, source.evaluation, source.evaluation_count
        self.demonstrations = lambda rng: shown


class Looping(Empty):
    def rollout(self, problem, model):
        pass
"""


def files(named: str) -> str:
    return f"class = 'maths'\nsettings.files = ['{named}']\n{HELD_OUT}"


NEVER_ENDS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}" + "{% endfor %}" * 3

MISTAKES: dict[str, tuple[str, str, list[str]]] = {
    # what is wrong: what of the sound file becomes what, and what the message holds
    "an unknown class": (
        "actors.learner:Learner",
        "actors.learner:Lerner",
        ["actors.learner.class: actors.learner has no class 'Lerner'", "did you mean 'Learner'?"],
    ),
    "an unknown module": (
        "actors.learner:Learner",
        "actors.lerner:Learner",
        ["actors.learner.class: there is no module 'actors.lerner'", "modules are looked for in"],
    ),
    "links in a circle": (
        'class = "actors.tool_executor:ToolExecutor"',
        'class = "loop:Loop"\nlinks = { again = "tool_executor" }',
        ["actors.tool_executor.links: actors wait for each other in a circle: tool_executor -> tool_executor", "break"],
    ),
    "a link to nobody": (
        'tools = "tool_executor"',
        'tools = "tool_exekutor"',
        ["rollout_generator.links.tools: no actor is named 'tool_exekutor'", "did you mean 'tool_executor'?"],
    ),
    "a selection from problems without end": (
        '[[stages]]\nkind = "rl"',
        f'{SELECT}[[stages]]\nkind = "rl"',
        ["stages.2: environment 'arithmetic' draws its problems without end", "give the environment a list"],
    ),
    "a selection that nothing trains on": (
        'kind = "evaluate"\nname = "after"\nproblems = 3\n',
        'kind = "select"\n',
        ["stages.3: nothing trains on the problems that it keeps", "add an rl stage after it, or remove it"],
    ),
    "a selection that keeps nothing": (
        '[[stages]]\nkind = "rl"',
        SELECT.replace("samples", "keep = { below = 0.5, at_least = 0.5 }\nsamples") + '[[stages]]\nkind = "rl"',
        ["stages.2.keep: at_least (0.5) is not below below (0.5)", "nothing would be kept"],
    ),
    "a wrong type": (
        "groups_per_step = 2",
        'groups_per_step = "two"',
        ["algorithm.groups_per_step: must be a whole number, not 'two'", "write a whole number, as in 5"],
    ),
    "one rollout kept": (
        "keep = 2",
        "keep = 1",
        ["algorithm.keep: an advantage within a group needs at least 2 trajectories; write keep = 2 or more"],
    ),
    "a truth value for a number": (
        "steps = 3",
        "steps = true",
        ["stages.0.steps: must be a whole number, not True", "write a whole number, as in 5"],
    ),
    "a text for a number": (
        "samples = 4",
        'samples = "16"',
        ["algorithm.samples: must be a whole number, not '16'", "write a whole number, as in 5"],
    ),
    "a text among numbers": (
        "samples = 4",
        'samples = 4\nsequence_mask = [0.5, "2"]',
        ["algorithm.sequence_mask.1: must be a valid number, not '2'", "write a number, as in 0.5"],
    ),
    "a number for a truth value": (
        'kind = "rl"',
        'kind = "rl"\nreset_optimizer = 1',
        ["stages.2.reset_optimizer: must be a valid boolean, not 1", "write true or false"],
    ),
    "a text for a number of a role's settings": (
        "max_rollouts = 8",
        'max_rollouts = "8"',
        ["actors.rollout_generator.settings.max_rollouts: must be a whole number, not '8'"],
    ),
    "a truth value for a number of an environment's settings": (
        GENERATOR,
        GENERATOR + "\nsettings.right_share = true",
        ["environments.0.settings.right_share: must be a valid number, not True"],
    ),
    "a KV cache that holds no rollout": (
        "max_rollouts = 8",
        "max_rollouts = 8, kv_tokens = 40",
        [
            "actors.rollout_generator",
            "the KV cache holds 40 tokens, and one rollout of stage before may take 40 for its response",
        ],
    ),
    "a value out of range": ("samples = 4", "samples = 0", ["algorithm.samples: must be greater than 0, not 0"]),
    "a clipping without a lower bound": (
        "samples = 4",
        "samples = 4\nclip_low = 1.5",
        ["algorithm.clip_low: must be less than or equal to 1, not 1.5"],
    ),
    "a mask that leaves out what agrees": (
        "samples = 4",
        "samples = 4\nsequence_mask = [1.1, 1.2]",
        ["algorithm.sequence_mask: must be two bounds on a ratio"],
    ),
    "an unknown key": ("checkpoint_every", "checkpoint_evry", ["is no known key", "did you mean 'checkpoint_every'?"]),
    "an unknown setting": (
        "max_rollouts = 8",
        "max_rolouts = 8",
        ["actors.rollout_generator.settings.max_rolouts: is no known key", "did you mean 'max_rollouts'?"],
    ),
    "a key given twice": (
        "keep = 2",
        "keep = 2\nsamples = 8",
        ["algorithm.samples: is given twice, first in line", "remove one of them"],
    ),
    "broken TOML": ("keep = 2", "keep = = 2", ["not TOML: "]),
    "a data file that is missing": (
        GENERATOR,
        files("none/*.jsonl"),
        [
            "environments.0.settings.files.0: environment 'maths': no file matches",
            "paths are relative to the topology file",
        ],
    ),
    "a held-out file that is missing": (
        GENERATOR,
        "class = 'maths'\nsettings.files = ['sound.jsonl']\nsettings.evaluation_files = ['none.jsonl']",
        [
            "environments.0.settings.evaluation_files.0: environment 'maths': no file matches",
            "paths are relative to the topology file",
        ],
    ),
    "an environment of no weight": (
        GENERATOR,
        GENERATOR + "\nweight = 0",
        ["environments.0.weight: must be greater than 0, not 0"],
    ),
    "two environments of one name": (
        GENERATOR,
        GENERATOR + '\n[[environments]]\nclass = "arithmetic"',
        ["environments: two of them are named 'arithmetic'; give one another name"],
    ),
    "an unknown environment": (GENERATOR, 'class = "mathss"', ["environments.0.class: ", "mathss"]),
    "an environment's unknown setting": (
        GENERATOR,
        GENERATOR + "\nsettings.right_shar = 0.5",
        ["environments.0.settings.right_shar: is no known key", "did you mean 'right_share'?"],
    ),
    "an environment's wrong setting": (
        GENERATOR,
        GENERATOR + "\nsettings.right_share = 1.5",
        ["environments.0.settings.right_share: must be less than or equal to 1, not 1.5"],
    ),
    "an environment that cannot be imported": (
        GENERATOR,
        'class = "broken_environment:Mine"',
        ["environments.0.class: ", "ZeroDivisionError: division by zero (broken_environment.py, line 2)"],
    ),
    "an environment that fails when it is made": (
        GENERATOR,
        'class = "own_environments:Unmade"',
        [
            "environments.0.class: environment 'Unmade': the constructor fails with ValueError: not today",
            "(own_environments.py, line 11)",
        ],
    ),
    "demonstrations that raise": (
        GENERATOR,
        'class = "own_environments:Shy"',
        [
            "environments.0.class: environment 'Shy': its demonstrations fail with ValueError: not before people (own_environments.py, line"
        ],
    ),
    "demonstrations that exit": (
        GENERATOR,
        'class = "own_environments:Leaving"',
        [
            "environments.0.class: environment 'Leaving': its demonstrations fail with SystemExit: 0 (own_environments.py"
        ],
    ),
    "a judge that exits": (
        GENERATOR,
        'class = "own_environments:Quitting"',
        ["environments.0.class: environment 'Quitting': ", "SystemExit: 0 (own_environments.py, line"],
    ),
    "demonstrations that end": (
        GENERATOR,
        'class = "own_environments:Brief"',
        ["environments.0.class: environment 'Brief': its demonstrations come to an end; give them without end"],
    ),
    "demonstrations that are none": (
        GENERATOR,
        'class = "own_environments:Blunt"',
        ["environments.0.class: environment 'Blunt': its demonstrations gave 'yes'; give Demonstrations of a Problem"],
    ),
    "an environment whose prompt is none": (
        GENERATOR,
        'class = "own_environments:Mute"',
        ["environments.0.class: environment 'Mute': Mute.prompt returned 'hm?' for the problem 'a'; it must return"],
    ),
    "a payload that is no JSON": (
        GENERATOR,
        'class = "own_environments:Packed"',
        [
            "environments.0.class: environment 'Packed': ",
            "the payload of problem 'a' is {'pair': [(1, 2)]}, which is no JSON",
        ],
    ),
    "a loop that is not asynchronous": (
        GENERATOR,
        'class = "own_environments:Looping"',
        [
            "environments.0.class: environment 'Looping': its rollout",
            "is no asynchronous function; write it as `async def rollout(",
        ],
    ),
    "a judgement that does not end": (
        GENERATOR,
        'class = "own_environments:Endless"',
        [
            "environments.0.class: environment 'Endless': Endless.judge_at_once fails with BlockedError: it did not return",
            "leave to `judge` what takes long (own_environments.py, line ",
        ],
    ),
    "a judge that dies of a program that prints nothing": (
        GENERATOR,
        'class = "own_environments:Brittle"',
        [
            "environments.0.class: environment 'Brittle': Brittle.judge fails with IndexError",
            "(own_environments.py, line ",
            "and ToolOutput(outcome='success', stdout=''",
        ],
    ),
    "a judgement by a number that a model wrote": (
        GENERATOR,
        'class = "own_environments:Credulous"',
        ["environment 'Credulous': Credulous.judge_at_once returned a Judgement whose reward is nan", "texts=('nan',)"],
    ),
    "a judgement by digits of any kind": (
        GENERATOR,
        'class = "own_environments:Digital"',
        ["environment 'Digital': ", "ValueError: invalid literal for int() with base 10: '\u00b2'"],
    ),
    "an environment without problems": (
        GENERATOR,
        'class = "own_environments:Empty"',
        ["environments.0.class: environment 'Empty': there are no training problems, and a stage trains"],
    ),
    "a line that is not JSON": (
        GENERATOR,
        files("malformed.jsonl"),
        ["malformed.jsonl:3: not JSON (", "at column", "each line must be one JSON object"],
    ),
    "a line that is not JSON in a gzip file": (
        GENERATOR,
        files("malformed.jsonl.gz"),
        ["malformed.jsonl.gz:3: not JSON (", "each line must be one JSON object"],
    ),
    "a gzip file that was cut": (GENERATOR, files("cut.jsonl.gz"), ["cut.jsonl.gz: cannot be read (", "is it UTF-8"]),
    "a gzip file that is none": (GENERATOR, files("plain.jsonl.gz"), ["plain.jsonl.gz: cannot be read", "or gzip if"]),
    "a problem without an answer": (
        GENERATOR,
        files("unanswered.jsonl"),
        ["unanswered.jsonl:2: `answer` (or `reward_model.ground_truth`) is None", "it must be text or a number"],
    ),
    "a parquet row without an answer": (
        GENERATOR,
        files("unanswered.parquet"),
        ["unanswered.parquet:2: `answer` (or `reward_model.ground_truth`) is None", "it must be text or a number"],
    ),
    "a parquet file that is none": (
        GENERATOR,
        files("plain.parquet"),
        ["plain.parquet: cannot be read as parquet", "write it again, or convert it to JSONL"],
    ),
    "a file without tasks": (GENERATOR, files("empty.jsonl"), ["empty.jsonl: the file holds no tasks", "fill it"]),
    "a file of an unknown kind": (GENERATOR, files("tasks.csv"), ["tasks.csv: task files end in one of .jsonl,"]),
    "a held-out problem that is trained on": (
        GENERATOR,
        "class = 'maths'\nsettings.files = ['sound.jsonl']\nsettings.evaluation_files = ['same_id.jsonl']",
        ["held-out problem a has the text of training problem sound.jsonl:1", "remove one of them"],
    ),
    "a file that is named twice": (
        GENERATOR,
        "class = 'maths'\nsettings.files = ['sound.jsonl']\nsettings.evaluation_files = ['sound.jsonl']",
        ["environments.0.settings.evaluation_files.0: environment 'maths': sound.jsonl is named a second time"],
    ),
    "two problems of one id": (
        GENERATOR,
        "class = 'maths'\nsettings.files = ['held_out.jsonl', 'same*.jsonl']",
        [
            "environments.0.settings.files.1: environment 'maths': same_id_too.jsonl:2 has the id 'a', and same_id.jsonl:1 has it too",
            "give each problem an id of its own",
        ],
    ),
    "two problems of one id in one's own environment": (
        GENERATOR,
        'class = "own_environments:Twice"',
        ["environments.0.class: environment 'Twice': two problems have the id 'a', '?' and '!'"],
    ),
    "a model that is not there": (
        "[model.initialise]",
        '[model]\npath = "./nowhere"\n[unused]',
        ["model.path: there is no directory nowhere", "it is relative to the working directory"],
    ),
    "a model without tokenizer": (
        "[model.initialise]",
        '[model]\npath = "FOLDER/models/no tokenizer"\n[unused]',
        ["model.path: ", "has no tokenizer (tokenizer.json or ", "save the tokenizer beside the model"],
    ),
    "a chat template that cannot be compiled": (
        "[model.initialise]",
        '[model]\npath = "FOLDER/models/sound"\nchat_template = "held_out.jsonl.jinja"\n[unused]',
        ["model.chat_template: the chat template ", "held_out.jsonl.jinja cannot be compiled"],
    ),
    "a prompt by a chat template without tools": (
        GENERATOR,
        'class = "own_environments:ByTemplate"',
        [
            "environments.0: the chat template does not list tools",
            "name another model, or a template as chat_template in [model]",
        ],
    ),
    "responses longer than the model's sequences": (
        "max_response_tokens = 40",
        "max_response_tokens = 400",
        [
            "stages.1.max_response_tokens: asks for 400 tokens of a response, and a sequence has 256, its prompt included"
        ],
    ),
    "a device that is none": (
        "max_rollouts = 8",
        'max_rollouts = 8, device = "gpu"',
        ["rollout_generator.settings.device: 'gpu' is no device; write", '"cuda:1"'],
    ),
    "a learner's device that is none": (
        'class = "actors.learner:Learner"',
        'class = "actors.learner:Learner"\nsettings = { device = "cuda:" }',
        ["actors.learner.settings.device: 'cuda:' is no device"],
    ),
    "an engine that is no class": (
        "max_rollouts = 8",
        'engine = "vlm"',
        ["engine: 'vlm' is no engine; write module:Name of a class, or a built-in one: did you mean 'vllm'?"],
    ),
    "an engine of an unknown module": (
        "max_rollouts = 8",
        'engine = "mine:Engine"',
        ["engine: there is no module 'mine'"],
    ),
    "an engine of an unknown name": (
        "max_rollouts = 8",
        'engine = "actors.engines.torch.engine:TorchEngin"',
        ["engine: actors.engines.torch.engine has no class 'TorchEngin'; did you mean 'TorchEngine'?"],
    ),
    "an unknown setting of the engine": (
        "max_rollouts = 8",
        "engine_settings = { kv_on_updat = 'keep' }",
        ["engine_settings.kv_on_updat is no setting of torch; did you mean 'kv_on_update'?"],
    ),
    "a wrong value of an engine's setting": (
        "max_rollouts = 8",
        "engine_settings = { kv_on_update = 'drop' }",
        ["engine_settings.kv_on_update: Input should be 'keep' or 'recompute', not 'drop'"],
    ),
    "a chat template that never ends, for a model that is made here": (
        "[model.initialise]",
        '[model]\nchat_template = "never_ends.jinja"\n[model.initialise]',
        ["model.chat_template: the chat template ", "never_ends.jinja did not render four short messages", "mend it"],
    ),
    "a chat template that is not there": (
        "[model.initialise]",
        '[model]\nchat_template = "mine.jinja"\n[model.initialise]',
        ["model.chat_template: there is no file ", "mine.jinja", 'or take ours, "chatml"'],
    ),
    "a run directory that can hold nothing": (
        'directory = "',
        'directory = "/proc/nope" #',
        ["run.directory: /proc takes no files: its file system (proc) holds no files", "name another directory"],
    ),
    "a run directory that is a file": (
        'directory = "',
        'directory = "FOLDER/sound.jsonl" #',
        ["run.directory: ", "sound.jsonl is a file", "name a directory"],
    ),
}


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


MODELS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    # what is wrong with a model's directory: how it comes about, and what the message holds
    "no weights": (
        remove("model.safetensors"),
        ["has no weights (*.safetensors or ", "save the model's weights beside"],
    ),
    "no tokenizer": (
        remove("tokenizer.json", "tokenizer_config.json"),
        ["has no tokenizer (tokenizer.json or ", "save the tokenizer beside the model"],
    ),
    "cut weights": (cut("model.safetensors"), ["bytes long, and its header says", "save the model again"]),
    "weights that are none": (write("model.safetensors", "x" * 99), ["model.safetensors is no safetensors file"]),
    "weights without tensors": (
        write("model.safetensors", "\x02" + "\0" * 7 + "{}"),
        ["model.safetensors holds no tensors", "save the model again"],
    ),
    "an unsupported architecture": (
        edit("config.json", model_type="mystery"),
        ["model_type 'mystery', and transformers", "choose another model, or install a newer transformers"],
    ),
    "no architecture": (edit("config.json", model_type=None), ["config.json has no model_type"]),
    "wrong sizes": (
        edit("config.json", hidden_size=64),
        ["model.embed_tokens.weight has shape [", "config.json says [", "save the model again"],
    ),
    "heads that do not share": (
        edit("config.json", num_key_value_heads=3),
        ["do not share 3 num_key_value_heads evenly"],
    ),
    "a size that is text": (
        edit("config.json", num_hidden_layers="one"),
        ["num_hidden_layers is 'one'", "whole number"],
    ),
    "a size that is NaN": (
        edit("config.json", max_position_embeddings=float("nan")),
        ["max_position_embeddings is nan"],
    ),
    "a size of thousands of digits": (
        write("config.json", '{"vocab_size": 1' + "0" * 5000 + "}"),
        ["cannot be read as JSON"],
    ),
    "a configuration that is an array": (write("config.json", "[]"), ["holds a JSON list, not an object"]),
    "a configuration nested too deeply": (write("config.json", "[" * 99999), ["cannot be read as JSON"]),
    "another model's tokenizer": (
        edit("tokenizer.json", added_tokens=[{"id": 9999, "content": "<far>"}]),
        ["has tokens up to 9999, and the model's vocab_size is", "save the tokenizer that belongs to the model"],
    ),
    "an end that is no token": (
        edit("generation_config.json", eos_token_id="<|end|>"),
        ["generation_config.json: eos_token_id is '<|end|>', not the number of a token", "save the model again"],
    ),
    "an end beyond the vocabulary": (
        edit("generation_config.json", eos_token_id=[2, 10**12]),
        ["generation_config.json: eos_token_id is [2, 1000000000000], not the number of a token"],
    ),
    "a tokenizer that is not JSON": (
        cut("tokenizer.json"),
        ["tokenizer.json cannot be read as JSON", "save the tokenizer again"],
    ),
    "no chat template": (
        remove("chat_template.jinja"),
        ["has no chat template", "name a template as chat_template in [model]"],
    ),
    "a chat template that is not Jinja": (
        write("chat_template.jinja", "{% for %}"),
        ["the chat template of ", "cannot be compiled: line 1", "mend it, or name another"],
    ),
    "a chat template that never ends": (
        write("chat_template.jinja", NEVER_ENDS),
        ["the chat template of ", "did not render four short messages within ", "mend it, or name another"],
    ),
    "a chat template that takes all memory": (
        write("chat_template.jinja", "{{ 'x' * 99999999999 }}"),
        ["takes more than 2 GiB of memory to render four short messages"],
    ),
    "a chat template without a system's turn": (
        write("chat_template.jinja", "{{ raise_exception('System role not supported') }}"),
        ["refuses a conversation of system, user, assistant and user: System role not supported"],
    ),
    "a template of transformers' own kind": (
        write("chat_template.jinja", "{% generation %}{{ strftime_now('%d') }}{% endgeneration %}"),
        [],
    ),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound model, and what can be wrong with one."""
    made = tmp_path_factory.mktemp("models")
    tiny = InitialiseModel(hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, mlp_size=16)
    initialise_model(tiny, made / "sound", seed=0)
    for name, (damage, _) in MODELS.items():
        shutil.copytree(made / "sound", made / name)
        damage(made / name)
    return made


@pytest.fixture
def folder(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Task files, sound and otherwise, a model without tokenizer, and an actor that waits for itself."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agent_rl.topology_checks.environments.AT_ONCE_SECONDS", 0.2)
    monkeypatch.setattr("agent_rl.models.templates.TRIAL_SECONDS", 6.0)
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "sound.jsonl").write_text(SOUND_ROW)
    (tmp_path / "held_out.jsonl.jinja").write_text("{{ message")
    (tmp_path / "never_ends.jinja").write_text(NEVER_ENDS)
    (tmp_path / "held_out.jsonl").write_text('{"problem": "5 + 5?", "answer": 10}\n')
    (tmp_path / "same_id.jsonl").write_text('{"id": "a", "problem": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "same_id_too.jsonl").write_text(
        '{"problem": "7?", "answer": 7}\n{"id": "a", "problem": "8?", "answer": 8}\n'
    )
    malformed = SOUND_ROW + "\n" + '{"problem": "2 + 2?", "answer": "4"\n'
    (tmp_path / "malformed.jsonl").write_text(malformed)
    (tmp_path / "malformed.jsonl.gz").write_bytes(gzip.compress(malformed.encode()))
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(SOUND_ROW.encode() * 50)[:-12])
    (tmp_path / "plain.jsonl.gz").write_text(SOUND_ROW)
    (tmp_path / "unanswered.jsonl").write_text(SOUND_ROW + '{"problem": "2 + 2?"}\n')
    parquet.write_table(pa.table({"problem": ["1?", "2?"], "answer": ["1", None]}), tmp_path / "unanswered.parquet")
    (tmp_path / "plain.parquet").write_text(SOUND_ROW)
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "own_environments.py").write_text(OWN)
    (tmp_path / "broken_environment.py").write_text("a = 1\nb = 1 / 0\n")
    (tmp_path / "tasks.csv").write_text("problem,answer\n")
    (tmp_path / "models").symlink_to(models)
    return tmp_path


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("actors.runtime.processes.start_child", start)
    monkeypatch.setattr("actors.runtime.supervise.Janitor", start)


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        *(("check", mistake) for mistake in MISTAKES),
        *(
            ("run", mistake)
            for mistake in ("broken TOML", "a wrong type", "an unknown class", "a line that is not JSON")
        ),
    ],
)
@pytest.mark.usefixtures("nothing_starts")
def test_a_mistake_is_one_message_with_its_place_and_remedy(
    folder: Path, command: str, mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, directory = write_micro(folder)
    old, new, told = MISTAKES[mistake]
    text = path.read_text()
    changed = text[: text.index(old)].count("\n") + 1
    text = text.replace(old, new.replace("FOLDER", str(folder)), 1)
    if "[unused]" in text:  # what was the other model's is gone
        before, _, after = text.partition("[unused]")
        text = before + "[[environments]]" + after.partition("[[environments]]")[2]
    path.write_text(text)
    assert main([command, str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    said = captured.err.strip()
    assert said.startswith(f"{path}:"), said
    line = int(said.removeprefix(f"{path}:").partition(":")[0])
    assert abs(line - changed) <= 3, f"line {line} is named, line {changed} was changed: {said}"
    for part in told:
        assert part in said, said
    assert len(said.splitlines()) == 1, said
    assert not directory.exists() or directory.is_file()


@pytest.mark.parametrize("wrong", MODELS)
def test_a_model_that_cannot_be_served_is_refused_by_what_its_files_say(
    models: Path, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = MODELS[wrong][1]
    if "never ends" in wrong:
        monkeypatch.setattr("agent_rl.models.templates.TRIAL_SECONDS", 1.0)
    try:
        said = [f"{message}; {remedy}" for message, remedy in ModelFiles.read(models / wrong).faults()]
    except Unreadable as error:
        said = [str(error)]
    assert len(said) == bool(told), said
    for part in told:
        assert part in said[0]


def test_a_sound_model_has_no_fault(models: Path) -> None:
    assert list(ModelFiles.read(models / "sound").faults()) == []


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


@pytest.mark.parametrize("command", ["check", "run"])
@pytest.mark.usefixtures("nothing_starts")
def test_ports_in_use_are_named_with_who_would_listen_there(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base, other = port_blocks(2)
    path, directory = write_two_hosts(tmp_path, (base, other))
    place = next(number for number, line in enumerate(path.read_text().splitlines(), 1) if line.endswith(f"{base}"))
    told = f"{path}:{place}: hosts.a.base_port: another process listens at 127.0.0.1:{base + 1} (kv_scheduler.0)"
    with socket.create_server(("127.0.0.1", base + 1)):
        assert main([command, str(path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line == f"{told}; stop it, or choose another base_port"
        with run_lock(directory, ["a"]):  # it is this run that listens there
            assert main(["check", str(path)]) == 0
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
        (
            ["weights_in=nccl", "LINK"],
            [
                "the learner's device is cpu, and nccl sends from GPU to GPU",
                "rollout_generator's device is cpu, and nccl",
            ],
        ),
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


def test_a_host_looks_at_its_own_ports_alone(tmp_path: Path) -> None:
    # Another host of this machine may look at its own at that moment, and looking takes a port.
    base, other = port_blocks(2)
    path, _ = write_two_hosts(tmp_path, (base, other))
    topology = load_topology(path)
    with socket.create_server(("127.0.0.1", base + 1)):
        assert check_topology(topology, path, host="b") == []
        assert len(check_topology(topology, path, host="a")) == 1


@pytest.mark.usefixtures("nothing_starts")
def test_a_run_that_is_under_way_is_not_started_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, directory = write_micro(tmp_path)
    with run_lock(directory, load_topology(path).hosts_in_use):
        assert main(["run", str(path)]) == 2
    assert "is in use by another supervisor (process " in capsys.readouterr().err


def test_from_a_shell_there_is_no_traceback_either(folder: Path) -> None:
    path, _ = write_micro(folder)
    path.write_text(path.read_text().replace(GENERATOR, files("malformed.jsonl")).replace("keep = 2", "keep = 9"))
    for command in ("check", "run"):
        done = subprocess.run(
            [sys.executable, "-m", "actors.cli", command, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "algorithm.keep: keeps 9 of 4 samples" in done.stderr
        assert json.dumps(done.stdout) == '""'
