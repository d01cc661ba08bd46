"""The smallest topologies that run everything for real: processes, sockets, engine, sandbox, training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transport import CurveKeys

ANSWER = "4"
"""What the problems of `write_half_right` ask for."""

ENVIRONMENT = 'class = "examples.quickstart.arithmetic:Arithmetic"\nname = "arithmetic"'
"""The lines of the environment in `MICRO`."""

MICRO = """
[run]
name = "micro"
directory = "{directory}"
checkpoint_every = 2

[model.initialise]
hidden_size = 32
layers = 1
heads = 2
kv_heads = 1
head_dim = 16
mlp_size = 32

[[environments]]
ENVIRONMENT

[algorithm]
groups_per_step = 2
samples = 4
keep = 2
max_staleness = 1

[[stages]]
kind = "sft"
steps = 3
batch = 4

[[stages]]
kind = "evaluate"
name = "before"
problems = 3
max_response_tokens = 40
max_turns = 2

[[stages]]
kind = "rl"
steps = {steps}
learning_rate = 1e-4
max_response_tokens = 40
max_turns = 2

[[stages]]
kind = "evaluate"
name = "after"
problems = 3
max_response_tokens = 40
max_turns = 2

{hosts}

[actors.kv_scheduler]
class = "actors.kv_scheduler:KVScheduler"
host = "{a}"
links = {{ groups = "roc_filter", requests = "rollout_generator", unwanted = "rollout_generator", journal = "roc_filter" }}

[actors.rollout_generator]
class = "actors.rollout_generator:RolloutGenerator"
host = "{b}"
links = {{ trajectories = "roc_filter", tools = "tool_executor", turns = "tool_executor", load = ["kv_scheduler", "learner"], kept = "kv_scheduler" }}
settings = {{ max_rollouts = 8, error_detail = "last_line" }}

[actors.tool_executor]
class = "actors.tool_executor:ToolExecutor"
host = "{b}"

[actors.roc_filter]
class = "actors.roc_filter:RoCFilter"
host = "{a}"
links = {{ checks = "tool_executor", training = "learner", progress = "kv_scheduler" }}

[actors.learner]
class = "actors.learner:Learner"
host = "{a}"
links = {{ policy = ["kv_scheduler", "rollout_generator"], stages = "roc_filter", steps = "roc_filter", checkpoints = "roc_filter" }}
""".replace("ENVIRONMENT", ENVIRONMENT)


def write_micro(folder: Path, *, steps: int = 3) -> tuple[Path, Path]:
    """A one-host topology; its file and its run directory."""
    directory = folder / "run"
    path = folder / "micro.toml"
    path.write_text(MICRO.format(directory=directory, steps=steps, hosts="", a="local", b="local"))
    return path, directory


def write_model(folder: Path, **more: Any) -> Path:
    """A model of the same size, without training."""
    from agent_rl.config.topology import InitialiseModel
    from agent_rl.learning.tiny import initialise_model

    sizes = {"hidden_size": 32, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "mlp_size": 32}
    initialise_model(InitialiseModel(**sizes, **more), folder / "model", 0)
    return folder / "model"


def write_half_right(
    folder: Path,
    *,
    steps: int = 3,
    learner: str = "actors.learner:Learner",
    generator: str = "actors.rollout_generator:RolloutGenerator",
    problems: int = 90,
) -> tuple[Path, Path]:
    """RL alone, and half of every group is right: every step trains. Its file and its run directory."""
    path, directory = write_micro(folder, steps=steps)
    fours = [{"problem": f"What is {number} - {number - 4}?", "answer": ANSWER} for number in range(problems)]
    (folder / "fours.jsonl").write_text("\n".join(map(json.dumps, fours)))
    whole = path.read_text()
    before, stages = whole.split("[[stages]]", 1)
    rl = "[[stages]]" + stages.split("[[stages]]")[2]
    actors = stages[stages.index("[actors.") :]
    text = (before + rl + actors).replace(ENVIRONMENT, 'class = "maths"\nsettings.files = ["fours.jsonl"]')
    text = text.replace("actors.roc_filter:RoCFilter", "tests.end_to_end.faulty:HalfRight")
    text = text.replace("actors.rollout_generator:RolloutGenerator", generator)
    path.write_text(text.replace("actors.learner:Learner", learner))
    return path, directory


SELECT = """\
[[stages]]
kind = "select"
name = "hard"
samples = 4
max_response_tokens = 40
max_turns = 2

"""


def write_selecting(folder: Path, *, problems: int, steps: int = 2, **classes: str) -> tuple[Path, Path]:
    """As `write_half_right`, after a selection that keeps every second problem. Its file and its run directory."""
    path, directory = write_half_right(folder, steps=steps, problems=problems, **classes)
    text = path.read_text().replace("[[stages]]", f"{SELECT}[[stages]]", 1)
    path.write_text(text.replace("tests.end_to_end.faulty:HalfRight", "tests.end_to_end.faulty:SolvesEven"))
    return path, directory


def hosts_on(ports: Sequence[int], folder: Path) -> str:
    """The hosts a, b, ... on the loopback, and their key."""
    CurveKeys.generate().save(folder / "cluster.key")
    named = zip("abc", ports, strict=False)
    hosts = "".join(f'[hosts.{name}]\naddress = "127.0.0.1"\nbase_port = {port}\n' for name, port in named)
    return f'{hosts}[security]\nkey_file = "cluster.key"\n'


def write_two_hosts(folder: Path, ports: Sequence[int], *, steps: int = 3) -> tuple[Path, Path]:
    """Generator and executor on one host entry, everything else on another, over loopback TCP with a key."""
    directory = folder / "run"
    path = folder / "two_hosts.toml"
    path.write_text(MICRO.format(directory=directory, steps=steps, hosts=hosts_on(ports, folder), a="a", b="b"))
    return path, directory


def write_three_hosts(folder: Path, ports: Sequence[int], *, steps: int) -> tuple[Path, Path]:
    """A generator and an executor on each of the hosts b and c, everything else on a, over loopback TCP with a key."""
    path, directory = write_two_hosts(folder, ports, steps=steps)
    path.write_text(path.read_text().replace('host = "b"', 'hosts = ["b", "c"]'))
    return path, directory
