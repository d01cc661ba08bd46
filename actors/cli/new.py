"""``agent-rl new``: a folder to begin with, in which everything runs as it is written."""

from __future__ import annotations

from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors.cli.output import Mistake, say

TOPOLOGY = """\
# agent-rl run {folder}/topology.toml; docs/configuration.md lists every key, `agent-rl check --full` prints them all.
[run]
name = "{name}"
directory = "runs/{name}"

[model.initialise] # or: [model] path = "a Hugging Face model"
hidden_size = 64
layers = 2

[[environments]]
class = "{name}:Largest"

[algorithm]
groups_per_step = 8
samples = 8
keep = 8

[[stages]]
kind = "sft"
steps = 150
batch = 16

[[stages]]
kind = "rl"
steps = 40
learning_rate = 1e-3
warmup_steps = 0
max_response_tokens = 24
max_turns = 1
"""

ENVIRONMENT = '''\
"""Which of three digits is the largest? Demonstrations show the form of an answer; rewards teach the right one."""

import random

from agent_rl.environments.base import ChatMessages, Demonstration, Environment
from agent_rl.messages import Judgement, Problem, Transcript

ANSWER = r"<answer>\\boxed{{{}}}</answer>"


class Largest(Environment):
    def __init__(self, *, seed: int, base: object) -> None:  # settings of your own: more keywords
        self.seed, self.evaluation_count = seed, None  # held-out problems do not run out

    def problems(self) -> "Largest":
        return self

    def problem(self, stage: int, number: int) -> Problem:
        return made(f"{self.seed}-{stage}-{number}")

    def evaluation(self, number: int) -> Problem:
        return made(f"held-out-{number}")

    def demonstrations(self, rng: random.Random):
        while True:
            asked = made(str(rng.random()))
            answer = ANSWER.format(rng.choice(asked.payload["digits"]))
            yield Demonstration(asked, (*self.prompt(asked), {"role": "assistant", "content": answer}))

    def prompt(self, problem: Problem) -> ChatMessages:
        return [{"role": "user", "content": problem.text}]

    def judge_at_once(self, problem: Problem, transcript: Transcript) -> Judgement:
        right = "".join(transcript.texts[-1:]).strip() == ANSWER.format(problem.answer)
        return Judgement(float(right), right, {}, format_penalty=0.0, note="")


def made(name: str) -> Problem:
    digits = random.Random(name).sample(range(10), 3)
    return Problem(name, "Largest of {}, {}, {}?".format(*digits), str(max(digits)), payload={"digits": digits})
'''

TEST = '''\
"""pytest {folder}"""

from pathlib import Path

from agent_rl.config.load import load_topology
from agent_rl.messages import Transcript
from agent_rl.topology_checks.topology import check_topology
from {name} import ANSWER, Largest

TOPOLOGY = Path(__file__).with_name("topology.toml")


def test_the_largest_digit_alone_is_right() -> None:
    environment = Largest(seed=0, base=Path())
    problem = environment.problems().evaluation(0)
    for digit in problem.payload["digits"]:
        judgement = environment.judge_at_once(problem, Transcript((ANSWER.format(digit),)))
        assert judgement.success == (str(digit) == problem.answer)


def test_the_topology_is_sound() -> None:
    assert check_topology(load_topology(TOPOLOGY), TOPOLOGY) == []
'''

WITH_TOOL = {
    "steps = 150\n": "steps = 400\n",
    "steps = 40\nlearning_rate = 1e-3\nwarmup_steps = 0": "steps = 80\nlearning_rate = 3e-4",
    "max_response_tokens = 24\nmax_turns = 1": "max_response_tokens = 96\nmax_turns = 2",
    "Demonstrations show the form of an answer; rewards teach the right one.": "A tool tells.\n\n"
    "Demonstrations call it with some of the digits; rewards teach to give it all. docs/write_a_tool.md says more.\n",
    "from agent_rl.messages import J": "from agent_rl.environments.tools import tool\nfrom agent_rl.messages import J",
    "\n\n\nclass Largest(Environment):\n": """
CALL = '<tool_call>{{"name": "largest", "arguments": {{"digits": {}}}}}</tool_call>'


@tool
def largest(digits: list[int]) -> int:
    \"\"\"The largest of some digits.

    digits: At least one.
    \"\"\"
    return max(digits)


class Largest(Environment):
    tools = (largest,)
    lists_tools = False  # the prompt says nothing of the tool, since demonstrations teach its call

""",
    """answer = ANSWER.format(rng.choice(asked.payload["digits"]))
            yield Demonstration(asked, (*self.prompt(asked), {"role": "assistant", "content": answer}))""": """\
digits = asked.payload["digits"][: rng.randint(1, 3)]
            call = {"role": "assistant", "content": CALL.format(digits)}
            response = {"role": "user", "content": f"<tool_response>{largest(digits)}</tool_response>"}
            answer = {"role": "assistant", "content": ANSWER.format(largest(digits))}
            yield Demonstration(asked, (*self.prompt(asked), call, response, answer))""",
    "import ANSWER, Largest\n": "import ANSWER, Largest, largest\n",
    "def test_the_topology_is": """def test_the_tool_finds_the_largest_digit() -> None:
    assert largest([3, 9, 1]) == 9


def test_the_topology_is""",
}
"""What ``--tool`` writes in the place of what."""


def new(
    folder: Annotated[Path, Parameter(name="NAME", help="the folder to make; its name is that of the run")],
    /,
    *,
    tool: Annotated[bool, Parameter(help="give the environment a tool, which its demonstrations call")] = False,
) -> None:
    """Write a topology, an environment and its test into a new folder."""
    name = folder.name
    if not name.isidentifier() or iskeyword(name):
        raise Mistake(f"{name!r} cannot be the name of a Python module; take letters, digits and _")
    if folder.exists():
        raise Mistake(f"{folder} exists; name a folder that does not")
    found = find_spec(name)
    if found is not None and found.origin is not None:  # a folder without __init__.py gives way to a module
        raise Mistake(f"there is a Python module {name!r} already; take another name")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise Mistake(f"{folder} cannot be made ({error.strerror}); name another folder") from error
    for file, text in (("topology.toml", TOPOLOGY), (f"{name}.py", ENVIRONMENT), (f"test_{name}.py", TEST)):
        content = text if text is ENVIRONMENT else text.replace("{folder}", str(folder)).replace("{name}", name)
        for plain, other in WITH_TOOL.items() if tool else ():
            content = content.replace(plain, other)
        (folder / file).write_text(content, encoding="utf-8")
    say(f"wrote {folder}: agent-rl run {folder / 'topology.toml'} trains, pytest {folder} tests the environment")
